"""The transfer protocols with their runs made elsewhere: the same result, in two waves, each run once."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import vitlab
from tiny_vits import SIZES, random_vit
from vitlab.core.record import write_json
from vitlab.evaluation.contract import EvaluationError
from vitlab.models.vit import ViTConfig
from vitlab.studies import ray_executor, transfer
from vitlab.studies.cells import Cell
from vitlab.studies.grid import DIVERGED, RESULT, GridError
from vitlab.training.recipe import Recipe, read_recipe
from vtab_folders import make_task

VAL = {0.01: 0.5, 0.02: 0.9, 0.04: None}
FEW: dict[str, Any] = {"steps": 5, "lrs": (0.01, 0.02, 0.04), "seeds": (0, 1), "batch_size": 4, "image_size": None}


class Elsewhere:
    """Writes what a run's training would: scores by a table. It remembers the waves of cells that it was given."""

    def __init__(self, val: Mapping[float, float | None] = VAL, failing: str = "") -> None:
        self.val, self.failing, self.waves = val, failing, list[list[str]]()

    def map(self, cells: Sequence[Cell]) -> Iterator[tuple[Cell, Mapping[str, Any]]]:
        self.waves.append([cell.name for cell in cells])
        for cell in reversed(cells):
            if self.failing and self.failing in cell.name:
                yield cell, {"error": "its node was lost, 4 times: the same command resumes it"}
                continue
            result = self.result(read_recipe(cell.recipe, where=cell.name))
            write_json(Path(cell.folder, "recipe.json"), cell.recipe)
            write_json(Path(cell.folder, RESULT if result else DIVERGED), result or {"reason": "it diverged"})
            yield cell, {"run": result, "measures": {}}

    def result(self, recipe: Recipe) -> dict[str, Any] | None:
        lr = recipe.optimizer.lr
        result: dict[str, Any] = {"seconds": 2.0, "images_seen": 100, "best_score": None}
        if recipe.name.endswith("-choose"):
            return None if self.val[lr] is None else result | {"best_score": self.val[lr]}
        return result | {"test accuracy": lr * 10 + recipe.seed / 10, "test loss": 1.0}


def never(recipe: Recipe, folder: Path) -> Mapping[str, Any]:
    raise AssertionError(f"{folder} was to be made elsewhere, by {recipe}")


@pytest.fixture
def model(tmp_path: Path) -> str:
    vitlab.save(random_vit(ViTConfig(**SIZES, num_classes=2)), tmp_path / "model")
    return str(tmp_path / "model")


@pytest.fixture
def photos(tmp_path: Path) -> str:
    for part, count in (("train", 20), ("test", 2)):
        for label in ("cat", "dog"):
            for i in range(count):
                path = tmp_path / "photos" / part / label / f"{i}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.new("RGB", (4, 4), (i, 0, 0)).save(path)
    return str(tmp_path / "photos")


def test_rates_first_then_seeds(model: str, photos: str, tmp_path: Path) -> None:
    elsewhere, seen = Elsewhere(), list[tuple[int, int]]()
    folder = tmp_path / "grid"
    result = transfer.finetune(
        model, photos, folder, **FEW, executor=elsewhere, train=never, progress=lambda *each: seen.append(each)
    )
    assert elsewhere.waves == [
        [f"grid/choose/rate={lr}" for lr in (0.01, 0.02, 0.04)],
        [f"grid/final/rate=0.02,seed={seed}" for seed in (0, 1)],
    ]
    assert result.selected["lr"]["scores"] == {"0.01": 0.5, "0.02": 0.9, "0.04": None}
    assert result.metrics["accuracy"].value == pytest.approx(0.25)
    assert seen == [(i, 5) for i in range(1, 6)]
    again = transfer.finetune(model, photos, folder, **FEW, train=never)  # all is there
    assert again.metrics == result.metrics


def test_all_tasks_of_vtab_at_once(model: str, tmp_path: Path) -> None:
    for name in ("svhn", "dtd"):
        make_task(tmp_path / "vtab", name, 4)
    elsewhere = Elsewhere()
    result = transfer.vtab(model, tmp_path / "vtab", tmp_path / "grid", **FEW, executor=elsewhere, train=never)
    assert [len(wave) for wave in elsewhere.waves] == [6, 4]
    assert {name.split("/")[0] for name in elsewhere.waves[0]} == {"svhn", "dtd"}
    assert result.metrics["svhn"].value == result.metrics["dtd"].value == pytest.approx(0.25)


def test_without_a_choice_there_is_one_wave(model: str, photos: str, tmp_path: Path) -> None:
    elsewhere = Elsewhere()
    one: dict[str, Any] = FEW | {"lrs": (0.01,)}
    transfer.finetune(model, photos, tmp_path / "grid", **one, executor=elsewhere, train=never)
    assert [len(wave) for wave in elsewhere.waves if wave] == [2]


def test_what_fails_is_one_sentence(model: str, photos: str, tmp_path: Path) -> None:
    with pytest.raises(
        GridError, match=r"The run grid/choose/rate=0.02 failed: its node was lost.*command resumes it\. The"
    ):
        transfer.finetune(model, photos, tmp_path / "grid", **FEW, executor=Elsewhere(failing="0.02"), train=never)
    none = Elsewhere(dict.fromkeys(VAL, None))
    with pytest.raises(EvaluationError, match="the runs of all rates diverged"):
        transfer.finetune(model, photos, tmp_path / "other", **FEW, executor=none, train=never)


def test_a_protocol_takes_the_name_of_an_executor(
    model: str, photos: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = Elsewhere()
    monkeypatch.setattr(ray_executor, "parse_ray", lambda text, _: elsewhere if text == "ray,gpus=0" else None)
    own: dict[str, Any] = FEW | {"own_size": True}
    del own["image_size"]
    found = vitlab.evaluate(
        "finetune", model, photos, folder=str(tmp_path / "grid"), executor="ray,gpus=0", device="cpu", **own
    )
    assert found.metrics["accuracy"].value == pytest.approx(0.25)
    assert len(elsewhere.waves) == 2

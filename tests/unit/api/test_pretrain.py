"""`vitlab.pretrain` from Python: folders of any kind, any start, and the same bits when it is resumed."""

import importlib
import json
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

import vitlab
from box_stand_in import boxed
from vitlab.core.errors import DataError
from vitlab.models.vit import ViT
from vitlab.recipes.unlabelled import DEFAULT_ON_CPU, METHODS
from vitlab.training import hooks
from vitlab.training.loop import Ending, Moment
from vitlab.training.plan import open_parts
from vitlab.training.recipe import Recipe

__all__ = ["boxed"]  # a fixture


def write(root: Path, *names: str) -> Path:
    rng = np.random.default_rng(0)
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (20, 20, 3), dtype=np.uint8)).save(root / name)
    return root


def many(folder: str, num: int) -> list[str]:
    return [f"{folder}{i}.png" for i in range(num)]


class SeenError(Exception):
    """The recipe that was chosen, in the place of a run."""


def chosen(photos: Path, **given: Any) -> Recipe:
    def adjust(recipe: Recipe) -> Recipe:
        raise SeenError(recipe)

    with pytest.raises(SeenError) as seen:
        vitlab.pretrain(photos, adjust=adjust, device="cpu", **given)
    return seen.value.args[0]


@pytest.mark.parametrize(
    ("names", "prefix", "num"),
    [
        (many("", 20), "", 20),
        ([*many("2019/", 10), *many("2020/05/", 10)], "", 20),  # two classes
        (many("holiday/", 20), "photos:", 20),  # one folder is no class
        ([*many("", 5), *many("holiday/spain/", 15)], "photos:", 20),
    ],
)
def test_any_folder_of_photos(boxed: ViT, names: list[str], prefix: str, num: int, tmp_path: Path) -> None:
    """An epoch of batches of one is as many steps as there are photos that are trained on."""
    del boxed
    photos = write(tmp_path / "photos", *names)
    recipe = chosen(photos, epochs=1, batch_size=1)
    assert recipe.data.source == f"{prefix}{photos}"
    dataset = open_parts(recipe)
    assert sum(len(split) for split in dataset.splits.values()) == num
    assert recipe.schedule.total == f"{len(dataset.splits['train'])} steps"


def test_a_folder_without_photos_is_refused_by_its_own_sentence(boxed: ViT, tmp_path: Path) -> None:
    del boxed
    (tmp_path / "empty" / "inside").mkdir(parents=True)
    with pytest.raises(DataError, match="holds no images"):
        vitlab.pretrain(tmp_path / "empty")


def test_weights_or_fresh_ones_and_what_follows(boxed: ViT, tmp_path: Path) -> None:
    del boxed
    photos = write(tmp_path / "photos", *many("", 200))
    trained, fresh = chosen(photos), chosen(photos, model="vit-digits")
    assert (trained.model.source, trained.model.pretrained) == ("vitlab/tiny", True)
    assert (fresh.model.source, fresh.model.pretrained) == ("vit-digits", False)
    assert trained.optimizer.layer_decay < 1 == fresh.optimizer.layer_decay
    assert trained.optimizer.lr < fresh.optimizer.lr
    assert (chosen(photos, lr=0.5).optimizer.lr, chosen(photos, steps=7).schedule.total) == (0.5, "7 steps")
    assert trained.batch_size * 4 <= 200


@pytest.mark.parametrize(
    "method",
    [DEFAULT_ON_CPU, *(pytest.param(name, marks=pytest.mark.slow) for name in METHODS if name != DEFAULT_ON_CPU)],
)
def test_every_method_trains_and_is_resumed_to_the_same_bits(
    method: str, boxed: ViT, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One run of four steps, and one that a signal ends after the third."""
    del boxed
    photos = write(tmp_path / "photos", *many("a/", 8), *many("b/", 8))
    given: dict[str, Any] = {"method": method, "steps": 4, "batch_size": 4, "device": "cpu"}
    monkeypatch.setattr(importlib.import_module("vitlab.api.train"), "report", lambda *_, **__: None)
    done = vitlab.pretrain(photos, out=tmp_path / "whole", **given)
    assert (done.step, done.has_head) == (4, False)
    assert " before, " in done.lines[-1]

    def stop(_: hooks.Signals, moment: Moment) -> None:
        if moment.step == 3:
            moment.ending = Ending("signal", 128 + signal.SIGTERM)

    with monkeypatch.context() as patched:
        patched.setattr(hooks.Signals, "after_step", stop)
        assert vitlab.pretrain(photos, out=tmp_path / "parts", **given).reason == "signal"
    assert vitlab.resume(tmp_path / "parts", device="cpu").step == 4
    whole, parts = (load_file(tmp_path / name / "model" / "model.safetensors") for name in ("whole", "parts"))
    assert whole.keys() == parts.keys()
    assert all(torch.equal(whole[name], parts[name]) for name in whole)
    lines = (tmp_path / "parts" / "metrics.jsonl").read_text().splitlines()
    evaluated = [json.loads(line)["step"] for line in lines if "val score" in line]
    assert evaluated == [0, 1, 2, 3, 4]

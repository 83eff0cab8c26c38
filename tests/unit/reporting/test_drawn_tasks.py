# ruff: noqa: ARG002  a task takes what it does not need
"""Reports of runs that are no classifiers: of masks, of numbers, and of a model without a head."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import vitlab
from report_pages import Page
from tiny_vits import random_vit
from vitlab.core.config import to_dict
from vitlab.core.record import write_json
from vitlab.data.contract import IGNORED, DataSet, Masks, Split, Values
from vitlab.inference.masks import blend
from vitlab.models.contract import Model
from vitlab.models.vit import ViTConfig
from vitlab.objectives.contract import Criterion
from vitlab.objectives.cross_entropy import Loss
from vitlab.reporting.drawn import drawn
from vitlab.reporting.glossary import Glossary
from vitlab.reporting.make import Plan, make_report
from vitlab.reporting.purpose import Purpose
from vitlab.tasks import results as tested
from vitlab.tasks.contract import Answer, Scorer, Task
from vitlab.tasks.segmentation import Segmentation
from vitlab.training.recipe import Recipe

CLASSES = ("sky", "<b>tree</b>", "road", "boat")
NUM = 10


class Pictures:
    """Arrays as images."""

    def __init__(self, arrays: np.ndarray) -> None:
        self.arrays = arrays

    def __len__(self) -> int:
        return len(self.arrays)

    def read(self, index: int) -> np.ndarray:
        return self.arrays[index]

    def where(self, index: int) -> str:
        return f"pictures/{index}.png"


PIXELS = np.random.default_rng(0).integers(0, 256, (NUM, 8, 8, 3), dtype=np.uint8)
MASKS = np.random.default_rng(1).integers(0, 3, (NUM, 8, 8), dtype=np.uint8)  # without the last class
MASKS[:, 0] = IGNORED
NUMBERS = np.arange(NUM, dtype=np.float32)


def make_run(folder: Path, model: Model, lines: list[dict[str, Any]]) -> Path:
    vitlab.save(model, folder / "model")
    write_json(folder / "recipe.json", to_dict(Recipe(name="made")))
    write_json(folder / "result.json", {"step": 20, "images_seen": 100, "seconds": 5.0, "reason": "done"})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def made(folder: Path, targets: dict[str, Any], purpose: Purpose | None) -> Page:
    split = Split(Pictures(PIXELS), targets)
    dataset = DataSet("made data", (), {"train": split, "val": split}, "0")
    report = make_report(folder, lambda: Plan(dataset, 20), purpose=purpose)
    assert report.missing == ()
    page = Page(report.path.read_text(encoding="utf-8"))
    page.check()
    return page


def outputs(model: Model) -> np.ndarray:
    images = torch.tensor((PIXELS - 127.5) / 127.5, dtype=torch.float32).permute(0, 3, 1, 2)
    with torch.no_grad():
        return model.eval()(images).double().numpy()


def tiny(num_classes: int, **more: Any) -> Model:
    return random_vit(
        ViTConfig(
            image_size=(8, 8), patch_size=4, width=16, depth=2, mlp_dim=16, heads=2, num_classes=num_classes, **more
        )
    )


@pytest.fixture(scope="module")
def segmenter() -> Model:
    model = tiny(len(CLASSES), head="patches")
    model.labels = CLASSES
    return model


@pytest.fixture(scope="module")
def masks_page(segmenter: Model, tmp_path_factory: pytest.TempPathFactory) -> Page:
    lines = [
        {"step": step, "loss": 1.0, "pixel accuracy": 0.2, "lr": 1e-3}
        | {"val score": step / 50, "val mIoU": step / 50, "val pixel accuracy": 0.4, "val loss": 1.0, "val count": 10}
        for step in (10, 20)
    ]
    folder = make_run(tmp_path_factory.mktemp("masks"), segmenter, lines)
    purpose = Purpose(task=Segmentation(), name="segmentation", summary="which class each pixel is of")
    return made(folder, {"mask": Masks(Pictures(MASKS), CLASSES)}, purpose)


def test_a_segmentation_is_told_by_its_iou(masks_page: Page, segmenter: Model) -> None:
    said, truth = outputs(segmenter).argmax(axis=1), MASKS
    known = truth != IGNORED
    each = []
    for k, name in enumerate(CLASSES):
        union = (((said == k) & known) | (truth == k)).sum()
        value = f"{((said == k) & (truth == k)).sum() / union:.1%}" if union else "nowhere"
        each.append(((said == k) & (truth == k)).sum() / union if union else None)
        assert masks_page.row(name) == [f"{(truth == k).sum() / known.sum():.1%}", value]
    there = [value for value in each if value is not None]
    mean, right = sum(there) / len(there), (said == truth)[known].mean()
    assert masks_page.row("mIoU") == [f"{mean:.1%}"]
    assert masks_page.row("pixel accuracy") == [f"{right:.1%}"]
    assert f"it reached mIoU {mean:.2%}, pixel accuracy {right:.2%}." in masks_page.text
    assert "made: which class each pixel is of" in masks_page.headings


def test_a_segmentation_shows_overlays_and_curves(masks_page: Page) -> None:
    assert len(masks_page.images) == 3 * 8  # picture, label and prediction of the best and the worst four
    assert {"mIoU", "Pixel accuracy", "Loss: lower is better"} <= set(masks_page.headings)
    assert "Best on validation pictures: 40.0%, in the ring." in masks_page.text
    assert "sky" in masks_page.text
    assert "What it confuses" not in masks_page.headings
    assert any("evaluate score" in text for text in masks_page.commands)


def test_overlays_leave_ignored_pixels_as_they_are() -> None:
    pixels = np.full((1, 3, 3), 100, np.uint8)
    found = blend(pixels, np.array([[0, 1, IGNORED]], np.uint8))
    # VOC's first colours are black and (128, 0, 0); 0.4 of the picture, 0.6 of the colour
    assert found.tolist() == [[[40, 40, 40], [117, 40, 40], [100, 100, 100]]]


class Height(Task):
    """A number per image, as a user would write it."""

    def check(self, dataset: DataSet) -> None: ...

    def fields(self, dataset: DataSet) -> dict[str, Any]:
        return {"num_classes": 1}

    def criterion(self, loss: Any, dataset: DataSet, train: Split) -> Criterion:
        raise AssertionError("nothing is trained here")

    def scorer(self, loss: Any, dataset: DataSet) -> Scorer:
        return HeightScorer()

    def words(self, scores: Any) -> str:
        return f"error {scores['error']:.3f} m" if "error" in scores else ""

    def answers(self, model: Model, outputs: Tensor, top: int) -> list[Answer]:
        return [Answer(numbers={"height": value}) for value in outputs[:, 0].tolist()]


class HeightScorer(Scorer):
    def sums(self, outputs: Tensor, target: Tensor, counts: Tensor) -> Tensor:
        off = (outputs[:, 0] - target)[counts].double().abs()
        return torch.stack([off.sum(), counts.sum().double()])

    def scores(self, sums: Tensor) -> dict[str, float]:
        off, count = sums.tolist()
        return {"score": -off / count, "error": off / count, "loss": off / count, "count": count}


def test_a_task_of_ones_own_is_told_by_its_own_words(tmp_path: Path) -> None:
    model = tiny(1)
    lines = [{"step": 20, "val score": -1.0, "val error": 1.0, "val loss": 1.0, "val count": 10}]
    folder = make_run(tmp_path / "run", model, lines)
    purpose = Purpose(task=Height(), name="mine.py:HEIGHT", summary="how high it is")
    page = made(folder, {"label": Values(NUMBERS, "number")}, purpose)
    off = np.abs(outputs(model)[:, 0] - NUMBERS)
    assert f"On 10 pictures that were kept apart it reached error {off.mean():.3f} m." in page.text
    assert page.row("error") == [f"{off.mean():.4g}"]
    worst = int(off.argmax())
    assert f"Worst: said height {outputs(model)[worst, 0]:.4g}; is height {NUMBERS[worst]:.4g}." in page.text
    assert len(page.images) == 8
    assert any("--task mine.py:HEIGHT" in text for text in page.commands)


def test_a_model_without_a_head_says_what_was_trained(tmp_path: Path) -> None:
    lines = [{"step": 20, "loss": 0.5, "val score": -0.25, "val loss": 0.25, "val count": 10}]
    page = made(make_run(tmp_path / "run", tiny(0), lines), {}, None)
    assert "made: features of pictures" in page.headings
    assert "it reached loss 0.25." in page.text
    assert "labelled" not in page.text.split("How it learned")[0]
    assert not {"Class by class", "How well it does"} & set(page.headings)
    assert any(text.startswith("vitlab finetune") for text in page.commands)


def test_a_run_that_scored_its_test_part_is_told_by_that() -> None:
    looked_at = tested.Tested(
        part="test", of=20, num=10, scores={"score": 0.1, "mIoU": 0.1}, sums=torch.zeros(18), labels=CLASSES
    )
    own = tested.Reached({"score": 0.25, "mIoU": 0.25, "count": 20.0}, "test", 20)
    scores, _, _ = Segmentation().sections(tested.ReportContext(loss=Loss(), logged=own, tested=looked_at))
    page = Page("".join(drawn(scores, Glossary.of({}))))
    assert page.row("mIoU") == ["25.0%"]
    assert "Measured when the run ended, on 20 test pictures. What follows is from 10 of them" in page.text

"""The collapse alarm over runs that are made to collapse, and over runs that are not."""

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier
from torch import Tensor

import vitlab
from batches import ALONE
from changing import changed
from short_runs import short_recipe, write_small_set
from vitlab.core.config import Choice
from vitlab.core.preprocess import Preprocess
from vitlab.data.batch import Batch
from vitlab.data.contract import Split
from vitlab.models.contract import Model
from vitlab.objectives.collapse import teacher_entropy
from vitlab.objectives.contract import Metrics, Objective
from vitlab.training import session
from vitlab.training.collapse import CollapseAlarm
from vitlab.training.loop import Moment
from vitlab.training.plan import Parts
from vitlab.training.recipe import Recipe

MAE = Choice("mae", {"decoder_width": 16, "decoder_depth": 1, "decoder_heads": 2})


class AllAlike(Objective):
    """Pulls the features of a batch together: without anything that keeps images apart, they become the same."""

    scores_task: ClassVar[bool] = False

    def loss(self, model: Model, batch: Batch, progress: Tensor) -> tuple[Tensor, Metrics]:
        del progress
        features = model(batch.images)
        answers = (features[:, :4] * 1e-3).softmax(dim=1)  # a teacher that says nothing
        return (features - features.mean(dim=0)).square().sum(dim=1).mean(), teacher_entropy(answers)


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    plain = {"augmentation.mixup": 0.0, "augmentation.cutmix": 0.0, "augmentation.erase": 0.0}
    still = {"model.dropout": 0.0, "model.drop_path": 0.0, "optimizer.ema": None, "keep": "last"}
    length = {"schedule.total": "40 steps", "evaluate_every": "10 steps", "checkpoint_every": "40 steps"}
    return changed(short_recipe(write_small_set(tmp_path / "small.npz")), **plain, **still, **length)


def logged(run: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if "val score" in line]


def test_a_run_that_collapses_is_told(recipe: Recipe, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In the log when it happens, once; in the metrics; and in the report."""
    vitlab.train(recipe, objective=AllAlike(), out=tmp_path / "run", device="cpu", show=True)
    said = [line for line in capsys.readouterr().err.splitlines() if "collapsed" in line]
    assert len(said) == 1
    assert said[0].startswith("step ")
    assert "all held-out images are nearly the same" in said[0]
    lines = logged(tmp_path / "run")
    assert lines[-1]["val feature std"] < 0.05
    assert lines[-1]["val teacher entropy"] > 0.995
    page = (tmp_path / "run" / "report.html").read_text()
    stands_out = page[page.index('id="notable"') : page.index('id="curves"')]
    assert "The features collapsed" in stands_out
    assert "The teacher says nothing of any image" in stands_out
    assert "How far apart pictures are" in page
    assert "What its features are like" in page


@pytest.mark.parametrize("objective", [MAE, Choice("masked-patches")], ids=lambda choice: choice.name)
def test_a_run_that_does_not_collapse_is_not(
    objective: Choice, recipe: Recipe, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    session.train(dataclasses.replace(recipe, objective=objective), tmp_path / "run", device="cpu", show=True)
    said = capsys.readouterr().err
    assert "collapsed" not in said
    assert "no more than chance" not in said
    assert "feature std" in said  # in each evaluation's line
    lines = logged(tmp_path / "run")
    assert [line["step"] for line in lines] == [10, 20, 30, 40]
    assert all(line["val feature std"] > 0.05 and line["val feature rank"] > 2 for line in lines)
    assert all(line["val kNN accuracy"] > line["val kNN chance"] for line in lines)


def test_a_task_is_not_watched(recipe: Recipe, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    session.train(recipe, tmp_path / "run", device="cpu", show=True)
    assert "feature std" not in capsys.readouterr().err
    assert not any("feature" in name for line in logged(tmp_path / "run") for name in line)


class Pictures:
    def __init__(self, values: np.ndarray[Any, Any]) -> None:
        self.values = values

    def __len__(self) -> int:
        return len(self.values)

    def read(self, index: int) -> Any:
        return self.values[index]

    def where(self, index: int) -> str:
        return f"picture {index}"


def watching(
    num_train: int, num_val: int, *, labels: bool = True, model: Any = None
) -> tuple[CollapseAlarm, list[str]]:
    """An alarm over noise whose brightness tells three classes apart, for a model that hands on the pixels."""
    rng, said = np.random.default_rng(0), list[str]()

    def split(num: int) -> Split:
        known = rng.integers(0, 3, num)
        pixels = rng.integers(0, 120, (num, 4, 4, 3)) + 60 * known[:, None, None, None]
        pictures = Pictures(pixels.astype(np.uint8))
        return Split.labelled(pictures, known) if labels else Split(pictures)

    chosen: Any = model or torch.nn.Flatten()
    chosen.preprocess = Preprocess(size=(4, 4))
    learner: Any = SimpleNamespace(model=chosen, objective=SimpleNamespace(product=lambda model: model))
    alarm = CollapseAlarm(
        Parts(split(num_train), split(num_val), None),
        learner,
        target="label",
        num_classes=3,
        world=ALONE,
        autocast=torch.no_grad,
        max_unreadable=0.0,
        say=said.append,
    )
    return alarm, said


def test_neighbours_are_those_of_scikit_learn() -> None:
    alarm, said = watching(200, 60)
    found = alarm.watched({"loss": 1.0})
    values = {name: alarm._features(name, split, 10_000) for name, split in _parts(alarm)}
    (bank, known), (held, labels) = values["train"], values["val"]
    assert labels is not None
    weigh: Any = lambda distance: np.exp((1 - distance) / 0.07)  # noqa: E731
    peer = KNeighborsClassifier(20, metric="cosine", weights=weigh)
    expected = peer.fit(bank.numpy(), known).score(held.numpy(), labels)
    assert found["kNN accuracy"] == pytest.approx(expected)
    assert found["kNN chance"] == pytest.approx(np.bincount(labels).max() / 60)
    assert found["loss"] == 1.0
    assert said == []


def _parts(alarm: CollapseAlarm) -> list[tuple[str, Split]]:
    assert alarm.parts.val is not None
    return [("train", alarm.parts.train), ("val", alarm.parts.val)]


def test_without_labels_features_are_watched_all_the_same() -> None:
    alarm, _ = watching(20, 30, labels=False)
    assert set(alarm.watched({})) == {"feature std", "feature rank"}


def test_at_most_so_many_images_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitlab.training.collapse.HELD", 16)
    monkeypatch.setattr("vitlab.training.collapse.BANK", 24)
    seen: list[int] = []

    class Counting(torch.nn.Flatten):
        def forward(self, input: Tensor) -> Tensor:
            seen.append(len(input))
            return super().forward(input)

    alarm, _ = watching(100, 50, model=Counting())
    alarm.watched({})
    assert seen == [16, 24]


def test_it_is_said_when_it_begins_and_when_it_ends() -> None:
    class Scaled(torch.nn.Flatten):
        scale = 1.0

        def forward(self, input: Tensor) -> Tensor:
            return 1 + self.scale * super().forward(input)

    model = Scaled()
    alarm, said = watching(50, 40, labels=False, model=model)
    for step, scale in enumerate((1.0, 1e-4, 1e-4, 1.0), 1):
        model.scale = scale
        alarm.watched({})
        alarm.after_step(Moment(step, last=False))
    assert [text.split(":")[0] for text in said] == ["step 2", "step 4"]
    assert "nearly the same" in said[0]
    assert "tell images apart again" in said[1]


def test_features_that_are_not_finite_are_no_measure() -> None:
    class Broken(torch.nn.Flatten):
        def forward(self, input: Tensor) -> Tensor:
            return super().forward(input) * float("nan")

    alarm, said = watching(50, 40, model=Broken())
    assert alarm.watched({"loss": float("nan")}).keys() == {"loss"}
    assert said == []

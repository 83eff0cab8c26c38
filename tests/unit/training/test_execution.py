"""How a run is computed, decided in one place."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from batches import ALONE
from changing import changed
from short_runs import short, small_set, write_damaged_folder
from vitlab.core.config import Choice
from vitlab.core.errors import ConfigError
from vitlab.core.record import read_metrics
from vitlab.data.contract import Masks, Split
from vitlab.data.streams import StreamPlan, View
from vitlab.models.contract import Model
from vitlab.objectives.contract import Objective, Phase
from vitlab.objectives.cross_entropy import CrossEntropy
from vitlab.objectives.supervised import Supervised
from vitlab.training import assembly, execution, session
from vitlab.training.assembly import main_stream
from vitlab.training.distribution import World
from vitlab.training.execution import Execution, decide
from vitlab.training.learner import Learner
from vitlab.training.model import build_model
from vitlab.training.plan import Given, make_plan, open_parts
from vitlab.training.recipe import Recipe

__all__ = ["short", "small_set"]


def decided(
    recipe: Recipe,
    *,
    world: World = ALONE,
    objective: Objective | None = None,
    streams: Callable[[StreamPlan], tuple[StreamPlan, ...]] = lambda main: (main,),
    say: Callable[[str], None] = lambda _: None,
) -> Execution:
    plan = make_plan(recipe, Path("a run"), open_parts(recipe), Given())
    model = build_model(plan)
    learner = Learner(model, objective or Supervised(CrossEntropy()))
    return decide(plan, learner, streams(main_stream(plan, plan.parts.train, model.preprocess)), world, say)


@pytest.mark.parametrize(
    ("precision", "dtype"), [("auto", torch.float32), ("float32", torch.float32), ("bf16", torch.bfloat16)]
)
def test_precision_on_a_cpu(short: Recipe, precision: str, dtype: torch.dtype) -> None:
    found = decided(changed(short, precision=precision))
    assert found.dtype is dtype
    with found.autocast():
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype is dtype


def test_small_pictures_are_resident(short: Recipe) -> None:
    said: list[str] = []
    found = decided(short, say=said.append)
    assert found.resident
    assert found.train["train"].values.shape == (92, 3, 8, 8)
    assert {name: len(part.values) for name, part in found.evaluated.items()} == {"val": 28}
    assert said == ["Reading 92 images of 8 x 8 into memory.", "Reading 28 images of 8 x 8 into memory."]
    away = decided(changed(short, **{"data.resident": False}))
    assert (away.resident, dict(away.train), dict(away.evaluated)) == (False, {}, {})


def test_an_objectives_own_score_is_of_views_that_are_made_on_the_device(
    short: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the set lies there; and it is that of views which workers make, as near as their resizing is."""
    plain = {"augmentation.mixup": 0.0, "augmentation.cutmix": 0.0, "augmentation.jitter": 0.3}
    steps = {"schedule.total": "6 steps", "schedule.warmup": "0 steps", "evaluate_every": "3 steps"}
    options = {"num_large": 2, "num_small": 1, "small_side": 0.5, "hidden": 8, "out_dim": 4, "slices": 8}
    recipe = dataclasses.replace(changed(short, **plain, **steps), objective=Choice("lejepa", options))

    def by_workers(run: assembly.Run, streams: tuple[StreamPlan, ...]) -> Any:
        return assembly.loader_feed(run.plan, streams, run.state.model.preprocess, run.world, 0)

    with monkeypatch.context() as patch:
        patch.setattr(assembly.Run, "_held_out", by_workers)
        [expected] = session.train(recipe, tmp_path / "workers", device="cpu", show=False).scores.values()
    monkeypatch.setattr(assembly, "LoaderFeed", None)
    [found] = session.train(recipe, tmp_path / "device", device="cpu", show=False).scores.values()
    assert found == pytest.approx(expected, rel=1e-3)
    counts = [line["val count"] for line in read_metrics(tmp_path / "device" / "metrics.jsonl") if "val count" in line]
    assert set(counts) == {28}  # held-out images, not those of whole batches


def test_streams_of_the_same_images_share_their_pixels(short: Recipe) -> None:
    def twice(main: StreamPlan) -> tuple[StreamPlan, ...]:
        return main, StreamPlan("again", main.split, main.order, main.batch_size, main.views, (), 0)

    said: list[str] = []
    plain = changed(short, **{"augmentation.mixup": 0.0, "augmentation.cutmix": 0.0})
    found = decided(plain, streams=twice, say=said.append)
    assert found.train["train"] is found.train["again"]
    assert len(said) == 2  # train and val


@pytest.mark.parametrize("wanted", [None, True])
def test_masks_are_read_by_workers(short: Recipe, wanted: bool | None) -> None:
    def masked(main: StreamPlan) -> tuple[StreamPlan, ...]:
        split = Split(main.split.images, {"mask": Masks(main.split.images, ("a", "b"))})
        view = View(changed(short, **{"augmentation.mixup": 0.0, "augmentation.cutmix": 0.0}).augmentation, (8, 8))
        return (StreamPlan("train", split, main.order, main.batch_size, (view,), ("mask",), 2),)

    recipe = changed(short, **{"data.resident": wanted})
    if wanted:
        with pytest.raises(ConfigError, match=r"data\.resident is for labels; masks are read with their images"):
            decided(recipe, streams=masked)
    else:
        assert not decided(recipe, streams=masked).resident


def test_pictures_of_several_sizes_are_not_resident(
    short: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vitlab.data.loading.resident.LOOK_AT", 4)  # so that it comes out while they are read
    write_damaged_folder(tmp_path / "data", {})
    first, *_, last = sorted((tmp_path / "data" / "train" / "b").iterdir())
    Image.open(first).resize((8, 9)).save(last)
    recipe, said = changed(short, **{"data.source": str(tmp_path / "data")}), list[str]()
    assert not decided(recipe, say=said.append).resident
    assert said[-1] == "There are images of other sizes: they are read anew in every epoch."
    with pytest.raises(ConfigError, match=r"data\.resident needs images of one size, and there are others"):
        decided(changed(recipe, **{"data.resident": True}))


def test_large_pictures_are_resident_where_it_is_wanted(short: Recipe, tmp_path: Path) -> None:
    images = np.zeros((12, 100, 100, 3), np.uint8)
    np.savez(tmp_path / "large.npz", images=images, labels=np.arange(12) % 3)
    recipe = changed(short, **{"data.source": str(tmp_path / "large.npz"), "data.val_fraction": 0.0})
    assert not decided(recipe).resident
    assert decided(changed(recipe, **{"data.resident": True})).train["train"].values.shape == (12, 3, 100, 100)


def test_what_takes_too_much_memory_is_not_resident(short: Recipe, monkeypatch: pytest.MonkeyPatch) -> None:
    size = 92 * 3 * 8 * 8 / (16 * 2**30)
    monkeypatch.setitem(execution.RESIDENT_LIMIT, "cpu", size * 1.01)
    assert decided(short).resident
    monkeypatch.setitem(execution.RESIDENT_LIMIT, "cpu", size * 0.99)
    assert not decided(short).resident


def test_on_a_cpu_nothing_is_captured_and_a_small_model_has_one_thread(short: Recipe) -> None:
    found = decided(short)
    assert (found.capture, found.on_device, found.one_thread, found.strategy) == (False, False, True, "replicate")
    wide = changed(short, **{"model.set": ("depth=4", "width=256", "mlp_dim=1024")})
    assert not decided(wide).one_thread


class Whole(Objective):
    """Compares all images of a batch."""

    whole_batch = True

    def loss(self, model: Model, batch: Any, progress: Any) -> Any:
        raise NotImplementedError


class Eager(Whole):
    """Decides on the host."""

    capturable = False


class Phased(Whole):
    def phases(self, model: Model) -> tuple[Phase, ...]:
        del model
        own = Phase("model", self.loss, lambda name: name.startswith("model."))
        return own, Phase("own", self.loss, lambda name: name.startswith("objective."))


def test_a_whole_batch_is_not_accumulated(short: Recipe) -> None:
    with pytest.raises(ConfigError, match="compares all images of a batch: accumulate must be 1"):
        decided(changed(short, accumulate=2), objective=Whole())
    decided(short, objective=Whole())
    decided(changed(short, accumulate=2))


@pytest.mark.parametrize(
    ("fields", "objective", "resident", "size", "captured"),
    [
        ({}, None, True, 1, True),
        ({}, Whole(), True, 1, True),
        ({"accumulate": 2}, None, True, 1, False),
        ({"optimizer.sam": 0.05}, None, True, 1, True),
        ({"optimizer.name": "lion"}, None, True, 1, False),
        ({}, Eager(), True, 1, False),
        ({}, Phased(), True, 1, True),
        ({}, None, False, 1, False),
        ({}, None, True, 2, False),
    ],
    ids=["plain", "whole", "accumulated", "sam", "lion", "on the host", "phases", "workers", "processes"],
)
def test_what_a_gpu_captures(
    short: Recipe,
    monkeypatch: pytest.MonkeyPatch,
    fields: dict[str, Any],
    objective: Objective | None,
    resident: bool,
    size: int,
    captured: bool,
) -> None:
    """Decided without one: no tensor is moved to it."""
    monkeypatch.setattr(execution, "_resident_streams", lambda *_: {"train": object()} if resident else {})
    monkeypatch.setattr(execution, "_resident_parts", lambda *_: {})
    found = decided(changed(short, **fields), objective=objective, world=World(0, size, torch.device("cuda")))
    assert found.capture is captured
    assert found.on_device is (size == 1)
    assert (found.dtype, found.one_thread) == (torch.bfloat16, False)


def test_sharded_parameters_have_their_type_without_autocast(short: Recipe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution, "_resident_streams", lambda *_: {})
    found = decided(changed(short, precision="bf16", strategy="shard"))
    assert (found.strategy, found.dtype) == ("shard", torch.bfloat16)
    with found.autocast():
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype is torch.float32


def test_what_takes_long_is_said(short: Recipe) -> None:
    assert decided(short).sentences == ()
    assert "compiled with its first step" in decided(changed(short, compile=True)).sentences[0]


@pytest.mark.parametrize("workers", [0, 3])
def test_workers_are_as_many_as_were_asked_for(short: Recipe, workers: int) -> None:
    assert decided(changed(short, **{"data.workers": workers})).num_workers == workers

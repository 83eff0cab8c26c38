"""How long a run will take: what is measured for it changes nothing, and what is said of it."""

import dataclasses
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

from changing import changed
from short_runs import short, small_set
from vitlab.core.config import Choice
from vitlab.data.batch import Batch
from vitlab.objectives.contract import Metrics
from vitlab.training import estimate, session
from vitlab.training.recipe import Recipe
from vitlab.training.step import Stepper, Turn

__all__ = ["short", "small_set"]


@pytest.mark.parametrize("resident", [True, False])
def test_a_run_that_is_estimated_is_the_same_to_the_bit(
    short: Recipe, resident: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = changed(short, **{"data.resident": resident, "data.workers": 0})
    plain = session.train(recipe, tmp_path / "plain", device="cpu", show=False).folder
    assert "About" not in capsys.readouterr().err
    told = session.train(recipe, tmp_path / "told", device="cpu").folder
    assert "A few seconds for 24 steps on this CPU." in capsys.readouterr().err.splitlines()
    one, other = (load_file(run / "model" / "model.safetensors") for run in (plain, told))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_what_an_objective_remembers_of_a_step_is_not_of_the_one_that_was_timed(short: Recipe, tmp_path: Path) -> None:
    """DINO's centre follows what its teacher says in a step: of a part of a batch, or of the whole, as time allows."""
    plain = {"augmentation.mixup": 0.0, "augmentation.cutmix": 0.0, "optimizer.ema": None}
    options = {"num_small": 1, "small_side": 0.5, "out_dim": 8, "hidden": 8, "bottleneck": 4, "teacher_temp": 0.5}
    recipe = dataclasses.replace(changed(short, **plain), objective=Choice("dino", options))
    runs = [session.train(recipe, tmp_path / str(show), device="cpu", show=show).folder for show in (False, True)]
    one, other = (load_file(run / "model" / "model.safetensors") for run in runs)
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_the_pace_is_that_of_a_step(short: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of which every image takes 4 ms, before the run is stopped."""
    gradients, paces = Stepper.gradients, list[float]()

    def slow(self: Stepper, turn: Turn, batch: Batch) -> tuple[torch.Tensor, Metrics]:
        time.sleep(0.004 * len(batch))
        return gradients(self, turn, batch)

    def noted(_: object, pace: float) -> str:
        paces.append(pace)
        raise KeyboardInterrupt

    monkeypatch.setattr(Stepper, "gradients", slow)
    monkeypatch.setattr(estimate, "sentence", noted)
    with pytest.raises(KeyboardInterrupt):
        session.train(short, tmp_path / "run", device="cpu")
    assert 0.064 <= paces[0] < 3


class Run:
    """As much of a run as the sentence is made of: 480 images in batches of 16, val 48, test 96."""

    def __init__(self, recipe: Recipe, *, step: int = 0, total: int = 600) -> None:
        parts = SimpleNamespace(train=range(480), val=range(48), test=range(96))
        intervals, schedule = SimpleNamespace(evaluate=60), SimpleNamespace(total=total)
        self.plan = SimpleNamespace(recipe=recipe, parts=parts, intervals=intervals, schedule=schedule)
        self.state = SimpleNamespace(progress=SimpleNamespace(step=step))
        self.world = SimpleNamespace(device=torch.device("cpu"))


def test_what_is_said_counts_evaluations_and_names_a_shorter_run(short: Recipe) -> None:
    """600 steps are 20 epochs; ten evaluations of 48 images and the test part are 36 batches, forward: 12 steps."""
    run = Run(dataclasses.replace(short, batch_size=16))
    said = estimate.sentence(run, 1.0)  # pyright: ignore[reportArgumentType]
    assert said == "About 10 minutes for 600 steps on this CPU; --epochs 5 takes about 3 minutes."
    assert estimate.sentence(run, 0.1) == "About 60 s for 600 steps on this CPU."  # pyright: ignore[reportArgumentType]
    resumed = Run(dataclasses.replace(short, batch_size=16), step=240)
    said = estimate.sentence(resumed, 1.0)  # pyright: ignore[reportArgumentType]
    assert said == "About 6 minutes for 360 steps that are left on this CPU."

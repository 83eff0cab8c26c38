"""The range test: its rule on curves whose answer is known, and runs whose rate it chose."""

import json
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from scipy.ndimage import gaussian_filter1d

from changing import changed, lose_at, signal_at
from short_runs import short, small_set
from vitlab.core.config import Choice
from vitlab.core.errors import Error
from vitlab.data.augmentation import Augmentation
from vitlab.recipes import find_recipe
from vitlab.training import lr_range, session
from vitlab.training.lr_range import WIDTH, LrRange, LrRangeError, choose, risen, smoothed
from vitlab.training.recipe import Recipe

__all__ = ["short", "small_set"]


def test_the_mean_over_neighbours_is_a_gaussians() -> None:
    losses = np.random.default_rng(0).normal(size=80).tolist()
    inside = slice(30, 50)  # where no end is near
    expected = gaussian_filter1d(losses, WIDTH, truncate=6)
    np.testing.assert_allclose(smoothed(losses)[inside], expected[inside], rtol=0, atol=1e-6)


def test_a_tenth_of_the_rate_with_the_lowest_loss() -> None:
    """A parabola over log(lr) whose lowest point is at 0.03, with noise that is evened out."""
    lrs = np.geomspace(1e-6, 10, 80)
    noise = np.random.default_rng(0).normal(scale=0.01, size=80)
    losses = 1 + 0.1 * (np.log10(lrs) - np.log10(0.03)) ** 2 + noise
    assert choose(lrs.tolist(), losses.tolist()) == pytest.approx(0.003, rel=0.5)


def test_a_loss_that_did_not_fall_has_no_answer() -> None:
    lrs = np.geomspace(1e-6, 10, 80).tolist()
    with pytest.raises(LrRangeError, match="none of those up to 10 lowered the loss"):
        choose(lrs, [2.3 + 0.001 * (i % 2) + max(i - 60, 0) for i in range(80)])


@pytest.mark.parametrize(
    ("after", "ends"),
    [([1.0] * 20, False), ([2.0, 1.0] * 10, False), ([1.0] * 20 + [4.5], False), ([1.0] * 20 + [4.5] * 3, True)],
)
def test_the_test_ends_when_the_loss_is_far_above_its_lowest(after: list[float], ends: bool) -> None:
    assert risen([2.0] * 10 + after) is ends


def test_a_loss_that_is_not_finite_at_once_has_no_answer() -> None:
    with pytest.raises(LrRangeError, match="not finite in step 4"):
        choose([1e-6, 2e-6, 3e-6], [1.0, 1.0, 1.0])


def run(recipe: Recipe, folder: Path, *, find_lr: bool = True) -> Path:
    return session.train(recipe, folder, device="cpu", show=False, find_lr=find_lr).folder


def test_a_run_is_that_of_the_rate_that_was_found_also_when_it_is_lost_and_resumed(
    short: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = run(short, tmp_path / "auto")
    recipe = json.loads((found / "recipe.json").read_text())
    kept = json.loads((found / "lr_range.json").read_text())
    assert recipe["optimizer"]["lr"] == kept["lr"] != short.optimizer.lr
    assert len(kept["lrs"]) == len(kept["losses"]) > 10
    given = run(changed(short, **{"optimizer.lr": kept["lr"]}), tmp_path / "given", find_lr=False)
    assert json.loads((given / "recipe.json").read_text()) == recipe
    find = lr_range.find_lr

    def lost_later(*parts: Any, **arguments: Any) -> LrRange:
        answer = find(*parts, **arguments)
        lose_at(13, monkeypatch)
        return answer

    monkeypatch.setattr(lr_range, "find_lr", lost_later)
    with pytest.raises(KeyboardInterrupt):
        run(short, tmp_path / "lost")
    monkeypatch.undo()
    assert session.resume(tmp_path / "lost", device="cpu", show=False).step == 24
    one, *others = (load_file(folder / "model" / "model.safetensors") for folder in (found, given, tmp_path / "lost"))
    assert all(torch.equal(one[name], other[name]) for other in others for name in one)


def test_players_that_take_turns_have_no_one_loss_to_follow(short: Recipe, tmp_path: Path) -> None:
    few = {
        "data.labelled": 0.5,
        "objective": Choice("meta-pseudo-labels", {"ratio": 2}),
        "augmentation": Augmentation(),
    }
    with pytest.raises(LrRangeError, match="meta-pseudo-labels take turns with a loss each. Give one"):
        run(changed(short, **few), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_signal_during_the_test_is_a_sentence_and_leaves_nothing(
    short: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    signal_at(3, signal.SIGTERM, monkeypatch)
    with pytest.raises(Error, match="nothing is trained yet") as stopped:
        run(short, tmp_path / "run")
    assert stopped.value.status == 128 + signal.SIGTERM
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.parametrize(("optimizer", "known"), [("muon", 4e-3), ("adamw", 2e-3)])
def test_on_digits_the_answer_is_within_a_decade_of_the_known_one(optimizer: str, known: float, tmp_path: Path) -> None:
    fields = {"optimizer.name": optimizer, "schedule.total": "1 steps", "schedule.warmup": "0 steps"}
    folder = run(changed(find_recipe("digits"), **fields), tmp_path / "run")
    assert known / 10 <= json.loads((folder / "recipe.json").read_text())["optimizer"]["lr"] <= known * 10


@pytest.mark.slow
def test_on_digits_the_answer_trains_well(tmp_path: Path) -> None:
    """Ten epochs."""
    recipe = changed(find_recipe("digits"), **{"schedule.total": "10 epochs"})
    assert session.train(recipe, tmp_path / "run", device="cpu", find_lr=True).scores["test accuracy"] > 0.9

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
from vitlab import api
from vitlab.core.errors import Error
from vitlab.recipes import find_recipe
from vitlab.training import lr_range
from vitlab.training.lr_range import LrRange, LrRangeError, choose, smoothed
from vitlab.training.recipe import Recipe

__all__ = ["short", "small_set"]


def weights(run: Path) -> dict[str, torch.Tensor]:
    return load_file(run / "model" / "model.safetensors")


def test_the_mean_over_neighbours_is_a_gaussians() -> None:
    losses = np.random.default_rng(0).normal(size=40).tolist()
    inside = slice(15, 25)  # where no end is near
    np.testing.assert_allclose(smoothed(losses)[inside], gaussian_filter1d(losses, 3.0, truncate=6)[inside], rtol=1e-6)


def test_a_loss_that_is_not_finite_at_once_has_no_answer() -> None:
    with pytest.raises(LrRangeError, match="not finite in step 4"):
        choose([1e-6, 2e-6, 3e-6], [1.0, 1.0, 1.0])


def test_a_run_with_the_rate_that_was_found_is_the_run_that_found_it(short: Recipe, tmp_path: Path) -> None:
    found = api.train(short, out=tmp_path / "auto", device="cpu", find_lr=True).folder
    recipe = json.loads((found / "recipe.json").read_text())
    kept = json.loads((found / "lr_range.json").read_text())
    assert recipe["optimizer"]["lr"] == kept["lr"] != short.optimizer.lr
    assert len(kept["lrs"]) == len(kept["losses"]) > 10
    given = api.train(changed(short, **{"optimizer.lr": kept["lr"]}), out=tmp_path / "given", device="cpu").folder
    ours, theirs = weights(found), weights(given)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert json.loads((given / "recipe.json").read_text()) == recipe


def test_a_run_that_is_lost_and_resumed_is_the_whole_one(
    short: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = api.train(short, out=tmp_path / "whole", device="cpu", find_lr=True).folder
    find = lr_range.find_lr

    def found(*parts: Any, **arguments: Any) -> LrRange:
        try:
            return find(*parts, **arguments)
        finally:
            lose_at(13, monkeypatch)  # in the run itself

    monkeypatch.setattr(lr_range, "find_lr", found)
    with pytest.raises(KeyboardInterrupt):
        api.train(short, out=tmp_path / "lost", device="cpu", find_lr=True)
    monkeypatch.undo()
    assert api.resume(tmp_path / "lost", device="cpu").step == 24
    one, other = weights(whole), weights(tmp_path / "lost")
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_signal_during_the_test_is_a_sentence(short: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    signal_at(3, signal.SIGTERM, monkeypatch)
    with pytest.raises(Error, match="nothing is trained yet"):
        api.train(short, out=tmp_path / "run", device="cpu", find_lr=True)
    monkeypatch.undo()
    assert api.train(short, out=tmp_path / "run", device="cpu").step == 24


@pytest.mark.parametrize(("optimizer", "known"), [("muon", 4e-3), ("adamw", 2e-3)])
def test_on_digits_the_answer_is_within_a_decade_of_the_known_one(optimizer: str, known: float, tmp_path: Path) -> None:
    fields = {"optimizer.name": optimizer, "schedule.total": "1 steps", "schedule.warmup": "0 steps"}
    recipe = changed(find_recipe("digits"), **fields)
    run = api.train(recipe, out=tmp_path / "run", device="cpu", find_lr=True).folder
    lr = json.loads((run / "recipe.json").read_text())["optimizer"]["lr"]
    assert known / 10 <= lr <= known * 10

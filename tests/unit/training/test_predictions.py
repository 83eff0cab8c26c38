"""Pictures of predictions: written after evaluations, of the same images and patches, and drawn in the report."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

import vitlab
from changing import changed
from short_runs import short_recipe, write_small_set
from vitlab.core.config import Choice
from vitlab.objectives.shown import read_shown
from vitlab.training import session
from vitlab.training.recipe import Recipe

MAE = Choice("mae", {"decoder_width": 16, "decoder_depth": 1, "decoder_heads": 2})


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    plain = {"augmentation.mixup": 0.0, "augmentation.cutmix": 0.0, "optimizer.ema": 0.5, "keep": "last"}
    length = {"schedule.total": "6 steps", "evaluate_every": "4 steps", "checkpoint_every": "6 steps"}
    return changed(short_recipe(write_small_set(tmp_path / "small.npz")), **plain, **length)


@pytest.mark.parametrize("choice", [MAE, Choice("masked-patches")], ids=lambda choice: choice.name)
def test_a_run_keeps_its_last_pictures_and_its_report_shows_them(
    choice: Choice, recipe: Recipe, tmp_path: Path
) -> None:
    vitlab.train(dataclasses.replace(recipe, objective=choice), out=tmp_path / "run", device="cpu")
    found = read_shown(tmp_path / "run")
    assert found is not None
    shown, step = found
    assert step == 6
    assert len(shown.rows) == 6
    assert all(picture.shape == (8, 8, 3) for row in shown.rows for _, picture in row)
    page = (tmp_path / "run" / "report.html").read_text()
    assert shown.title in page
    assert page.count("<figcaption>the picture</figcaption>") == 6
    assert "at step 6" in page
    assert "collapsed" not in page
    assert "Right by the nearest training pictures" in page


def test_the_same_patches_each_time(recipe: Recipe, tmp_path: Path) -> None:
    seen: list[np.ndarray] = []
    for steps in ("4 steps", "6 steps"):
        made = changed(dataclasses.replace(recipe, objective=MAE), **{"schedule.total": steps})
        session.train(made, tmp_path / steps, device="cpu", show=False)
        found = read_shown(tmp_path / steps)
        assert found is not None
        seen.append(np.stack([dict(row)["what was left"] for row in found[0].rows]))
    assert np.array_equal(seen[0], seen[1])


def test_an_objective_without_pictures_writes_none(recipe: Recipe, tmp_path: Path) -> None:
    session.train(recipe, tmp_path / "run", device="cpu", show=False)
    assert not (tmp_path / "run" / "predictions").exists()


def test_pictures_that_are_damaged_cost_no_more_than_themselves(recipe: Recipe, tmp_path: Path) -> None:
    made = changed(dataclasses.replace(recipe, objective=MAE), **{"schedule.total": "4 steps"})
    session.train(made, tmp_path / "run", device="cpu", show=False)
    (tmp_path / "run" / "predictions" / "0-0.png").write_bytes(b"")
    vitlab.report(tmp_path / "run", device="cpu")
    page = (tmp_path / "run" / "report.html").read_text()
    assert "the pictures cannot be read" in page
    assert "What its features are like" in page

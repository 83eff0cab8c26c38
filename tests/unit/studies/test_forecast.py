"""What is left of a grid: FLOPs by hand, and time from what was measured where there is such."""

import dataclasses
from pathlib import Path

import pytest

from vitlab.core.record import write_json
from vitlab.models.counts import count_flops
from vitlab.models.create import create
from vitlab.recipes import find_recipe
from vitlab.recipes.scales import scale_recipe, with_model
from vitlab.studies import forecast as module
from vitlab.studies.cells import Measure
from vitlab.studies.context import Context
from vitlab.studies.forecast import AROUND, PER_IMAGE, Forecast, forecast
from vitlab.training.recipe import Recipe

RECIPE = scale_recipe("digits")  # 200 steps of 64 images
BESIDES = AROUND + 1797 * PER_IMAGE  # what a run takes besides its steps, for all digits


def left(folder: Path, *recipes: Recipe, done: dict[int, float] | None = None) -> Forecast:
    """The forecast of some runs, of which those in `done` ended with so many seconds per step."""
    study = Context(study="trial", scale="digits", folder=folder)
    cells = [(study.cell(f"{place}", recipe), recipe) for place, recipe in enumerate(recipes)]
    for place, seconds in (done or {}).items():
        write_json(Path(cells[place][0].folder, "result.json"), {"step": 200, "seconds": 200 * seconds})
    return forecast(((cell, recipe, study.opened(recipe)) for cell, recipe in cells), "cpu")


def test_flops_are_three_times_the_forward_passes(tmp_path: Path) -> None:
    one = count_flops(create("vit-digits", image_size=16, patch_size=4, width=32, mlp_dim=64, num_classes=10))
    found = left(tmp_path, RECIPE, dataclasses.replace(RECIPE, seed=1))
    assert (found.runs, found.done) == (2, 0)
    assert found.flops == 2 * 200 * 64 * 3 * one
    assert found.seconds is not None
    assert found.seconds > 2 * BESIDES


def test_time_is_that_of_runs_of_the_same_shape(tmp_path: Path) -> None:
    found = left(tmp_path, RECIPE, dataclasses.replace(RECIPE, seed=1), done={0: 0.25})
    assert (found.runs, found.done) == (2, 1)
    assert found.seconds == pytest.approx(200 * 0.25 + BESIDES)


def test_what_is_trained_and_not_measured_costs_no_training(tmp_path: Path) -> None:
    study = Context(study="trial", scale="digits", folder=tmp_path)
    cell = study.cell("a", RECIPE, measures=[Measure(protocol="knn")])
    write_json(Path(cell.folder, "result.json"), {"step": 200, "seconds": 5.0})
    found = forecast([(cell, RECIPE, study.opened(RECIPE))], "cpu")
    assert (found.runs, found.done, found.flops, found.seconds) == (1, 0, 0, 0)


def test_what_is_too_large_to_try_is_scaled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ENOUGH", {"cpu": 0.0})
    large = with_model(RECIPE, depth=8)
    assert left(tmp_path / "a", large).seconds is None
    small, big = (left(tmp_path / name, recipe).flops for name, recipe in (("b", RECIPE), ("c", large)))
    found = left(tmp_path / "d", RECIPE, large, done={0: 0.1})
    assert found.seconds == pytest.approx(200 * 0.1 * big / small + BESIDES)


def test_unlabelled_images_count(tmp_path: Path) -> None:
    """A student sees two for each labelled one, and its time is not the teacher's."""
    supervised, student = (find_recipe(f"{kind}-digits") for kind in ("few-labels", "noisy-student"))
    teacher = left(tmp_path / "a", supervised)
    assert left(tmp_path / "b", student).flops == 3 * teacher.flops
    both = left(tmp_path / "c", supervised, student, done={0: 100.0})
    assert both.seconds is not None
    assert both.seconds < 400 * 100.0


def test_runs_that_depend_on_others() -> None:
    some = Forecast(runs=2, done=0, flops=3e12, seconds=60.0, where="CPU")
    then = Forecast(runs=4, done=0, flops=1e12, seconds=20.0, where="CPU")
    said = (
        "a: 2 runs; about 60 s on this CPU, 3 teraFLOPs of training; then up to 4 more runs, about 20 s, 1 teraFLOPs."
    )
    assert some.sentence("a", then) == said


def test_sentences() -> None:
    some = Forecast(runs=12, done=2, flops=3e15, seconds=600.0, where="GPU")
    said = "grid: 12 runs, 2 of them done already; about 10 minutes on this GPU, 3 petaFLOPs of training."
    assert some.sentence("grid") == said
    assert "a time that cannot be told here" in dataclasses.replace(some, seconds=None).sentence("grid")
    assert dataclasses.replace(some, done=12).sentence("grid") == "grid: 12 runs, all done already."

"""Rounds of Noisy Student: who teaches whom, and that a lost chain resumes where it was."""

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from changing import before_step, changed
from short_runs import write_small_set
from studied import Inventing
from vitlab.recipes import few_labels
from vitlab.recipes.scales import config_of
from vitlab.studies import STUDIES, executors
from vitlab.studies.running import run_study
from vitlab.training.recipe import read_recipe
from vitlab.training.step import Stepper

STUDY = STUDIES.find("noisy-student")
DIGITS = {name: build for name, build in few_labels.RECIPES.items() if name.endswith("digits")}


def made(folder: Path, options: dict[str, Any], **changes: Any) -> Any:
    return run_study(STUDY, options, **{"scale": "digits", "folder": folder, "seeds": 1, "device": "cpu", **changes})


@pytest.fixture
def inventing(monkeypatch: pytest.MonkeyPatch) -> Inventing:
    executor = Inventing()
    monkeypatch.setitem(executors.EXECUTORS, "inventing", lambda: executor)
    return executor


def test_each_student_is_the_next_ones_teacher(tmp_path: Path, inventing: Inventing) -> None:
    options = {"rounds": 2, "labelled": 0.05, "labels": "hard", "quota": 30, "student": ("depth=6",)}
    result = made(tmp_path, options, seeds=2, executor="inventing")
    cells = {cell.name: cell for cell in inventing.cells}
    assert [row[0] for row in result.tables[0].rows] == [
        "supervised",
        "supervised as students are",
        "round 1",
        "round 2",
    ]
    for seed in range(2):
        first, second = (cells[f"round {number}, seed {seed}"].recipe for number in (1, 2))
        assert first["objective"]["teacher"] == cells[f"supervised, seed {seed}"].folder
        assert second["objective"]["teacher"] == cells[f"round 1, seed {seed}"].folder
        for student in (first, second):
            assert (student["seed"], student["data"]["labelled"]) == (seed, 0.05)
            assert (student["objective"]["labels"], student["objective"]["quota"]) == ("hard", 30)
            assert student["model"]["set"][-1] == "depth=6"
        alone = cells[f"supervised as students are, seed {seed}"].recipe
        assert (alone["model"], alone["augmentation"]) == (first["model"], first["augmentation"])
        assert alone["objective"]["name"] == "supervised"
        assert cells[f"supervised, seed {seed}"].recipe["model"] != first["model"]
    assert "labels for 5.0% of train" in result.tables[0].title


def test_on_cifar_the_scales_own_model_is_trained_shortly(tmp_path: Path, inventing: Inventing) -> None:
    """Six layers of width 192, as the other studies have, and nothing that has to be compiled anew for each run."""
    rng, labels = np.random.default_rng(0), np.arange(400) % 2
    images = rng.integers(0, 256, (400, 32, 32, 3), dtype=np.uint8)
    np.savez(tmp_path / "small.npz", x_train=images, y_train=labels, x_test=images[:20], y_test=labels[:20])
    made(tmp_path / "out", {"rounds": 1}, scale="cifar", data=str(tmp_path / "small.npz"), executor="inventing")
    recipes = [read_recipe(cell.recipe, where=cell.name) for cell in inventing.cells]
    assert [recipe.objective.name for recipe in recipes] == ["supervised", "noisy-student"]
    for recipe in recipes:
        config = config_of(recipe)
        assert (config.depth, config.width, config.patch_size, config.rotary) == (6, 192, 4, True)
        assert (recipe.compile, recipe.schedule.total, recipe.data.labelled) == (False, "1500 steps", 0.01)


def test_a_teacher_that_failed_has_no_students(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    executor = Inventing(["supervised, seed 0"])
    monkeypatch.setitem(executors.EXECUTORS, "inventing", lambda: executor)
    result = made(tmp_path, {"rounds": 1}, seeds=2, executor="inventing")
    assert set(result.failed) == {"supervised, seed 0"}
    assert "round 1, seed 0" not in {cell.name for cell in executor.cells}
    assert "round 1, seed 1" in {cell.name for cell in executor.cells}


def test_a_lost_chain_resumes_within_a_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the bit, and without training the teacher again: 6 steps each, lost at the fifth of the student's."""
    small = write_small_set(tmp_path / "small.npz")
    short = {"schedule.total": "6 steps", "schedule.warmup": "1 step", "checkpoint_every": "2 steps"}
    tiny = {"model.set": ["depth=1"], "data.labelled": 0.2, "evaluate_every": "6 steps"}
    cut = functools.partial(changed, **short, **tiny)
    recipes = {name: functools.partial(lambda build: cut(build()), build) for name, build in DIGITS.items()}
    monkeypatch.setattr("vitlab.recipes.RECIPES", recipes)
    options, steps = {"rounds": 1, "threshold": 0.2}, list[int]()
    made(tmp_path / "whole", options, data=str(small))

    def losing(stepper: Stepper) -> None:
        del stepper
        steps.append(4)
        if len(steps) == 3:  # after both runs with labels alone
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        before_step(4, losing, patch, Stepper)
        with pytest.raises(KeyboardInterrupt):
            made(tmp_path / "lost", options, data=str(small))
    with monkeypatch.context() as patch:
        for step in range(6):
            before_step(step, lambda _, step=step: steps.append(step), patch, Stepper)
        assert not made(tmp_path / "lost", options, data=str(small)).failed
    assert steps == [4, 4, 4, 4, 5]
    one, other = (
        load_file(next((tmp_path / name / "runs").glob("round-1*")) / "model" / "model.safetensors")
        for name in ("whole", "lost")
    )
    assert all(np.array_equal(one[name], other[name]) for name in one)

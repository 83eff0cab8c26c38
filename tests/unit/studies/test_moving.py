"""A study in another place: nothing is trained again, and a run that was lost resumes where it was."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from changing import before_step, changed
from short_runs import write_small_set
from vitlab.core.record import read_json
from vitlab.recipes.scales import scale_recipe, tuned
from vitlab.studies.context import Context, Trained
from vitlab.studies.contract import Study, StudyResult
from vitlab.studies.moving import replaced
from vitlab.studies.running import run_study
from vitlab.training.recipe import Recipe
from vitlab.training.step import Stepper

SHORT = {"schedule.total": "4 steps", "schedule.warmup": "0 steps", "checkpoint_every": "1 step", "batch_size": 8}


@dataclass(frozen=True, kw_only=True)
class Options:
    """Two stages."""


def two_stages(context: Context, _: Options) -> StudyResult:
    """A run on data in the study's own folder, and one that starts from its weights."""
    data = context.folder / "data.npz"
    if not data.exists():
        write_small_set(data)
    recipe = changed(scale_recipe("digits"), **SHORT, **{"data.source": str(data), "model.set": ["depth=1"]})

    def after(run: Trained) -> Recipe:
        return changed(tuned(run.recipe, str(run.folder), steps=4, lr=0.01), checkpoint_every="1 step")

    found = context.follow(context.over_seeds({"first": recipe}), after, then="then")
    return StudyResult(tables=(), findings=[row for row, runs in found.items() for _ in runs])


STUDY = Study(name="stages", summary="two stages", options=Options, run=two_stages)


def steps_made(
    folder: Path, patch: pytest.MonkeyPatch, happens: Callable[[list[int]], None] | None = None
) -> list[int]:
    """The steps that the study makes in a folder; `happens` is told them before each."""
    steps: list[int] = []

    def told(step: int) -> None:
        steps.append(step)
        if happens is not None:
            happens(steps)

    with patch.context() as own:
        for step in range(4):
            before_step(step, lambda _, step=step: told(step), own, Stepper)
        result = run_study(STUDY, {}, scale="digits", folder=folder, seeds=1, device="cpu", say=lambda _: None)
    assert result.findings == ["first"]
    assert not result.failed
    return steps


@pytest.mark.parametrize("move", [shutil.move, shutil.copytree])
def test_nothing_is_trained_again(
    move: Callable[[Path, Path], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = tmp_path / "old", tmp_path / "elsewhere" / "new"
    assert steps_made(old, monkeypatch) == [0, 1, 2, 3] * 2
    new.parent.mkdir()
    move(old, new)
    assert steps_made(new, monkeypatch) == []
    records = [read_json(path) for name in ("recipe", "environment") for path in new.glob(f"runs/*/{name}.json")]
    assert len(records) == 4
    assert not [record for record in records if str(old) in str(record)]
    recipe = read_json(next(new.glob("runs/first-seed-0-then-*/recipe.json")))
    assert Path(recipe["model"]["source"]).parent == new / "runs"
    assert recipe["data"]["source"] == str(new / "data.npz")


def test_a_lost_run_resumes_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def lose(steps: list[int]) -> None:
        if len(steps) == 7:  # before the third of the second run
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        steps_made(tmp_path / "old", monkeypatch, lose)
    shutil.move(tmp_path / "old", tmp_path / "new")
    assert steps_made(tmp_path / "new", monkeypatch) == [2, 3]


def test_weights_may_be_deleted_when_all_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps_made(tmp_path, monkeypatch)
    for model in list(tmp_path.glob("runs/*/model")):
        shutil.rmtree(model)
    assert steps_made(tmp_path, monkeypatch) == []


def test_only_paths_below_the_folder_are_others() -> None:
    kept = {"a": ["/old/x", "/older/x", "/old", 3], "b": {"c": "see /old/x", "d": None}}
    assert replaced(kept, "/old", "/new") == {**kept, "a": ["/new/x", "/older/x", "/old", 3]}

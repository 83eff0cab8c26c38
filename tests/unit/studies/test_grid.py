"""A grid's folder: what is kept of it, and what it refuses. The runs are pretended; tests/train has real ones."""

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from vitlab.core.config import to_dict
from vitlab.core.record import write_json
from vitlab.studies.grid import Event, Grid, GridError, Tally, open_grid
from vitlab.training.hooks import DivergedError
from vitlab.training.recipe import Recipe
from vitlab.training.run import RunError

RECIPES = {name: Recipe(name=name) for name in ("a", "b", "c")}


class Pretended:
    """Leaves what a run leaves; some are lost before their end, and some diverge."""

    def __init__(self, *, lost: str = "", diverged: str = "") -> None:
        self.lost, self.diverged = lost, diverged
        self.made: list[str] = []

    def __call__(self, recipe: Recipe, folder: Path) -> Mapping[str, Any]:
        self.made.append(recipe.name)
        write_json(folder / "recipe.json", to_dict(recipe))
        for part in ("checkpoints", "model"):
            (folder / part).mkdir(exist_ok=True)
        if recipe.name == self.lost:
            raise KeyboardInterrupt
        if recipe.name == self.diverged:
            raise DivergedError("Loss or gradients were not finite.")
        write_json(folder / "result.json", {"best_score": len(self.made)})
        return {"best_score": len(self.made)}


def run_all(grid: Grid) -> list[Mapping[str, Any] | None]:
    return [grid.run(f"runs/{name}", recipe) for name, recipe in RECIPES.items()]


def test_a_lost_grid_goes_on(tmp_path: Path) -> None:
    folder, events = tmp_path / "grid", list[Event]()
    first = Pretended(lost="b")
    with pytest.raises(KeyboardInterrupt), open_grid(folder, {"lrs": (1, 2)}, train=first, tally=Tally(3)) as grid:
        run_all(grid)
    assert first.made == ["a", "b"]
    second, counts = Pretended(), list[tuple[int, int]]()
    tally = Tally(3, lambda done, total: counts.append((done, total)), events.append)
    with open_grid(folder, {"lrs": (1, 2)}, train=second, tally=tally) as grid:
        assert run_all(grid) == [{"best_score": 1}, {"best_score": 1}, {"best_score": 2}]
    assert second.made == ["b", "c"]
    assert [(event.run, event.state, event.done) for event in events] == [
        ("grid/runs/a", "kept", 1),
        ("grid/runs/b", "resumes", 1),
        ("grid/runs/b", "ended", 2),
        ("grid/runs/c", "starts", 2),
        ("grid/runs/c", "ended", 3),
    ]
    assert counts == [(1, 3), (1, 3), (2, 3), (2, 3), (3, 3)]


def test_only_what_is_wanted_stays(tmp_path: Path) -> None:
    with open_grid(tmp_path, {}, train=Pretended(), tally=Tally(2)) as grid:
        grid.run("a", RECIPES["a"], keep_model=True)
        grid.run("b", RECIPES["b"])
        (tmp_path / "b" / "checkpoints").mkdir()  # as if the grid had been lost before it was tidied
        grid.run("b", RECIPES["b"])
    assert {path.name for path in (tmp_path / "a").iterdir()} == {"recipe.json", "result.json", "model"}
    assert {path.name for path in (tmp_path / "b").iterdir()} == {"recipe.json", "result.json"}


def test_a_run_may_diverge_and_is_not_tried_again(tmp_path: Path) -> None:
    train = Pretended(diverged="a")
    with open_grid(tmp_path, {}, train=train, tally=Tally(2)) as grid:
        assert grid.run("a", RECIPES["a"], may_diverge=True) is None
        assert grid.run("a", RECIPES["a"], may_diverge=True) is None
        with pytest.raises(DivergedError):
            grid.run("another", RECIPES["a"])
    assert train.made == ["a", "a"]
    assert grid.tally.done == 2


def test_another_plan_is_refused(tmp_path: Path) -> None:
    plan = {"steps": 5, "lrs": (0.1, 0.2), "augmentation": {"crop": "paper", "flip": 0.5}}
    with open_grid(tmp_path, plan, train=Pretended(), tally=Tally(0)):
        pass
    assert json.loads((tmp_path / "grid.json").read_text())["lrs"] == [0.1, 0.2]
    other = {**plan, "steps": 6, "augmentation": {"crop": "paper", "flip": 0.0}}
    expected = r"steps: 5, now 6; augmentation\.flip: 0\.5, now 0\.0\)"
    with (
        pytest.raises(GridError, match=expected),
        open_grid(tmp_path, other, train=Pretended(), tally=Tally(0)),
    ):
        pass
    with open_grid(tmp_path, plan, train=Pretended(), tally=Tally(0)):
        pass  # the same plan is resumed


def test_a_run_of_another_recipe_does_not_count(tmp_path: Path) -> None:
    with open_grid(tmp_path, {}, train=Pretended(), tally=Tally(2)) as grid:
        grid.run("a", RECIPES["a"])
        with pytest.raises(GridError, match="was made by another recipe .*name: 'a', now 'b'"):
            grid.run("a", RECIPES["b"])
        (tmp_path / "a" / "recipe.json").unlink()
        with pytest.raises(GridError, match=r"no recipe\.json"):
            grid.run("a", RECIPES["a"])


def test_it_is_not_started_twice(tmp_path: Path) -> None:
    with (
        open_grid(tmp_path, {}, train=Pretended(), tally=Tally(0)),
        pytest.raises(RunError, match="under way"),
        open_grid(tmp_path, {}, train=Pretended(), tally=Tally(0)),
    ):
        pass


def test_a_folder_with_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "photo.jpg").touch()
    for folder, message in ((tmp_path, r"holds something else \('photo.jpg'\)"), (tmp_path / "photo.jpg", "is a file")):
        with pytest.raises(GridError, match=message), open_grid(folder, {}, train=Pretended(), tally=Tally(0)):
            pass


def test_several_processes_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(GridError, match="one process"), open_grid(tmp_path, {}, train=Pretended(), tally=Tally(0)):
        pass


def test_what_every_run_says_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log, made = logging.getLogger("vitlab"), Pretended()

    def talkative(recipe: Recipe, folder: Path) -> Mapping[str, Any]:
        log.warning("The head is %s.", "fresh")
        log.warning("This is %s.", recipe.name)
        return made(recipe, folder)

    with open_grid(tmp_path / "grid", {}, train=talkative, tally=Tally(3)) as grid:
        run_all(grid)
    log.warning("The head is fresh.")
    assert caplog.messages == ["The head is fresh.", "This is a.", "This is b.", "This is c.", "The head is fresh."]

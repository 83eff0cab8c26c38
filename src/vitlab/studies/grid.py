"""A grid of training runs in one folder: ended runs are kept, a lost one is resumed, and no other plan is mixed in."""

import contextlib
import json
import logging
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias, final

from vitlab.core.config import to_dict
from vitlab.core.errors import Error
from vitlab.core.record import read_json, write_json
from vitlab.training import session
from vitlab.training.hooks import DivergedError
from vitlab.training.plan import Given
from vitlab.training.recipe import Recipe
from vitlab.training.run import differences, locked

log = logging.getLogger("vitlab")

PLAN, RESULT, DIVERGED = "grid.json", "result.json", "diverged.json"
MOST_DIFFERENCES = 4

State: TypeAlias = Literal["kept", "starts", "resumes", "ended", "diverged"]
Train: TypeAlias = Callable[[Recipe, Path], Mapping[str, Any]]  # makes or ends the run of a folder; gives its result


class GridError(Error):
    """A grid's folder that cannot be used as asked."""


class GridStopped(KeyboardInterrupt):
    """A signal ended the run under way in order; the grid resumes there when it is started again."""

    def __init__(self, status: int) -> None:
        super().__init__()
        self.status = status  # for the exit of a command: 130 after SIGINT, 143 after SIGTERM


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something that became of a run; `done` counts the runs that are over, this one too where it is."""

    run: str
    state: State
    done: int
    total: int


Progress: TypeAlias = Callable[[int, int], None]  # runs that are over, and all
Watch: TypeAlias = Callable[[Event], None]


@final
class Tally:
    """How many runs of how many are over, told to whoever listens; one may serve several grids."""

    def __init__(self, total: int, progress: Progress | None = None, watch: Watch | None = None) -> None:
        self.done, self.total, self.progress, self.watch = 0, total, progress, watch

    def tell(self, run: str, state: State) -> None:
        self.done += state in ("kept", "ended", "diverged")
        if self.progress is not None:
            self.progress(self.done, self.total)
        if self.watch is not None:
            self.watch(Event(run=run, state=state, done=self.done, total=self.total))


@final
class Grid:
    """The runs of one folder. `open_grid` gives it out, with the folder locked and its plan checked."""

    def __init__(self, folder: Path, train: Train, tally: Tally) -> None:
        self.folder, self.train, self.tally = folder, train, tally

    def run(
        self, name: str, recipe: Recipe, *, keep_model: bool = False, may_diverge: bool = False
    ) -> Mapping[str, Any] | None:
        """The result of the run in the folder `name`, made now or kept; None for one that diverged and may.

        Of an ended run the checkpoints are deleted, and the weights too unless they are to be kept.
        """
        folder = self.folder / name
        said = str(folder.relative_to(self.folder.parent))
        if (folder / RESULT).exists() or (folder / DIVERGED).exists():
            _same(folder, recipe)
            self.tally.tell(said, "kept")
            _tidy(folder, keep_model=keep_model)  # a grid may have been lost just before it did so
            return read_json(folder / RESULT) if (folder / RESULT).exists() else None
        self.tally.tell(said, "resumes" if (folder / "recipe.json").exists() else "starts")
        try:
            result = self.train(recipe, folder)
        except DivergedError as error:
            if not may_diverge:
                raise
            write_json(folder / DIVERGED, {"reason": str(error)})
            self.tally.tell(said, "diverged")
            _tidy(folder, keep_model=False)
            return None
        self.tally.tell(said, "ended")
        _tidy(folder, keep_model=keep_model)
        return result


@contextlib.contextmanager
def open_grid(folder: Path, plan: Mapping[str, Any], *, train: Train, tally: Tally) -> Iterator[Grid]:
    """The grid of a folder, new or to resume; for this process alone, and for this plan alone."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise GridError("A grid of runs is made by one process: start it without torchrun.")
    _holds_nothing_else(folder)
    with locked(folder):
        if not (folder / PLAN).exists():
            write_json(folder / PLAN, plan)
        elif changed := differences(read_json(folder / PLAN), json.loads(json.dumps(plan))):
            raise GridError(
                f"The grid in {folder} was planned otherwise ({_some(changed)}): ask for it as it was, or give another"
                " folder."
            )
        with _said_once(folder):
            yield Grid(folder, train, tally)


@contextlib.contextmanager
def _said_once(folder: Path) -> Iterator[None]:
    """What is said of each run alike, that its head is a fresh one, is said of the first."""
    said: set[str] = set()

    def is_new(record: logging.LogRecord) -> bool:
        text = re.sub(rf"{re.escape(str(folder))}/\S*", "", record.getMessage())  # of the grid's own models too
        return text not in said and not said.add(text)

    log.addFilter(is_new)
    try:
        yield
    finally:
        log.removeFilter(is_new)


def trainer(*, device: str | None = None, show: bool = False, given: Given | None = None) -> Train:
    """Runs through vitlab's own training, from the last checkpoint where there is one."""

    def train(recipe: Recipe, folder: Path) -> Mapping[str, Any]:
        if (folder / "recipe.json").exists():
            outcome = session.resume(folder, recipe=recipe, device=device, show=show, given=given)
        else:
            outcome = session.train(recipe, folder, device=device, show=show, given=given)
        if outcome.reason == "signal":
            raise GridStopped(outcome.status)
        return read_json(folder / RESULT)

    return train


def _holds_nothing_else(folder: Path) -> None:
    if (folder / PLAN).exists() or not folder.exists():
        return
    if not folder.is_dir():
        raise GridError(f"{folder} is a file: give a folder for the grid's runs.")
    if others := sorted(path.name for path in folder.iterdir() if not path.name.startswith(".")):
        raise GridError(
            f"{folder} holds something else ('{others[0]}') and no {PLAN}: give a new folder, or that of a grid."
        )


def _some(changed: list[str]) -> str:
    more = len(changed) - MOST_DIFFERENCES
    return "; ".join(changed[:MOST_DIFFERENCES]) + (f"; and {more} more" if more > 0 else "")


def _same(folder: Path, recipe: Recipe) -> None:
    """An ended run counts only where it is the one that is asked for."""
    if not (folder / "recipe.json").exists():
        raise GridError(f"{folder} has a result but no recipe.json: delete the folder, and it is made again.")
    if changed := differences(read_json(folder / "recipe.json"), to_dict(recipe), free=("compile",)):
        raise GridError(f"{folder} was made by another recipe ({_some(changed)}): delete it, and it is made again.")


def _tidy(folder: Path, *, keep_model: bool) -> None:
    for name in ("checkpoints",) if keep_model else ("checkpoints", "model"):
        if (folder / name).is_dir():
            shutil.rmtree(folder / name)

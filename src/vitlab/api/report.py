"""A run's report, made again."""

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from vitlab.api.given import data_name, source_name
from vitlab.core.devices import choose_device
from vitlab.core.errors import Error
from vitlab.core.registry import is_file_reference, permit
from vitlab.data.decoding import StrPath

if TYPE_CHECKING:
    from vitlab.data.contract import DataSet
    from vitlab.reporting.make import Plan, Report
    from vitlab.reporting.purpose import Purpose


def report(
    run: StrPath,
    *,
    task: str | None = None,
    data: StrPath | None = None,
    images: int | None = None,
    device: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> "Report":
    """Write a run's `report.html` again, also while it is running; `images` held-out pictures are looked at.

    By default as many as take some seconds. What cannot be had, as where the data is gone, is said in the report.
    `task` is the run's, unless it is in a file ('mine.py:NAME') and must be given again; so is `data`, unless it was
    moved.
    """
    from vitlab.reporting.make import make_report

    folder, where, source = Path(run), choose_device(device), data_name(data)
    begun = (folder / "recipe.json").is_file()
    purpose = _purpose(folder, task) if begun else None
    plan = functools.cache(lambda: _plan(folder, source))
    if begun and source is not None:
        _check_data(folder, source, plan().dataset)
    return make_report(folder, plan, purpose=purpose, images=images, device=where, progress=progress)


def _check_data(folder: Path, data: str, dataset: "DataSet") -> None:
    """Refuse data that is named and is not the run's, before a report that is there is written over without it."""
    from vitlab.reporting.record import read_run

    if read_run(folder).data.get("fingerprint") not in (None, dataset.fingerprint):
        raise Error(f"{data} is not what {folder} was trained on, or it changed since: give that data, or none.")


def _purpose(folder: Path, task: str | None) -> "Purpose":
    """What a run's model is for, by its recipe or by the name of the same task in this call."""
    from vitlab.reporting.purpose import Purpose
    from vitlab.tasks import TASKS
    from vitlab.training.recipe import chosen
    from vitlab.training.session import recipe_of

    recipe = recipe_of(folder)
    permit(*([] if task is None else [task]))
    if task not in (None, recipe.task.name) and not any(map(is_file_reference, (task, recipe.task.name))):
        raise Error(f"{folder} was trained for {recipe.task.name}, not for {task}.")
    choice = dataclasses.replace(recipe.task, name=task or recipe.task.name)
    kind, options = chosen(TASKS, choice, where="task")
    return Purpose(task=kind.build(options), name=choice.name, summary=kind.summary, loss=recipe.loss)


def _plan(folder: Path, data: str | None) -> "Plan":
    """A run's data, divided as training had it, and its number of steps; `data` is where it is now."""
    from vitlab.reporting.make import Plan
    from vitlab.training.plan import open_parts, planned_steps
    from vitlab.training.session import recipe_of

    recipe = recipe_of(folder)
    if data is not None:
        permit(data)
        recipe = dataclasses.replace(recipe, data=dataclasses.replace(recipe.data, source=source_name(data, "data")))
    dataset = open_parts(recipe)
    return Plan(dataset, *planned_steps(recipe, dataset))

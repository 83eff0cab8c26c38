"""What an evaluation needs of training: its processes, the data as a run divided it, what a recipe plans."""

import contextlib
import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path

from vitlab.core.errors import Error
from vitlab.core.record import read_json
from vitlab.data.contract import DataSet
from vitlab.data.open import open_data
from vitlab.data.sources.arranged import with_all
from vitlab.data.sources.holdout import divide_by_class
from vitlab.evaluation.request import Host, Process
from vitlab.recipes import find_recipe
from vitlab.training.distribution import join, share_of
from vitlab.training.durations import Pace
from vitlab.training.plan import divide, open_parts
from vitlab.training.recipe import DataChoice
from vitlab.training.schedules import resolve
from vitlab.training.session import recipe_of


@contextlib.contextmanager
def _joined(device: str | None) -> Iterator[Process]:
    with join(device) as world:
        yield Process(world.device, share_of(world))


def _open(data: str, run_folder: str | None) -> DataSet:
    """The data as the run divided it that was trained on it; without one, a set without parts is divided by class."""
    seen = None if run_folder is None else _open_seen(data, Path(run_folder))
    if seen is not None:
        return seen
    dataset = open_data(data, val_fraction=0)
    return divide_by_class(dataset, DataChoice.val_fraction) if dataset.undivided else dataset


def _open_unseen(data: str, run_folder: str | None) -> DataSet | None:
    """The data with a part `all`, where its source has no parts and the run, if there is one, had other data."""
    if run_folder is not None and _open_seen(data, Path(run_folder)) is not None:
        return None
    dataset = open_data(data, val_fraction=0)
    if not dataset.undivided:
        return None
    note = (
        f"All {len(dataset.splits['train']):,} images are measured, since no record says that the model was trained on"
        " them; if it was, give --split val."
    )
    return with_all(dataclasses.replace(dataset, notes=(*dataset.notes, *([] if run_folder else [note]))))


def _open_seen(data: str, run_folder: Path) -> DataSet | None:
    """The data as a run divided it, if it was trained on it, there or at another place."""
    recipe = recipe_of(run_folder)
    if os.path.realpath(os.path.expanduser(recipe.data.source)) == os.path.realpath(os.path.expanduser(data)):  # noqa: PTH111
        return open_parts(recipe)
    record = run_folder / "data.json"
    with contextlib.suppress(Error):  # what the run's options do not fit is other data
        moved = open_parts(dataclasses.replace(recipe, data=dataclasses.replace(recipe.data, source=data)))
        if record.exists() and read_json(record).get("fingerprint") == moved.fingerprint:
            return moved
    return None


def _planned_images(recipe_name: str, train_images: int | None) -> int:
    """How many images training by a recipe sees; its data is opened unless its size is given."""
    recipe = find_recipe(recipe_name)
    size = len(divide(open_parts(recipe)).train) if train_images is None else train_images
    return resolve(recipe.schedule, Pace(recipe.batch_size, size)).total * recipe.batch_size


HOST = Host(join=_joined, open=_open, open_unseen=_open_unseen, planned_images=_planned_images)

"""What an evaluation needs of training: its processes, the data as a run divided it, what a recipe plans."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from vitlab.data.contract import DataSet
from vitlab.data.open import open_data
from vitlab.evaluation.features import Share
from vitlab.evaluation.request import Host, Process
from vitlab.recipes import find_recipe
from vitlab.training.distribution import World, join
from vitlab.training.durations import Pace
from vitlab.training.plan import divide, open_parts
from vitlab.training.schedules import resolve
from vitlab.training.session import recipe_of


def share_of(world: World) -> Share:
    """This process's part of an evaluation, and how the parts of all are put together."""

    def gather(part: Tensor) -> list[Tensor]:
        whole = part.to(torch.uint8) if part.dtype is torch.bool else part  # not every backend sends booleans
        parts = [torch.empty_like(whole) for _ in range(world.size)]
        torch.distributed.all_gather(parts, whole)
        return [item.to(part.dtype) for item in parts]

    return Share() if world.size == 1 else Share(world.rank, world.size, gather)


@contextlib.contextmanager
def _joined(device: str | None) -> Iterator[Process]:
    with join(device) as world:
        yield Process(world.device, share_of(world))


def _open(data: str, run_folder: str | None) -> DataSet:
    """The data; where a run was trained on it, with the part held out that it held out."""
    if run_folder is not None:
        recipe = recipe_of(Path(run_folder))
        if os.path.realpath(os.path.expanduser(recipe.data.source)) == os.path.realpath(os.path.expanduser(data)):  # noqa: PTH111
            return open_parts(recipe)
    return open_data(data)


def _planned_images(recipe_name: str, train_images: int | None) -> int:
    """How many images training by a recipe sees; its data is opened unless its size is given."""
    recipe = find_recipe(recipe_name)
    size = len(divide(open_parts(recipe)).train) if train_images is None else train_images
    return resolve(recipe.schedule, Pace(recipe.batch_size, size)).total * recipe.batch_size


HOST = Host(join=_joined, open=_open, planned_images=_planned_images)

"""Where the cells of a study are computed: here, one after the other, or wherever else an executor takes them."""

import gc
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, final

import torch

from vitlab.core.errors import unknown_name
from vitlab.studies import ray_executor
from vitlab.studies.cells import Cell, attempt

Outcome: TypeAlias = Mapping[str, Any]  # what `attempt` gives


class Executor(Protocol):
    """Takes cells, which are plain data, to where `attempt(cell)` runs, and gives each outcome once, in any order.

    A `KeyboardInterrupt` ends it in order: what runs is stopped, and the same call resumes it.
    """

    def map(self, cells: Sequence[Cell]) -> Iterator[tuple[Cell, Outcome]]: ...


@final
class Here:
    """In this process, in order."""

    def map(self, cells: Sequence[Cell]) -> Iterator[tuple[Cell, Outcome]]:
        for cell in cells:
            outcome = attempt(cell)
            # parts of a run refer to each other, and its memory on a GPU would be kept from the next and from others
            gc.collect()
            if torch.cuda.is_initialized():
                torch.cuda.empty_cache()
            yield cell, outcome


EXECUTORS: dict[str, Callable[[], Executor]] = {"here": Here}


def find_executor(name: str, say: Callable[[str], None] | None = None) -> Executor:
    """The executor of that name, or on a Ray cluster; `say` is told what becomes of runs there."""
    if name in EXECUTORS:
        return EXECUTORS[name]()
    if re.match(rf"{ray_executor.NAME}\b", name):
        return ray_executor.parse_ray(name, say)
    known = (*EXECUTORS, ray_executor.NAME)
    raise unknown_name("executor", name, known, f" There are {', '.join(EXECUTORS)}, {ray_executor.FORM}.")

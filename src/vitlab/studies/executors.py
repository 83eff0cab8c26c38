"""Where the cells of a study are computed: here, one after the other, or wherever else an executor takes them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, final

from vitlab.core.errors import unknown_name
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
            yield cell, attempt(cell)


EXECUTORS: dict[str, Callable[[], Executor]] = {"here": Here}


def find_executor(name: str) -> Executor:
    """The executor of that name."""
    if name not in EXECUTORS:
        raise unknown_name("executor", name, EXECUTORS, f" There are {', '.join(EXECUTORS)}.")
    return EXECUTORS[name]()

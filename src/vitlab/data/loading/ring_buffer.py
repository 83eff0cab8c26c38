"""Batches in shared memory that take turns, filled ahead by worker processes or on demand by this one."""

import collections
import logging
from collections.abc import Iterable, Iterator
from typing import Self, final

import numpy as np
import torch
from torch import Tensor

from vitlab.core.errors import ConfigError, DataError, Error
from vitlab.core.words import one_line
from vitlab.data.contract import Array
from vitlab.data.loading.pinned_memory import Pinned
from vitlab.data.loading.shared_memory import SharedArray, SharedObject
from vitlab.data.loading.workers import Damaged, Reader, Slots, Workers, worker_context

log = logging.getLogger("vitlab.data")

AHEAD = 2  # batches that are read while another one is used
TASK, MAX_TASKS = 16, 1024  # images per task, if a batch has enough for all workers, and tasks that a pipe has to hold
NAMED = 20  # damaged images that a message lists
SETTING = "data.max_unreadable of a recipe"  # how many there may be in training


@final
class Damage:
    """The images that could not be read; too many of them are an error.

    Allowed are `share` of the split and at least ten, but never more than half, and none where it is 0; `setting` is
    what users call it.
    """

    def __init__(self, num: int, share: float, setting: str = "") -> None:
        self.setting = f" ({setting})" if setting else ""
        self.num, self.limit = num, min(max(int(share * num), 10), num // 2) if share else 0
        self.found: dict[int, str] = {}

    def add(self, damaged: Iterable[Damaged]) -> None:
        """Note what was found, and say so."""
        for number, sentence in damaged:
            if number not in self.found:
                self.found[number] = sentence
                log.warning("%s", sentence)
        self.check(len(self.found))

    def check(self, count: int) -> None:
        """Refuse more than are allowed; over several processes there may be others than were found here."""
        if count > self.limit:
            some = [one_line(self.found[number]) for number in sorted(self.found)[:NAMED]]
            more = [f"And {count - len(some):,} more."] if count > len(some) else []
            raise DataError(
                f"{count:,} of {self.num:,} images cannot be read, and {self.limit:,} are allowed"
                f"{self.setting}: repair or remove them. {' '.join([*some, *more])}"
            )


@final
class Feed:
    """Batches of `rows` images, in order, from a plan of (indices, places); read ahead if there are workers."""

    def __init__(
        self,
        reader: Reader,
        plan: Iterator[tuple[Array, Array]],
        damage: Damage,
        *,
        rows: int,
        num_workers: int,
        ahead: int = AHEAD,
        pin_memory: bool = False,
    ) -> None:
        if num_workers < 0:
            raise ConfigError(f"num_workers must be 0 or more, not {num_workers}.")
        if num_workers and ahead < 1:
            raise ConfigError(f"At least one batch has to be read ahead by workers, not {ahead}.")
        self._reader, self._plan, self._damage = reader, plan, damage
        num_slots = ahead + 1 if num_workers else 1
        context = worker_context()
        shape = (num_slots, rows)
        slots = Slots(
            {name: SharedArray(context, (*shape, *slot.shape), slot.dtype) for name, slot in reader.slots().items()},
            SharedArray(context, shape, np.int64),
            SharedArray(context, shape, np.int64),
        )
        self._rows = {name: shared.array() for name, shared in slots.rows.items()}
        self._indices, self._places = slots.indices.array(), slots.places.array()
        self._tensors = {name: torch.from_numpy(array) for name, array in self._rows.items()}
        self._pinned = Pinned([*self._tensors.values()]) if pin_memory else None
        self._free = collections.deque(range(num_slots))
        self._reading: collections.deque[int] = collections.deque()
        self._unfinished = [0] * num_slots
        self._damaged: list[list[Damaged]] = [[] for _ in range(num_slots)]
        self._used: int | None = None
        # Kept as long as the workers: memory that this process lets go of is given to whoever asks next.
        self._shared = SharedObject(context, reader) if num_workers else None
        self._workers = None if self._shared is None else Workers(num_workers, self._shared, slots)
        self._read_ahead()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> tuple[dict[str, Tensor], Array, Array]:
        """What the reader fills [rows, ...], by name, valid until the next call, and its indices and places."""
        try:
            if self._used is not None:
                self._give_back(self._used)
            self._read_ahead()
            if not self._reading:
                self.close()
                raise StopIteration
            slot = self._reading.popleft()
            self._finish(slot)
        except Error:
            self.close()
            raise
        self._used = slot
        filled = {name: tensor[slot] for name, tensor in self._tensors.items()}
        return filled, self._indices[slot].copy(), self._places[slot].copy()

    def close(self) -> None:
        """End the workers; the last batch stays valid."""
        self._plan = iter(())
        self._reading.clear()
        if self._workers is not None:
            self._workers.close()
        if self._pinned is not None:
            self._pinned.release()

    def _give_back(self, slot: int) -> None:
        if self._pinned is not None:
            self._pinned.mark(slot)
        self._free.append(slot)
        self._used = None

    def _read_ahead(self) -> None:
        while self._free:
            slot = self._free[0]
            if self._pinned is not None and not self._pinned.copied(slot, wait=not self._reading):
                return
            batch = next(self._plan, None)
            if batch is None:
                return
            self._free.popleft()
            self._indices[slot], self._places[slot] = batch
            self._reading.append(slot)
            if self._workers is not None:
                num_slots, rows = self._indices.shape
                step = max(min(TASK, -(-rows // self._workers.num)), -(-rows * num_slots // MAX_TASKS))
                starts = range(0, rows, step)
                self._unfinished[slot] = len(starts)
                for start in starts:
                    self._workers.give((slot, start, min(start + step, rows)))

    def _finish(self, slot: int) -> None:
        """Wait until a slot is full; what was damaged in it counts now, so that no order of work changes an error."""
        if self._workers is None:
            here = {name: array[slot] for name, array in self._rows.items()}
            self._damaged[slot] = self._reader.fill(here, self._indices[slot], self._places[slot])
        else:
            while self._unfinished[slot]:
                for done, damaged in self._workers.take():
                    self._unfinished[done] -= 1
                    self._damaged[done] += damaged
        self._damage.add(sorted(self._damaged[slot]))
        self._damaged[slot] = []

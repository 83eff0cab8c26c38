"""Shared memory that a GPU copies from by itself, while the host continues."""

from collections.abc import Sequence
from typing import Any, final

import torch
from torch import Tensor

from vitlab.core.errors import DataError

PORTABLE = 1  # cudaHostRegisterPortable: for every device


@final
class Pinned:
    """Slots of page-locked memory, each of which may be overwritten only when copies out of it have ended."""

    def __init__(self, slots: Sequence[Tensor]) -> None:
        """`slots` are tensors [slots, ...] that are filled and copied together."""
        if not torch.cuda.is_available():
            raise DataError("Memory can be pinned only where there is a CUDA device: leave pin_memory off.")
        self._slots: list[Tensor] = []
        self._copied = [torch.cuda.Event() for _ in range(len(slots[0]))]
        for part in slots:
            _check(_runtime().cudaHostRegister(part.data_ptr(), part.nbytes, PORTABLE))
            self._slots.append(part)

    def mark(self, slot: int) -> None:
        """Copies out of this slot have been asked for, on the current stream."""
        self._copied[slot].record()

    def copied(self, slot: int, *, wait: bool) -> bool:
        """Whether they have ended; with `wait`, once they have."""
        if wait:
            self._copied[slot].synchronize()
        return self._copied[slot].query()

    def release(self) -> None:
        """Unlock the pages, when all copies have ended."""
        for event in self._copied if self._slots else ():
            event.synchronize()
        while self._slots:
            _check(_runtime().cudaHostUnregister(self._slots.pop().data_ptr()))


def _runtime() -> Any:
    return torch.cuda.cudart()


def _check(status: Any) -> None:
    if int(status):
        raise DataError(f"CUDA could not pin the memory of the batches (error {int(status)}): leave pin_memory off.")

"""Memory that processes share.

It comes from multiprocessing's own heap: files without a name, which the system frees with the last process that has
them, however that process ends; where /dev/shm is too small, as it is in many containers, they lie on the disk.
"""

import ctypes
import math
import pickle
from collections.abc import Sequence
from multiprocessing.context import BaseContext
from typing import Any, final

import numpy as np
import numpy.typing as npt

from vitlab.data.contract import Array

ALIGNMENT = 64  # a cache line


@final
class SharedArray:
    """An array that a process and those it starts with it all see."""

    def __init__(self, context: BaseContext, shape: Sequence[int], dtype: npt.DTypeLike) -> None:
        self.shape, self.dtype = tuple(shape), np.dtype(dtype)
        self._memory = context.RawArray(ctypes.c_uint8, max(math.prod(self.shape) * self.dtype.itemsize, 1))

    def array(self) -> Array:
        """A view of it, which keeps it alive."""
        count = math.prod(self.shape)
        return np.frombuffer(memoryview(self._memory), self.dtype, count).reshape(self.shape)


@final
class SharedObject:
    """An object whose arrays lie in shared memory once, instead of in every process."""

    def __init__(self, context: BaseContext, value: object) -> None:
        buffers: list[pickle.PickleBuffer] = []
        self._pickled = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
        parts = [buffer.raw() for buffer in buffers]
        self._spans: list[tuple[int, int]] = []
        end = 0
        for part in parts:
            start = -(-end // ALIGNMENT) * ALIGNMENT
            end = start + part.nbytes
            self._spans.append((start, end))
        self._memory = SharedArray(context, (end,), np.uint8)
        whole = self._memory.array()
        for (start, end), part in zip(self._spans, parts, strict=True):
            whole[start:end] = np.frombuffer(part, np.uint8)

    @property
    def needs_script(self) -> bool:
        """Whether something in it was defined in the main script, which has to be imported to load it."""
        return b"__main__" in self._pickled

    def load(self) -> Any:
        """The object; its arrays are views of the shared memory, and read-only."""
        whole = self._memory.array()
        whole.flags.writeable = False
        return pickle.loads(self._pickled, buffers=[whole[start:end] for start, end in self._spans])

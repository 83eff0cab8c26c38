"""The random numbers that one picture's corruption uses, counted: the same whenever and wherever it is made."""

import math
from typing import final

import numpy as np

from vitlab.core.random import uniform
from vitlab.data.contract import Array


@final
class Draws:
    """Arrays of random numbers, float64, one after the other; the key is of one picture and one corruption."""

    def __init__(self, key: int) -> None:
        self._key = key
        self._next = 0

    def uniform(self, shape: tuple[int, ...], low: float = 0.0, high: float = 1.0) -> Array:
        """From `low` up to, and not including, `high`."""
        values = uniform(self._key, np.arange(math.prod(shape)), self._next).reshape(shape)
        self._next += 1
        return low + (high - low) * values.astype(np.float64)

    def integers(self, shape: tuple[int, ...], low: int, high: int) -> Array:
        """Whole numbers from `low` to `high` - 1."""
        return np.floor(self.uniform(shape, low, high)).astype(np.int64)

    def normal(self, shape: tuple[int, ...]) -> Array:
        """Of mean 0 and variance 1, by Box and Muller."""
        radius = np.sqrt(-2 * np.log1p(-self.uniform(shape)))
        return radius * np.cos(2 * math.pi * self.uniform(shape))

    def one(self, low: float, high: float) -> float:
        return float(self.uniform((), low, high))

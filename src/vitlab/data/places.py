"""Some of many images, evenly spread: data sets are often sorted by class."""

import numpy as np

from vitlab.data.contract import Array


def evenly(num: int, most: int) -> Array:
    """At most so many of the numbers below `num`, the first and the last among them; int64."""
    return np.linspace(0, num - 1, min(num, most)).round().astype(np.int64)


def spread(num: int, most: int | None) -> Array:
    """At most so many of the numbers below `num`, the first of as many equal parts; None: all."""
    return np.arange(num) if most is None or num <= most else np.arange(most) * num // most

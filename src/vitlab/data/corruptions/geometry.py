"""What several corruptions do with pictures: lengths in proportion, enlarging, blurring along a line."""

import math

import numpy as np

from vitlab.data.contract import Array

SIDE = 32  # px: the pictures that the constants are for


def proportion(shape: tuple[int, ...]) -> float:
    """By how much lengths in pixels are longer than in pictures of 32; in smaller ones they are as long."""
    return max(min(shape[:2]) / SIDE, 1)


def resampled(values: Array, rows: Array, columns: Array) -> Array:
    """Values at fractional rows and columns [H, W, ...], linear between their neighbours; none may be outside."""
    return _along(_along(values, rows, 0), columns, 1)


def _along(values: Array, places: Array, axis: int) -> Array:
    below = np.minimum(places.astype(np.int64), values.shape[axis] - 1)
    above = np.minimum(below + 1, values.shape[axis] - 1)
    part = (places - below).reshape([-1 if i == axis else 1 for i in range(values.ndim)])
    return values.take(below, axis) * (1 - part) + values.take(above, axis) * part


def zoomed(values: Array, factor: float) -> Array:
    """The centre, enlarged to the whole size: corners of what is enlarged stay corners, and what is over is cut."""
    return resampled(values, *(_zoomed_places(size, factor) for size in values.shape[:2]))


def _zoomed_places(size: int, factor: float) -> Array:
    kept = math.ceil(size / factor)
    large = max(round(kept * factor), size)
    first = (large - size) // 2
    return (size - kept) // 2 + np.linspace(0, kept - 1, large)[first : first + size]


def enlarged(values: Array, size: tuple[int, int]) -> Array:
    """All of it at another size, corners on corners."""
    return resampled(values, *(np.linspace(0, old - 1, new) for old, new in zip(values.shape[:2], size, strict=True)))


def streaked(values: Array, radius: float, sigma: float, angle: float) -> Array:
    """Each pixel the mean of those in one direction, weighted by half a Gaussian; `angle` in degrees, 0 to the right.

    As ImageMagick's motion blur: whole pixels, 2 * radius + 1 of them, and beyond the edge the edge's.
    """
    steps = np.arange(2 * math.ceil(radius) + 1)
    weights = np.exp(-(steps**2) / (2 * sigma**2))
    weights /= weights.sum()
    across = np.ceil(steps * math.cos(math.radians(angle)) - 0.5).astype(np.int64)
    down = np.ceil(steps * math.sin(math.radians(angle)) - 0.5).astype(np.int64)
    rows, columns = (np.arange(size) for size in values.shape[:2])
    found = np.zeros_like(values)
    for weight, right, below in zip(weights, across, down, strict=True):
        if weight > 1e-6:  # at most a thousandth of a grey level in all
            there = values.take((rows + below).clip(0, len(rows) - 1), 0)
            found += weight * there.take((columns + right).clip(0, len(columns) - 1), 1)
    return found

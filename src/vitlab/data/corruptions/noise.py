"""Noise of each pixel by itself."""

import functools

import numpy as np

from vitlab.data.contract import Array
from vitlab.data.corruptions.draws import Draws

GAUSSIAN = (0.04, 0.06, 0.08, 0.09, 0.10)  # standard deviations
PHOTONS = (500, 250, 100, 75, 50)  # that white counts
IMPULSES = (0.01, 0.02, 0.03, 0.05, 0.07)  # the part of the values that is replaced
SPECKLE = (0.06, 0.10, 0.12, 0.16, 0.20)  # standard deviations of white


def gaussian_noise(x: Array, severity: int, draws: Draws) -> Array:
    return x + GAUSSIAN[severity] * draws.normal(x.shape)


def shot_noise(x: Array, severity: int, draws: Draws) -> Array:
    """Photons as they are counted: a Poisson number of each value's mean."""
    white = PHOTONS[severity]
    sums, length = _poisson(white)
    level = np.rint(x * 255)
    place = np.searchsorted(sums, (level + draws.uniform(x.shape)).ravel(), side="right").reshape(x.shape)
    return (place - level * length) / white


@functools.cache
def _poisson(white: int) -> tuple[Array, int]:
    """The distribution functions of all 256 levels, that of level i raised by i so that all are one sorted row."""
    length = white + 10 * round(white**0.5) + 10  # ten deviations
    mean = np.arange(256)[:, None] * white / 255
    counts = np.arange(length)
    logarithms = np.cumsum(np.log(np.maximum(counts, 1)))
    with np.errstate(divide="ignore", invalid="ignore"):
        chances = np.exp(np.where(counts == 0, 0, counts * np.log(mean)) - mean - logarithms)
    sums = np.minimum(np.cumsum(chances, axis=1), 1)
    sums[:, -1] = 1  # so that no level reaches into the next
    return (sums + np.arange(256)[:, None]).ravel(), length


def impulse_noise(x: Array, severity: int, draws: Draws) -> Array:
    """Values of single channels become 0 or 1, as often the one as the other."""
    replaced = draws.uniform(x.shape) < IMPULSES[severity]
    return np.where(replaced, draws.uniform(x.shape) < 0.5, x)


def speckle_noise(x: Array, severity: int, draws: Draws) -> Array:
    """In proportion to the value."""
    return x + x * SPECKLE[severity] * draws.normal(x.shape)

"""Blurs: out of focus, through frosted glass, of a movement, of a zoom, Gaussian."""

import numpy as np

from vitlab.data.contract import Array
from vitlab.data.corruptions.draws import Draws
from vitlab.data.corruptions.geometry import proportion, streaked, zoomed

DEFOCUS = ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1))  # px: radius, and the sigma that softens its edge
GLASS = ((0.05, 1), (0.25, 1), (0.4, 1), (0.25, 2), (0.4, 2))  # sigma in px, and how many times pixels move
MOTION = ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5))  # px: radius and sigma
ZOOMS = (7, 12, 16, 21, 26)  # how many, each 1% more than the last; arange(1, 1.06, 0.01) has seven
GAUSSIAN = (0.4, 0.6, 0.7, 0.8, 1)  # px: sigma


def defocus_blur(x: Array, severity: int, draws: Draws) -> Array:
    from scipy import ndimage

    del draws
    radius, soft = DEFOCUS[severity]
    scale = proportion(x.shape)
    return ndimage.convolve(x, disk(radius * scale, soft * scale, max(round(scale), 1))[..., None], mode="mirror")


def disk(radius: float, sigma: float, reach: int) -> Array:
    """A disk of sum 1 whose edge is softened by a Gaussian that ends after `reach` pixels."""
    from scipy import ndimage

    size = int(radius)
    y, x = np.mgrid[-size : size + 1, -size : size + 1]
    found = np.pad((x**2 + y**2 <= radius**2) / 1.0, reach)
    line = np.exp(-(np.arange(-reach, reach + 1) ** 2) / (2 * sigma**2))
    for axis in (0, 1):
        found = ndimage.convolve1d(found, line / line.sum(), axis, mode="constant")
    return found / found.sum()


def glass_blur(x: Array, severity: int, draws: Draws) -> Array:
    """Every pixel but those at the edge is one of its neighbours up and to the left, or itself.

    The authors' program means to swap pixels but copies one, and its range ends before +1; their files are so.
    """
    sigma, times = GLASS[severity]
    scale = proportion(x.shape)
    far = max(round(scale), 1)
    height, width = x.shape[:2]
    x = np.floor(gaussian(x, sigma * scale) * 255 + 1e-6) / 255
    rows, columns = np.arange(far + 1, height - far + 1), np.arange(far + 1, width - far + 1)
    for _ in range(times):
        right, down = (draws.integers((len(rows), len(columns)), -far, far) for _ in range(2))
        moved = x[rows[:, None] + down, columns + right]
        x = x.copy()
        x[rows[:, None], columns] = moved
    return gaussian(x, sigma * scale)


def motion_blur(x: Array, severity: int, draws: Draws) -> Array:
    radius, sigma = MOTION[severity]
    scale = proportion(x.shape)
    return np.rint(streaked(x, radius * scale, sigma * scale, draws.one(-45, 45)) * 255) / 255


def zoom_blur(x: Array, severity: int, draws: Draws) -> Array:
    del draws
    factors = 1 + 0.01 * np.arange(ZOOMS[severity])
    return (x + sum(zoomed(x, factor) for factor in factors)) / (len(factors) + 1)


def gaussian_blur(x: Array, severity: int, draws: Draws) -> Array:
    del draws
    return gaussian(x, GAUSSIAN[severity] * proportion(x.shape))


def gaussian(x: Array, sigma: float) -> Array:
    """Over rows and columns, to four sigmas, with the edge's pixels beyond the edge."""
    from scipy import ndimage

    return ndimage.gaussian_filter(x, (sigma, sigma, 0), mode="nearest", truncate=4)

"""Drops of water, and at the higher severities splashes of mud, on the lens."""

import numpy as np

from vitlab.data.contract import Array
from vitlab.data.corruptions.draws import Draws
from vitlab.data.corruptions.geometry import enlarged, proportion

# of the liquid: mean, deviation, smoothness in px, the least that is any; how strong the water, or how soft the mud
SPATTER = (
    (0.62, 0.1, 0.7, 0.7, 0.5),
    (0.65, 0.1, 0.8, 0.7, 0.5),
    (0.65, 0.3, 1, 0.69, 0.5),
    (0.65, 0.1, 0.7, 0.69, 0.6),
    (0.65, 0.1, 0.5, 0.68, 0.6),
)
MUDDY = 3  # the first severity of mud
WATER, MUD = np.array([175, 238, 238]) / 255, np.array([63, 42, 20]) / 255
LIGHT = np.array([[-2, -1, 0], [-1, 1, 1], [0, 1, 2]])  # falls on drops from one side
FARTHEST = 20  # px from an edge that are told apart


def spatter(x: Array, severity: int, draws: Draws) -> Array:
    """The liquid is drawn on 32 pixels and enlarged, so that drops are as large in every picture."""
    from scipy import ndimage

    mean, deviation, smooth, least, strength = SPATTER[severity]
    size = tuple(max(round(side / proportion(x.shape)), 2) for side in x.shape[:2])
    liquid = ndimage.gaussian_filter(mean + deviation * draws.normal(size), smooth, mode="nearest", truncate=4)
    liquid = np.where(liquid < least, 0, liquid)
    if severity < MUDDY:
        cover = strength * enlarged(drops(np.floor(liquid.clip(0, 1) * 255)), x.shape[:2])[..., None]
        return x + cover * WATER
    cover = ndimage.gaussian_filter((liquid > least) / 1.0, strength, mode="nearest", truncate=4)
    cover = enlarged(np.where(cover < 0.8, 0, cover), x.shape[:2])[..., None]
    return x * (1 - cover) + cover * MUD


def drops(liquid: Array) -> Array:
    """How bright water is, to 1: brighter far from its edges, and lit from one side; `liquid` is 0 to 255."""
    from scipy import ndimage

    far = np.asarray(ndimage.distance_transform_edt(~edges(liquid, 50, 150)))
    height = np.floor(ndimage.uniform_filter(np.minimum(far, FARTHEST), 3, mode="mirror"))
    lit = ndimage.correlate(equalized(height), LIGHT, mode="mirror").clip(0, 255)
    found = liquid * ndimage.uniform_filter(lit, 3, mode="mirror")
    return found / max(found.max(), 1)


def equalized(levels: Array) -> Array:
    """Levels from 0 to 255 such that each is about as frequent: a histogram's sum, the lowest level at 0."""
    counts = np.bincount(levels.astype(np.int64).ravel(), minlength=256)
    rest = counts.sum() - counts[counts > 0][0]
    if not rest:
        return levels
    sums = np.cumsum(counts) - counts[counts > 0][0]
    return np.rint(255 * sums.clip(0) / rest)[levels.astype(np.int64)]


def edges(levels: Array, low: float, high: float) -> Array:
    """Canny's edges: ridges of the gradient above `low` that touch one above `high`."""
    from scipy import ndimage

    across = np.asarray(ndimage.sobel(levels, 1, mode="nearest"))
    down = np.asarray(ndimage.sobel(levels, 0, mode="nearest"))
    strength = np.abs(across) + np.abs(down)
    padded = np.pad(strength, 1)
    ratio = np.abs(down) / np.maximum(np.abs(across), 1e-9)
    same = across * down >= 0  # whether the gradient points down to the right, or up to the right
    ridge = np.zeros(levels.shape, bool)
    for chosen, (y, x) in (
        (ratio < 0.4142, (0, 1)),
        (ratio > 2.4142, (1, 0)),
        ((ratio >= 0.4142) & (ratio <= 2.4142) & same, (1, 1)),
        ((ratio >= 0.4142) & (ratio <= 2.4142) & ~same, (1, -1)),
    ):
        before, after = (_shifted(padded, sign * y, sign * x) for sign in (-1, 1))
        ridge |= chosen & (strength > before) & (strength >= after)
    found = ridge & (strength > low)
    parts = np.zeros(levels.shape, np.int32)
    ndimage.label(found, np.ones((3, 3)), output=parts)
    return found & np.isin(parts, parts[found & (strength > high)])


def _shifted(padded: Array, down: int, right: int) -> Array:
    height, width = padded.shape[0] - 2, padded.shape[1] - 2
    return padded[1 + down : 1 + down + height, 1 + right : 1 + right + width]

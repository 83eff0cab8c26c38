"""A mask as a model gives it, at the size that it saw, laid over the picture that it was made from."""

import dataclasses

import numpy as np
from jaxtyping import Int, UInt8

from vitlab.core.pictures import class_color
from vitlab.core.preprocess import Preprocess
from vitlab.data.contract import IGNORED, Array

OVER = 0.6  # how much of a mask's colour there is over the picture


def blend(pixels: UInt8[Array, "h w 3"], mask: UInt8[Array, "h w"]) -> UInt8[Array, "h w 3"]:
    """A picture with the colours of a mask over it; where the mask is `IGNORED`, the picture itself."""
    colors = np.array([class_color(k) for k in range(256)], dtype=np.float32)[mask]
    mixed = (1 - OVER) * pixels + OVER * colors
    return np.where((mask == IGNORED)[..., None], pixels, np.rint(mixed)).astype(np.uint8)


def over_picture(mask: UInt8[Array, "h w"], preprocess: Preprocess, size: tuple[int, int]) -> UInt8[Array, "H W"]:
    """The mask at the picture's size; what the model did not see of it is `IGNORED`."""
    if mask.shape == size and preprocess.resize == "squash":
        return mask
    rows, columns = (_nearest(seen, length) for seen, length in zip(_seen(preprocess, size), size, strict=True))
    found = mask[rows[:, None], columns]
    found[(rows < 0)[:, None] | (columns < 0)] = IGNORED
    return found


def _seen(preprocess: Preprocess, size: tuple[int, int]) -> tuple[Int[Array, "h"], Int[Array, "w"]]:
    """Which row and which column of a picture each row and column that the model sees shows; -1: padding.

    The preprocessing itself says so, of a picture whose pixels are their own places, in base 256 from 1.
    """
    numbers = np.indices(size, dtype=np.uint16) + np.uint16(1)
    nearest, found = dataclasses.replace(preprocess, interpolation="nearest"), list[Array]()
    for axis in (0, 1):
        coded = np.stack([numbers[axis] >> 8, numbers[axis] & 255, np.zeros(size)], axis=-1).astype(np.uint8)
        shown = np.asarray(nearest.picture(coded)).astype(np.int64)
        found.append((shown[..., 0] * 256 + shown[..., 1]).max(axis=1 - axis) - 1)
    return found[0], found[1]


def _nearest(seen: Int[Array, "n"], length: int) -> Int[Array, "length"]:
    """The place at which each of a picture's rows is seen; -1 for those beyond the outermost that are."""
    places = np.flatnonzero(seen >= 0)
    shown = seen[places]
    # Of an even number of rows Pillow shows the second of the middle two, so that the middle between two is the next's.
    found = places[np.searchsorted((shown[1:] + shown[:-1]) / 2, np.arange(length), side="right")]
    reach = np.ptp(shown) / max(len(shown) - 1, 1) / 2 if len(shown) > 1 else length
    found[np.abs(seen[found] - np.arange(length)) > reach + 1] = -1
    return found

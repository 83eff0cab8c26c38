"""Crops: the random resized crop of the paper, drawn before decoding or carried out on a device."""

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from vitlab.core.random import uniform_at
from vitlab.data.augmentation.config import Augmentation
from vitlab.data.augmentation.draws import CROP_AREA, CROP_ASPECT, CROP_PLACE, TRIES, Key, integer, numbers
from vitlab.data.augmentation.tables import Tables, crop_aspects, look_up, tables_for

Boxes = tuple[Int[Tensor, "b"], Int[Tensor, "b"], Int[Tensor, "b"], Int[Tensor, "b"]]  # top, left, height, width

UNITS = 1024  # of a resampling weight


def crop_box(aug: Augmentation, key: int, place: int, height: int, width: int) -> tuple[int, int, int, int]:
    """Top, left, height and width of what the sample at a place takes of its picture of height x width.

    Only `crop="paper"` and "part" take less than all; the shift of `crop="pad"` comes after resizing, in `augment`.
    """
    if aug.crop not in ("paper", "part"):
        return 0, 0, height, width
    if aug.crop == "part":
        box_height, box_width = _part(aug, height, width)
        return (*_place(key, place, height - box_height, width - box_width), box_height, box_width)
    # What `crop_boxes` computes, in NumPy's float32 scalars: an order of magnitude quicker for one picture.
    low, high = aug.crop_area
    aspects = crop_aspects(aug)
    for i in range(TRIES):
        area = (low + (high - low) * _number(key, place, CROP_AREA + i)) * (height * width)
        position = _number(key, place, CROP_ASPECT + i) * (len(aspects) - 1)
        below = min(int(position), len(aspects) - 2)
        aspect = aspects[below] + (aspects[below + 1] - aspects[below]) * (position - np.float32(below))
        box_height, box_width = round(float(np.sqrt(area / aspect))), round(float(np.sqrt(area * aspect)))
        if 0 < box_height <= height and 0 < box_width <= width:
            return (*_place(key, place, height - box_height, width - box_width), box_height, box_width)
    box_height, box_width = _middle(aug, height, width)
    return (height - box_height) // 2, (width - box_width) // 2, box_height, box_width


def crop_boxes(
    aug: Augmentation, key: Key, places: Int[Tensor, "b"], height: int, width: int, tables: Tables | None = None
) -> Boxes:
    """The boxes of pictures of one size: Inception's crop.

    Of ten tries, each an area uniform in `crop_area` and an aspect log-uniform in `crop_aspect`, the first that fits is
    put uniformly into the picture; if none fits, the largest box of the nearest allowed aspect is put into the middle.
    With `crop="part"` all have one size.
    """
    if aug.crop == "part":
        part_height, part_width = _part(aug, height, width)
        at = numbers(key, places, CROP_PLACE, 2)
        same = torch.ones_like(places)
        top, left = integer(at[:, 0], height - part_height + 1), integer(at[:, 1], width - part_width + 1)
        return top, left, same * part_height, same * part_width
    drawn = numbers(key, places, CROP_AREA, CROP_PLACE + 2)
    low, high = aug.crop_area
    area = (low + (high - low) * drawn[:, :TRIES]) * (height * width)
    aspect = look_up(tables_for(aug, places.device, tables).crop_aspect, drawn[:, TRIES : 2 * TRIES])
    box_height, box_width, found = first_fit((area / aspect).sqrt(), (area * aspect).sqrt(), height, width)
    fallback_height, fallback_width = _middle(aug, height, width)
    box_height = torch.where(found, box_height, fallback_height)
    box_width = torch.where(found, box_width, fallback_width)
    top = torch.where(found, integer(drawn[:, -2], height - box_height + 1), (height - fallback_height) // 2)
    left = torch.where(found, integer(drawn[:, -1], width - box_width + 1), (width - fallback_width) // 2)
    return top, left, box_height, box_width


def crop(
    aug: Augmentation,
    images: UInt8[Tensor, "b 3 h w"],
    places: Int[Tensor, "b"],
    key: Key,
    size: tuple[int, int],
    tables: Tables | None = None,
) -> UInt8[Tensor, "b 3 {size[0]} {size[1]}"]:
    """Images that live on a device, cropped as their places say and resized."""
    height, width = images.shape[2:]
    if aug.crop in ("paper", "part"):
        return crop_and_resize(images, crop_boxes(aug, key, places, height, width, tables), size)
    if (height, width) == size:
        return images
    zero = torch.zeros_like(places)
    return crop_and_resize(images, (zero, zero, zero + height, zero + width), size)


def crop_and_resize(
    images: UInt8[Tensor, "b 3 h w"], boxes: Boxes, size: tuple[int, int]
) -> UInt8[Tensor, "b 3 {size[0]} {size[1]}"]:
    """Each image's box resized to height x width: bilinear, with antialiasing where it shrinks, as Pillow's `resize`.

    Two products with resampling matrices, the bytes rounded in between as Pillow does. The weights are whole numbers of
    1/1024: sums are then exact in float32 and in TF32, so the bytes do not depend on the batch or on the device.
    """
    top, left, height, width = boxes
    with torch.autocast(images.device.type, enabled=False):
        across = _weights(left, width, images.shape[3], size[1])
        down = _weights(top, height, images.shape[2], size[0])
        rows = _to_levels(images.float() @ across[:, None].mT)
        return _to_levels(down[:, None] @ rows).to(torch.uint8)


def first_fit(
    heights: Float[Tensor, "b t"], widths: Float[Tensor, "b t"], height: int, width: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The first try, rounded, that is neither empty nor larger than height x width, and whether there is one."""
    heights, widths = heights.round().long(), widths.round().long()
    fits = (heights > 0) & (heights <= height) & (widths > 0) & (widths <= width)
    first = (fits.long().cumsum(dim=1) == 0).sum(dim=1, keepdim=True).clamp(max=heights.shape[1] - 1)
    return heights.gather(1, first)[:, 0], widths.gather(1, first)[:, 0], fits.any(dim=1)


def _part(aug: Augmentation, height: int, width: int) -> tuple[int, int]:
    return max(round(aug.crop_part * height), 1), max(round(aug.crop_part * width), 1)


def _place(key: int, place: int, down: int, right: int) -> tuple[int, int]:
    """Where a box begins that may be moved so far down and to the right."""
    top = min(int(_number(key, place, CROP_PLACE) * (down + 1)), down)
    return top, min(int(_number(key, place, CROP_PLACE + 1) * (right + 1)), right)


def _number(key: int, place: int, draw: int) -> np.float32:
    return np.float32(uniform_at(key, place, draw))


def _middle(aug: Augmentation, height: int, width: int) -> tuple[int, int]:
    low, high = aug.crop_aspect
    if width / height < low:
        return max(min(round(width / low), height), 1), width
    if width / height > high:
        return height, max(min(round(height * high), width), 1)
    return height, width


def _weights(start: Int[Tensor, "b"], length: Int[Tensor, "b"], size: int, out: int) -> Float[Tensor, "b {out} {size}"]:
    """How much of each pixel an output pixel takes, in 1/1024: a triangle as wide as the step, at least one pixel."""
    start, length = start.view(-1, 1, 1), length.view(-1, 1, 1)
    pixels = torch.arange(size, device=start.device)
    step = length * (1 / out)
    middle = start + (torch.arange(out, device=start.device).view(-1, 1) + 0.5) * step
    near = (1 - (pixels + 0.5 - middle).abs() / step.clamp(min=1)).clamp(min=0)
    near = torch.where((pixels >= start) & (pixels < start + length), near, 0.0)
    units = (near / near.sum(dim=2, keepdim=True) * UNITS).round()
    nearest = torch.minimum(middle.long(), start + length - 1)
    missing = UNITS - units.sum(dim=2, keepdim=True)  # given to the nearest pixel, so that flat colours stay
    return torch.where(pixels == nearest, units + missing, units)


def _to_levels(sums: Tensor) -> Tensor:
    return (sums * (1 / UNITS) + 0.5).floor()

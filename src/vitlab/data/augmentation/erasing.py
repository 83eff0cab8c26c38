"""Random erasing, on normalised images."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vitlab.core.random import bits, uniform
from vitlab.data.augmentation.config import Augmentation
from vitlab.data.augmentation.crop import first_fit
from vitlab.data.augmentation.draws import ERASE, ERASE_NOISE, ERASE_PLACE, TRIES, Key, integer, numbers
from vitlab.data.augmentation.tables import Tables, look_up, tables_for


def erase(
    aug: Augmentation,
    images: Float[Tensor, "b 3 h w"],
    places: Int[Tensor, "b"],
    key: Key,
    tables: Tables | None = None,
) -> Float[Tensor, "b 3 h w"]:
    """Normalised images, some with a rectangle of noise, of one random colour, or of zeros, as timm does it.

    A rectangle has an area uniform in `erase_area` and an aspect log-uniform in `erase_aspect`; the first of ten tries
    smaller than the image is put uniformly. Noise is normal, cut at 3.7 standard deviations.
    """
    if aug.erase == 0:
        return images
    tables = tables_for(aug, images.device, tables)
    if images.device.type == "cpu" and not torch.compiler.is_compiling():  # noise for the rectangles only
        return _erase_drawn(aug, tables, images, places, key)
    return erase_batch(aug, tables, images, places, key)


def erase_batch(aug: Augmentation, tables: Tables, images: Tensor, places: Tensor, key: Key) -> Tensor:
    """What `erase` gives, without a branch."""
    height, width = images.shape[2:]
    top, left, box_height, box_width = (
        side.view(-1, 1, 1, 1) for side in _rectangles(aug, tables, places, key, height, width)
    )
    rows = torch.arange(height, device=images.device).view(-1, 1)
    columns = torch.arange(width, device=images.device)
    inside = (rows >= top) & (rows < top + box_height) & (columns >= left) & (columns < left + box_width)
    return torch.where(inside, _filling(aug, tables, places, key, rows, columns, width).to(images.dtype), images)


def _erase_drawn(aug: Augmentation, tables: Tables, images: Tensor, places: Tensor, key: Key) -> Tensor:
    """What `erase` gives, of no other images than those that have a rectangle."""
    width = images.shape[3]
    boxes = torch.stack(_rectangles(aug, tables, places, key, *images.shape[2:]), dim=1)
    drawn = boxes[:, 2].nonzero()[:, 0].tolist()
    if not drawn:
        return images
    images = images.clone()
    for i in drawn:
        top, left, box_height, box_width = boxes[i].tolist()
        rows = torch.arange(top, top + box_height).view(-1, 1)
        columns = torch.arange(left, left + box_width)
        filling = _filling(aug, tables, places[i : i + 1], key, rows, columns, width)
        images[i, :, top : top + box_height, left : left + box_width] = filling[0].to(images.dtype)
    return images


def _rectangles(
    aug: Augmentation, tables: Tables, places: Tensor, key: Key, height: int, width: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Top, left, height and width; the last two are zero where nothing is erased."""
    drawn = numbers(key, places, ERASE, ERASE_PLACE + 2 - ERASE)
    low, high = aug.erase_area
    area = (low + (high - low) * drawn[:, 1 : 1 + TRIES]) * (height * width)
    aspect = look_up(tables.erase_aspect, drawn[:, 1 + TRIES : 1 + 2 * TRIES])
    box_height, box_width, found = first_fit((area * aspect).sqrt(), (area / aspect).sqrt(), height - 1, width - 1)
    erased = found & (drawn[:, 0] < aug.erase)
    top, left = integer(drawn[:, -2], height - box_height + 1), integer(drawn[:, -1], width - box_width + 1)
    return top, left, torch.where(erased, box_height, 0), torch.where(erased, box_width, 0)


def _filling(
    aug: Augmentation,
    tables: Tables,
    places: Tensor,
    key: Key,
    rows: Int[Tensor, "h 1"],
    columns: Int[Tensor, "w"],
    width: int,
) -> Tensor:
    """What stands at these rows and columns of erased images, broadcastable to [B, 3, h, w]."""
    if aug.erase_mode == "const":
        return torch.zeros(1, 1, 1, 1, device=places.device)
    channels = torch.arange(3, device=places.device).view(3, 1, 1)
    counters = channels if aug.erase_mode == "random" else (rows * width + columns) * 3 + channels
    own = bits(key, places, ERASE_NOISE).view(-1, 1, 1, 1)
    return look_up(tables.normal, uniform(own, counters[None]))

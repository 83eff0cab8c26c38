"""DiffAugment (arXiv 2006.10738): random changes of a critic's input, real and made alike, that gradients pass through.

Without them a critic learns a small set by heart and has nothing more to say to a generator. Images are normalised;
what each gets is counted from its place.
"""

from collections.abc import Sequence
from typing import Literal, TypeAlias

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vitlab.core.random import uniform

Change: TypeAlias = Literal["color", "translation", "cutout"]
SHIFT = 0.125  # of a side, the furthest that an image is moved
CUT = 0.5  # of a side, that of the square that is cut out


def diff_augment(
    images: Float[Tensor, "b c h w"], changes: Sequence[Change], key: int, places: Int[Tensor, "b"]
) -> Float[Tensor, "b c h w"]:
    """The images changed in the authors' order: colours, then the place, then a square that is missing."""
    drawn = uniform(key, places[:, None], torch.arange(7, device=places.device)).to(images.dtype)  # [B, 7]
    if "color" in changes:
        images = recolored(images, drawn[:, :3])
    if "translation" in changes:
        images = moved(images, drawn[:, 3:5])
    if "cutout" in changes:
        images = images * ~cut_out(images, drawn[:, 5:])
    return images


def recolored(images: Float[Tensor, "b c h w"], drawn: Float[Tensor, "b three"]) -> Float[Tensor, "b c h w"]:
    """Brightness by up to half a unit, saturation by a factor of 0 to 2, contrast by one of 1/2 to 3/2."""
    brightness, saturation, contrast = (each[:, None, None, None] for each in drawn.unbind(dim=1))
    images = images + (brightness - 0.5)
    gray = images.mean(dim=1, keepdim=True)
    images = gray + (images - gray) * 2 * saturation
    middle = images.mean(dim=(1, 2, 3), keepdim=True)
    return middle + (images - middle) * (contrast + 0.5)


def moved(images: Float[Tensor, "b c h w"], drawn: Float[Tensor, "b two"]) -> Float[Tensor, "b c h w"]:
    """Each image moved by whole pixels, up to an eighth of a side; zeros take the place of what is outside."""
    rows, columns = (_shifts(images.shape[i + 2], drawn[:, i], images.dtype) for i in range(2))
    return rows[:, None] @ images @ columns[:, None].mT


def _shifts(side: int, drawn: Float[Tensor, "b"], dtype: torch.dtype) -> Float[Tensor, "b side side"]:
    """The matrices that move the values of a side: row i takes the value at i + shift, where there is one."""
    most = int(side * SHIFT + 0.5)
    shift = (drawn * (2 * most + 1)).long().clamp(max=2 * most) - most
    at = torch.arange(side, device=drawn.device)
    return (at[None, None, :] == at[None, :, None] + shift[:, None, None]).to(dtype)


def cut_out(images: Float[Tensor, "b c h w"], drawn: Float[Tensor, "b two"]) -> Bool[Tensor, "b 1 h w"]:
    """Where the square of each image is, half as wide as the image and perhaps partly outside."""
    rows, columns = (_within(images.shape[i + 2], drawn[:, i]) for i in range(2))
    return (rows[:, :, None] & columns[:, None, :])[:, None]


def _within(side: int, drawn: Float[Tensor, "b"]) -> Bool[Tensor, "b side"]:
    size = int(side * CUT + 0.5)
    middles = side + 1 - size % 2
    start = (drawn * middles).long().clamp(max=middles - 1) - size // 2
    at = torch.arange(side, device=drawn.device)[None]
    return (at >= start[:, None]) & (at < start[:, None] + size)

"""Colour operations with Pillow's arithmetic, on bytes [B, 3, H, W].

Most are a function of the level alone, once the image's statistics are known: a table of 256 levels a channel, so that
however many operations a policy has, the batch is passed through one table.
"""

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor
from torch.nn import functional as F

from vitlab.data.augmentation.draws import one_image
from vitlab.data.augmentation.policies import Op
from vitlab.data.augmentation.tables import BLUR_REACH, BLUR_SIGMA, Tables, look_up

LEVELS = 256
BY_LEVEL = frozenset(
    {
        Op.INVERT,
        Op.POSTERIZE,
        Op.SOLARIZE,
        Op.SOLARIZE_ADD,
        Op.BRIGHTNESS,
        Op.CONTRAST,
        Op.SIZE_CONTRAST,
        Op.AUTOCONTRAST,
        Op.EQUALIZE,
    }
)


def by_level(
    images: UInt8[Tensor, "b 3 h w"], op: Int[Tensor, "b"], value: Float[Tensor, "b"], ops: frozenset[Op]
) -> UInt8[Tensor, "b 3 h w"]:
    """The operations that map levels to levels; other operations leave the bytes as they are."""
    op, value = op.view(-1, 1, 1), value.view(-1, 1, 1)
    levels = torch.arange(LEVELS, device=images.device).view(1, 1, -1)
    lut = levels.expand(len(images), 3, -1)
    for kind in sorted(ops & BY_LEVEL):
        lut = torch.where(op == kind.value, _levels(kind, images, levels, value), lut)
    flat = images.flatten(2)
    return lut.to(torch.uint8).gather(2, flat.long()).view(images.shape)


def saturate(
    images: UInt8[Tensor, "b 3 h w"], op: Int[Tensor, "b"], value: Float[Tensor, "b"]
) -> UInt8[Tensor, "b 3 h w"]:
    """COLOR: between greyscale (0) and the image (1), and beyond."""
    factor = torch.where(op == Op.COLOR.value, value, 1.0).view(-1, 1, 1, 1)
    return _blend(gray(images), images, factor)


def turn_hue(
    images: UInt8[Tensor, "b 3 h w"], op: Int[Tensor, "b"], value: Float[Tensor, "b"], tables: Tables
) -> UInt8[Tensor, "b 3 h w"]:
    """HUE: colours turned about the axis of greys, so that their mean level stays; a third turn exchanges channels."""
    turn = torch.where(op == Op.HUE.value, value, 0.0)
    cosine, sine = look_up(tables.turn, turn + 0.5).view(-1, 2, 1, 1, 1).unbind(dim=1)
    levels = images.float()
    mean = levels.sum(dim=1, keepdim=True) * (1 / 3)
    across = (levels.roll(1, dims=1) - levels.roll(-1, dims=1)) * 3**-0.5  # B - G, R - B, G - R
    return (mean + cosine * (levels - mean) + sine * across + 0.5).clamp(0, 255).to(torch.uint8)


def sharpen(
    images: UInt8[Tensor, "b 3 h w"], op: Int[Tensor, "b"], value: Float[Tensor, "b"]
) -> UInt8[Tensor, "b 3 h w"]:
    """SHARPNESS: between the smoothed image (0) and the image (1), and beyond; the outermost pixels stay."""
    factor = torch.where(op == Op.SHARPNESS.value, value, 1.0).view(-1, 1, 1, 1)
    if min(images.shape[2:]) < 3:
        return images
    wide = images.int()
    rows = wide[:, :, :-2] + wide[:, :, 1:-1] + wide[:, :, 2:]
    total = rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:] + 4 * wide[:, :, 1:-1, 1:-1]
    smooth = (2 * total + 13) // 26  # total / 13, rounded
    inner = _blend(smooth, images[:, :, 1:-1, 1:-1], factor)
    middle = torch.cat([images[:, :, 1:-1, :1], inner, images[:, :, 1:-1, -1:]], dim=3)
    return torch.cat([images[:, :, :1], middle, images[:, :, -1:]], dim=2)


def blur(
    images: UInt8[Tensor, "b 3 h w"], op: Int[Tensor, "b"], value: Float[Tensor, "b"], tables: Tables
) -> UInt8[Tensor, "b 3 h w"]:
    """BLUR: a Gaussian of this sigma, cut at three sigma; beyond the edge is the edge."""
    sigma = torch.where(op == Op.BLUR.value, value, 0.0)
    weights = look_up(tables.blur, sigma * (1 / BLUR_SIGMA)).view(len(images), -1, 1, 1, 1)
    reaches = range(1, BLUR_REACH + 1)
    if one_image(images):
        reaches = [reach for reach in reaches if bool(weights[0, reach] > 0)]  # a term of weight 0 changes no bit
    blurred = images.float()
    for axis in (3, 2):
        size = blurred.shape[axis]
        sides = (BLUR_REACH, BLUR_REACH, 0, 0) if axis == 3 else (0, 0, BLUR_REACH, BLUR_REACH)
        padded = F.pad(blurred, sides, mode="replicate")
        total = blurred * weights[:, 0]
        for reach in reaches:
            around = padded.narrow(axis, BLUR_REACH - reach, size) + padded.narrow(axis, BLUR_REACH + reach, size)
            total += around * weights[:, reach]
        blurred = total
    return (blurred + 0.5).clamp(0, 255).to(torch.uint8)


def gray(images: UInt8[Tensor, "b 3 h w"]) -> Int[Tensor, "b 1 h w"]:
    """Luma by Rec. 601 in Pillow's fixed point."""
    red, green, blue = images.int().unbind(dim=1)
    return ((red * 19595 + green * 38470 + blue * 7471 + 0x8000) >> 16)[:, None]


def _blend(degenerate: Tensor, images: Tensor, factor: Tensor) -> Tensor:
    """degenerate + factor (image - degenerate), clipped and cut to bytes."""
    start = degenerate.float()
    return (start + factor * (images.float() - start)).clamp(0, 255).to(torch.uint8)


def _levels(kind: Op, images: Tensor, levels: Int[Tensor, "1 1 256"], value: Float[Tensor, "b 1 1"]) -> Tensor:
    """What the levels become, [B or 1, 3 or 1, 256], whole numbers in 0 ... 255."""
    match kind:
        case Op.INVERT:
            return 255 - levels
        case Op.POSTERIZE:
            dropped = 8 - value.long().clamp(0, 8)
            return (levels >> dropped) << dropped
        case Op.SOLARIZE:
            return torch.where(levels < value, levels, 255 - levels)
        case Op.SOLARIZE_ADD:
            return torch.where(levels < 128, (levels + value.long()).clamp(max=255), levels)
        case Op.BRIGHTNESS:
            return _blend(torch.zeros_like(levels), levels, value)
        case Op.CONTRAST:
            luma = gray(images).flatten(1).long()
            count = luma.shape[1]
            mean = (2 * luma.sum(dim=1) + count) // (2 * count)  # rounded half up
            return _blend(mean.view(-1, 1, 1), levels, value)
        case Op.SIZE_CONTRAST:
            middle = min(images.shape[2] * images.shape[3] // LEVELS, LEVELS - 1)
            return _blend(torch.full_like(levels, middle), levels, value)
        case Op.AUTOCONTRAST:
            flat = images.flatten(2).int()  # of bytes inductor finds wrong minima: pytorch/pytorch#191499
            low, high = flat.amin(dim=2, keepdim=True).long(), flat.amax(dim=2, keepdim=True).long()
            stretched = (levels - low).clamp(min=0) * 255 // (high - low).clamp(min=1)
            return torch.where(high > low, stretched.clamp(max=255), levels)
        case Op.EQUALIZE:
            return _equalized(images, levels)
        case _:
            raise AssertionError(kind)


def _equalized(images: Tensor, levels: Tensor) -> Tensor:
    """Levels by how many pixels lie below, so that all become equally common."""
    flat = images.flatten(2).long()
    channels = flat.shape[0] * flat.shape[1]
    # One axis: torch has a deterministic kernel for that.
    where = (flat.view(channels, -1) + LEVELS * torch.arange(channels, device=images.device)[:, None]).flatten()
    counts = torch.zeros(channels * LEVELS, dtype=torch.int64, device=images.device)
    counts = counts.scatter_add(0, where, torch.ones_like(where)).view(*flat.shape[:2], LEVELS)
    highest = flat.amax(dim=2, keepdim=True)
    step = (flat.shape[2] - counts.gather(2, highest)) // 255
    below = counts.cumsum(dim=2) - counts
    equal = ((step // 2 + below) // step.clamp(min=1)).clamp(max=255)
    return torch.where(step > 0, equal, levels)

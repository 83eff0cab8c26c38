"""Geometric operations: flips, shifts, affine maps and cutouts, on bytes [B, 3, H, W]."""

import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor

from vitlab.data.augmentation.draws import integer
from vitlab.data.augmentation.policies import Op
from vitlab.data.augmentation.tables import Tables, look_up

WARPS = frozenset({Op.ROTATE, Op.SHEAR_X, Op.SHEAR_Y, Op.TRANSLATE_X, Op.TRANSLATE_Y})


def flip(images: UInt8[Tensor, "b c h w"], chosen: Bool[Tensor, "b"]) -> UInt8[Tensor, "b c h w"]:
    """The chosen images mirrored left to right."""
    return torch.where(chosen.view(-1, 1, 1, 1), images.flip(3), images)


def shift(
    images: UInt8[Tensor, "b c h w"], down: Int[Tensor, "b"], right: Int[Tensor, "b"], mode: str, fill: int = 0
) -> UInt8[Tensor, "b c h w"]:
    """What a window of the same size sees, moved by whole pixels over the padded image: an exact copy of bytes."""
    height, width = images.shape[2:]
    rows = torch.arange(height, device=images.device) + down[:, None]
    columns = torch.arange(width, device=images.device) + right[:, None]
    source = _reflect(rows, height)[:, :, None] * width + _reflect(columns, width)[:, None, :]
    moved = _take(images, source)
    if mode == "reflect":
        return moved
    inside = _within(rows, height)[:, :, None] & _within(columns, width)[:, None, :]
    return torch.where(inside[:, None], moved, fill)


def warp(
    images: UInt8[Tensor, "b 3 h w"], op: Int[Tensor, "b"], value: Float[Tensor, "b"], tables: Tables
) -> UInt8[Tensor, "b 3 h w"]:
    """Rotation, shear or translation, as Pillow's affine transform with bilinear interpolation.

    An output pixel takes from where the inverse map sends its centre: from `fill` if that lies outside the image, else
    from the four nearest pixels, those beyond the edge being the edge. Other operations leave the bytes as they are.
    """
    height, width = images.shape[2:]
    a, b, c, d, e, f = (term.view(-1, 1, 1) for term in _inverse_map(op, value, height, width, 0.5, tables))
    y = (torch.arange(height, device=images.device) + 0.5).view(1, -1, 1)
    x = (torch.arange(width, device=images.device) + 0.5).view(1, 1, -1)
    from_x, from_y = a * x + b * y + c, d * x + e * y + f
    inside = (from_x >= 0) & (from_x < width) & (from_y >= 0) & (from_y < height)
    from_x, from_y = from_x - 0.5, from_y - 0.5
    left, top = from_x.floor(), from_y.floor()
    right_share, lower_share = (from_x - left)[:, None], (from_y - top)[:, None]
    x0, y0 = left.long(), top.long()
    x1, y1 = (x0 + 1).clamp(0, width - 1), (y0 + 1).clamp(0, height - 1) * width
    x0, y0 = x0.clamp(0, width - 1), y0.clamp(0, height - 1) * width
    upper = _between(_take(images, y0 + x0), _take(images, y0 + x1), right_share)
    lower = _between(_take(images, y1 + x0), _take(images, y1 + x1), right_share)
    found = (upper + (lower - upper) * lower_share).to(torch.uint8)  # cut, not rounded, as Pillow does
    return torch.where(inside[:, None], found, tables.fill.view(1, 3, 1, 1))


def warp_to_nearest(
    images: UInt8[Tensor, "b 3 h w"], op: Int[Tensor, "b"], value: Float[Tensor, "b"], tables: Tables
) -> UInt8[Tensor, "b 3 h w"]:
    """Rotation, shear or translation, as TensorFlow's projective transform with its default, the nearest pixel.

    Coordinates count pixels, so that the first one's centre is the origin and does not move in a shear.
    """
    return _to_nearest(images, op, value, tables, tables.fill.view(1, 3, 1, 1), 0.0)


def warp_masks(
    masks: UInt8[Tensor, "b 1 h w"],
    op: Int[Tensor, "b"],
    value: Float[Tensor, "b"],
    tables: Tables,
    *,
    nearest: bool,
    outside: int,
) -> UInt8[Tensor, "b 1 h w"]:
    """Where `warp`, or with `nearest` `warp_to_nearest`, moves the pixels of pictures; each takes the nearest."""
    fill = torch.full((1, 1, 1, 1), outside, dtype=torch.uint8, device=masks.device)
    return _to_nearest(masks, op, value, tables, fill, 0.0 if nearest else 0.5)


def _to_nearest(images: Tensor, op: Tensor, value: Tensor, tables: Tables, fill: Tensor, first: float) -> Tensor:
    """The nearest pixel to where the inverse map sends each; the first pixel's centre is at (first, first)."""
    height, width = images.shape[2:]
    a, b, c, d, e, f = (term.view(-1, 1, 1) for term in _inverse_map(op, value, height, width, first, tables))
    y = (torch.arange(height, device=images.device) + first).view(1, -1, 1)
    x = (torch.arange(width, device=images.device) + first).view(1, 1, -1)
    from_x, from_y = a * x + b * y + (c - first), d * x + e * y + (f - first)
    inside = (from_x > -0.5) & (from_x < width - 0.5) & (from_y > -0.5) & (from_y < height - 0.5)
    column = (from_x + 0.5).floor().long().clamp(0, width - 1)
    row = (from_y + 0.5).floor().long().clamp(0, height - 1)
    return torch.where(inside[:, None], _take(images, row * width + column), fill)


def cutout(
    images: UInt8[Tensor, "b 3 h w"],
    op: Int[Tensor, "b"],
    value: Float[Tensor, "b"],
    center: Float[Tensor, "b 2"],
    tables: Tables,
) -> UInt8[Tensor, "b 3 h w"]:
    """CUTOUT: a square of `fill` of twice that side, about a drawn pixel; what lies beyond the edge is cut off."""
    height, width = images.shape[2:]
    reach = torch.where(op == Op.CUTOUT.value, value, 0.0).long().view(-1, 1, 1, 1)
    down = torch.arange(height, device=images.device).view(-1, 1) - integer(center[:, 0], height).view(-1, 1, 1, 1)
    right = torch.arange(width, device=images.device) - integer(center[:, 1], width).view(-1, 1, 1, 1)
    inside = (down >= -reach) & (down < reach) & (right >= -reach) & (right < reach)
    return torch.where(inside, tables.fill.view(1, 3, 1, 1), images)


def _inverse_map(
    op: Tensor, value: Tensor, height: int, width: int, first: float, tables: Tables
) -> tuple[Tensor, ...]:
    """x' = a x + b y + c, y' = d x + e y + f: where a pixel comes from. Rotation is about the centre.

    The first pixel's centre is at (first, first).
    """
    zero = torch.zeros_like(value)
    angle = torch.where(op == Op.ROTATE.value, value, zero)
    cosine, sine = look_up(tables.turn, angle * (1 / 360) + 0.5).unbind(dim=-1)
    b = torch.where(op == Op.SHEAR_X.value, value, -sine)
    d = torch.where(op == Op.SHEAR_Y.value, value, sine)
    turned = (op == Op.ROTATE.value) & (angle != 0)
    middle_x, middle_y = (width - 1) / 2 + first, (height - 1) / 2 + first
    c = torch.where(turned, middle_x - cosine * middle_x + sine * middle_y, zero)
    f = torch.where(turned, middle_y - sine * middle_x - cosine * middle_y, zero)
    c = torch.where(op == Op.TRANSLATE_X.value, value * width, c)
    f = torch.where(op == Op.TRANSLATE_Y.value, value * height, f)
    return cosine, b, c, d, cosine, f


def _take(images: Tensor, source: Int[Tensor, "b h w"]) -> Tensor:
    """images[:, :, source], the source being a row-major pixel number."""
    flat = images.flatten(2)
    return flat.gather(2, source.flatten(1)[:, None].expand(-1, flat.shape[1], -1)).view(images.shape)


def _between(start: Tensor, end: Tensor, share: Tensor) -> Tensor:
    start, end = start.float(), end.float()
    return start + (end - start) * share


def _reflect(places: Tensor, size: int) -> Tensor:
    """Places mirrored into 0 ... size - 1 at the outer pixels' centres."""
    period = max(2 * (size - 1), 1)
    places = places % period
    return torch.minimum(places, period - places).clamp(max=size - 1)


def _within(places: Tensor, size: int) -> Tensor:
    return (places >= 0) & (places < size)

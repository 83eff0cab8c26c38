"""Mixup and cutmix of neighbours in the order of training, on normalised images."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vitlab.core.errors import ConfigError
from vitlab.data.augmentation.config import Augmentation
from vitlab.data.augmentation.draws import MIX, Key, integer, numbers
from vitlab.data.augmentation.tables import Tables, look_up, tables_for


def mix(
    aug: Augmentation,
    images: Float[Tensor, "b 3 h w"],
    targets: Float[Tensor, "b k"],
    places: Int[Tensor, "b"],
    key: Key,
    tables: Tables | None = None,
    until: int | None = None,
) -> tuple[Float[Tensor, "b 3 h w"], Float[Tensor, "b k"]]:
    """Each sample mixed with its neighbour, that at place p with that at p ^ 1, and their targets in proportion.

    The two of a pair share lambda ~ Beta(alpha, alpha), the choice between mixup and cutmix and the box, all counted
    from p >> 1; so an even part of a batch that starts at an even place holds all it needs, whatever the number of
    ranks. With cutmix lambda is what remains of the sample's own area. From the place `until` on nothing is mixed.
    """
    check_pairs(aug, len(images))
    if not aug.mixes:
        return images, targets
    if places.device.type == "cpu" and not torch.compiler.is_compiling():  # elsewhere it would wait for the host
        even, odd = places[::2], places[1::2]
        assert bool(((even % 2 == 0) & (odd == even + 1)).all()), "pairs are two places that follow each other"
    tables = tables_for(aug, images.device, tables)
    pairs = places.view(-1, 2)[:, 0] >> 1
    lam, keep = _pairs(aug, tables, pairs, key, images.shape[2], images.shape[3], until)
    lam, keep = lam.repeat_interleave(2)[:, None], keep.repeat_interleave(2, dim=0)
    keep = keep.to(images.dtype)
    images = images * keep + _partners(images) * (1 - keep)
    return images, targets * lam.to(targets.dtype) + _partners(targets) * (1 - lam).to(targets.dtype)


def check_pairs(aug: Augmentation, num: int) -> None:
    """Refuse to mix a process's share of a batch that is not made of pairs."""
    if aug.mixes and num % 2:
        raise ConfigError(f"Mixing pairs the samples of each process: {num} is odd, choose an even batch.")


def _partners(values: Tensor) -> Tensor:
    """values[p ^ 1] at p."""
    return values.unflatten(0, (-1, 2)).flip(1).flatten(0, 1)


def _pairs(
    aug: Augmentation, tables: Tables, pairs: Int[Tensor, "p"], key: Key, height: int, width: int, until: int | None
) -> tuple[Tensor, Tensor]:
    """Each pair's weight of the own target [P], and of the own pixels [P, 1, H, W]."""
    drawn = numbers(key, pairs, MIX, 5)
    mixed = drawn[:, 0] < aug.mix_prob
    if until is not None:
        mixed = mixed & (pairs < until // 2)
    blended = cut = torch.ones_like(drawn[:, 0])
    inside = torch.zeros(1, 1, height, width, dtype=torch.bool, device=pairs.device)
    if aug.mixup > 0:
        blended = look_up(tables.mixup, drawn[:, 2])
    if aug.cutmix > 0:
        side = (1 - look_up(tables.cutmix, drawn[:, 2])).sqrt()
        top, bottom = _edges(integer(drawn[:, 3], height), side, height)
        left, right = _edges(integer(drawn[:, 4], width), side, width)
        rows = torch.arange(height, device=pairs.device).view(-1, 1)
        columns = torch.arange(width, device=pairs.device)
        inside = (rows >= top) & (rows < bottom) & (columns >= left) & (columns < right)
        cut = 1 - ((bottom - top) * (right - left)).flatten() * (1 / (height * width))
    cuts = drawn[:, 1] < (aug.mix_switch if aug.mixup > 0 and aug.cutmix > 0 else float(aug.cutmix > 0))
    lam = torch.where(mixed, torch.where(cuts, cut, blended), 1.0)
    own = torch.where(inside, 0.0, 1.0)
    keep = torch.where((mixed & cuts).view(-1, 1, 1, 1), own, lam.view(-1, 1, 1, 1))
    return lam, keep


def _edges(middle: Tensor, side: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """A box of side * size about the middle, cut at the image's edges, [P, 1, 1, 1]."""
    half = (side * size).long() // 2
    low, high = (middle - half).clamp(0, size), (middle + half).clamp(0, size)
    return low.view(-1, 1, 1, 1), high.view(-1, 1, 1, 1)

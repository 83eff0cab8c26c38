"""A whole split as bytes on one device."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from vitlab.core.errors import ImageError
from vitlab.core.preprocess import Preprocess
from vitlab.data.contract import Array, Split
from vitlab.data.decoding import decode, open_picture
from vitlab.data.loading.reading import EvaluationReader, damaged, view_name
from vitlab.data.loading.ring_buffer import SETTING, Damage
from vitlab.data.loading.workers import Damaged

LOOK_AT = 32  # images whose sizes are compared before all are decoded
TOGETHER = 64  # images that a thread decodes before it asks for more


@dataclass(frozen=True)
class Pixels:
    """A split's images as bytes in one place; those that could not be read are black there, and not `whole`."""

    values: Tensor  # uint8 [N, 3, H, W]
    readable: Tensor | None = None  # bool [N], where some are not
    damaged: Mapping[int, str] = field(default_factory=dict)  # why each of these could not be read

    def to(self, device: torch.device) -> "Pixels":
        return Pixels(self.values.to(device), None if self.readable is None else self.readable.to(device), self.damaged)


def sizes(split: Split, every: int = 1) -> Iterator[tuple[int, int]]:
    """The heights and widths of a split's images, without those whose header cannot be read."""
    for i in range(0, len(split), every):
        with contextlib.suppress(ImageError, OSError):
            yield open_picture(split.images.read(i), split.images.where(i)).size


def common_size(split: Split) -> tuple[int, int] | None:
    """The height and width that a split's images share, as far as some of them tell."""
    found = set(sizes(split, max(len(split) // LOOK_AT, 1)))
    return found.pop() if len(found) == 1 else None


def load_pixels(split: Split, size: tuple[int, int], max_damaged: float = 0.01) -> Pixels | None:
    """Every image as it is stored, or None where one has another size."""

    def fill(rows: Array, indices: Array) -> list[Damaged] | None:
        found: list[Damaged] = []
        for row, i in enumerate(indices.tolist()):
            try:
                image = decode(split.images.read(i), split.images.where(i))
            except (ImageError, OSError) as error:
                found.append(damaged(split.images, i, error))
            else:
                if image.shape[:2] != size:
                    return None
                rows[row] = image.transpose(2, 0, 1)
        return found

    return _filled(len(split), size, fill, max_damaged)


def load_inputs(split: Split, preprocess: Preprocess, max_damaged: float = 0.01) -> Pixels:
    """Every image as evaluation has it, resized and cropped."""
    reader = EvaluationReader(split.images, preprocess)

    def fill(rows: Array, indices: Array) -> list[Damaged]:
        return reader.fill({view_name(0): rows}, indices, indices)

    loaded = _filled(len(split), preprocess.size, fill, max_damaged)
    assert loaded is not None
    return loaded


def _filled(
    num: int, size: tuple[int, int], fill: Callable[[Array, Array], list[Damaged] | None], max_damaged: float
) -> Pixels | None:
    """Rows that threads fill, some at a time; None where `fill` gives up."""
    values = torch.zeros(num, 3, *size, dtype=torch.uint8)
    rows, damage = values.numpy(), Damage(num, max_damaged, SETTING)
    pool = ThreadPoolExecutor()
    try:
        parts = [np.arange(start, min(start + TOGETHER, num)) for start in range(0, num, TOGETHER)]
        for found in pool.map(lambda part: fill(rows[part[0] : part[-1] + 1], part), parts):
            if found is None:
                return None
            damage.add(found)
    finally:
        pool.shutdown(cancel_futures=True)
    if not damage.found:
        return Pixels(values)
    readable = torch.ones(num, dtype=torch.bool)
    readable[list(damage.found)] = False
    return Pixels(values, readable, damage.found)

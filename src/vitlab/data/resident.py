"""A whole split as bytes on one device, and training batches made there: an epoch never touches the host."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from vitlab.core.compiling import compile_options
from vitlab.core.errors import ImageError
from vitlab.core.preprocess import Preprocess
from vitlab.core.random import key
from vitlab.data.augmentation import Augmentation, augment, crop, erase, make_tables, mix
from vitlab.data.contract import Array, Split
from vitlab.data.decoding import decode, open_picture
from vitlab.data.feed import SETTING, Damage
from vitlab.data.order import Order, share
from vitlab.data.reading import MAX_REPLACEMENTS, EvaluationReader, damaged, replacement
from vitlab.data.workers import Damaged

LOOK_AT = 32  # images whose sizes are compared before all are decoded
TOGETHER = 64  # images that a thread decodes before it asks for more


@dataclass(frozen=True)
class Pixels:
    """A split's images as bytes in one place; those that could not be read are black there, and not `whole`."""

    values: Tensor  # uint8 [N, 3, H, W]
    whole: Tensor | None = None  # bool [N], where some are not
    damaged: Mapping[int, str] = field(default_factory=dict)  # why each of these could not be read

    def to(self, device: torch.device) -> "Pixels":
        return Pixels(self.values.to(device), None if self.whole is None else self.whole.to(device), self.damaged)


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
    loaded = _filled(
        len(split), preprocess.size, lambda rows, indices: reader.fill(rows, indices, indices), max_damaged
    )
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
    whole = torch.ones(num, dtype=torch.bool)
    whole[list(damage.found)] = False
    return Pixels(values, whole, damage.found)


@final
class ResidentFeed:
    """Training batches of a split that lies on the device; every batch is a function of its step.

    `prepare` puts the step and the orders of its epochs into tensors of fixed places, and `made` reads nothing else, so
    that it can be captured in a graph.
    """

    def __init__(
        self,
        pixels: Pixels,
        targets: Float[Tensor, "n k"],
        *,
        preprocess: Preprocess,
        augmentation: Augmentation,
        order: Order,
        batch_size: int,
        seed: int,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        self.pixels, self.targets, self.preprocess = pixels.values, targets, preprocess
        self.damaged, self._whole = pixels.damaged, pixels.whole
        self.augmentation, self.order, self.batch_size = augmentation, order, batch_size
        self.key, self._replacement = key(seed, "augment"), key(seed, "replacement")
        device, part = self.pixels.device, share(batch_size, world)
        self._offsets = torch.arange(part, device=device) + rank * part
        self._num_epochs = -(-batch_size // order.num) + 1  # that a batch can touch
        self._orders = torch.empty(self._num_epochs * order.num, dtype=torch.int64, device=device)
        self._first_epoch = -1
        self._epoch_start = torch.zeros((), dtype=torch.int64, device=device)
        self._start = torch.zeros((), dtype=torch.int64, device=device)
        self._tables = make_tables(augmentation, device)
        self.made = self.make  # or the compiled one

    def prepare(self, step: int) -> None:
        """Make ready for the batch of a step."""
        start = step * self.batch_size
        epoch = start // self.order.num
        if epoch != self._first_epoch:
            for i in range(self._num_epochs):
                part = self._orders[i * self.order.num : (i + 1) * self.order.num]
                part.copy_(self.order.epoch_order(epoch + i, self._orders.device))
            self._first_epoch = epoch
            self._epoch_start.fill_(epoch * self.order.num)
        self._start.fill_(start)

    def make(self) -> tuple[Float[Tensor, "b 3 h w"], Float[Tensor, "b k"]]:
        """The batch that was made ready: images and targets, augmented, normalised and mixed."""
        places = self._start + self._offsets
        indices = self._readable(self._orders[places - self._epoch_start], places)
        aug, tables = self.augmentation, self._tables
        images = crop(aug, self.pixels[indices], places, self.key, self.preprocess.size, tables)
        images = augment(aug, images, places, self.key, tables)
        images = erase(aug, self.preprocess.normalise(images), places, self.key, tables)
        return mix(aug, images, self.targets[indices], places, self.key, tables)

    def _readable(self, indices: Tensor, places: Tensor) -> Tensor:
        """The images to take: for damaged ones those that workers would take."""
        if self._whole is not None:
            for attempt in range(MAX_REPLACEMENTS):
                other = replacement(self._replacement, places, attempt, len(self._whole))
                indices = torch.where(self._whole[indices], indices, other)
        return indices

    def batch(self, step: int) -> tuple[Float[Tensor, "b 3 h w"], Float[Tensor, "b k"]]:
        self.prepare(step)
        return self.made()

    def compile(self) -> None:
        """Make batches with one compiled function."""
        self.made = torch.compile(self.make, options=compile_options(self.pixels.device))

    def close(self) -> None:
        """Nothing is held open."""

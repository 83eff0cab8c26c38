"""Batches of a data set as bytes, read ahead by worker processes: the same bytes whatever their number.

Images are not copied between processes: workers write into batches in shared memory, which take turns, and whoever asks
for the next batch gives the last one back.
"""

import weakref
from collections.abc import Iterator
from types import TracebackType
from typing import NamedTuple, Self, final

import numpy as np
import torch
from torch import Tensor

from vitlab.core.preprocess import Preprocess
from vitlab.data.augmentation import Augmentation
from vitlab.data.contract import Array, Split
from vitlab.data.feed import AHEAD, SETTING, Damage, Feed
from vitlab.data.order import EvaluationOrder, Order
from vitlab.data.reading import EvaluationReader, TrainingReader

_evaluated: dict[tuple[int, float], Damage] = {}  # by a split that is alive, and the share that may be damaged


class Batch(NamedTuple):
    """A training batch; `images` is overwritten when the next batch is asked for."""

    images: Tensor  # uint8 [b, 3, H, W]
    labels: Tensor  # int64 [b], or float32 [b, K] where an image has several
    indices: Tensor  # int64 [b]: which images these are
    places: Tensor  # int64 [b]: where they are in the order of training


class EvaluationBatch(NamedTuple):
    """A batch of an evaluation; `images` is overwritten when the next batch is asked for."""

    images: Tensor  # uint8 [b, 3, H, W]
    labels: Tensor
    indices: Tensor
    counts: Tensor  # bool [b]: False for rows that only fill the last batch, and for images that are damaged


@final
class Loader:
    """The training batches of steps `start_step`, `start_step` + 1, ... without end.

    `batch_size` is that of all ranks together, as in `Order`; a batch here is this rank's part. What is in a batch
    depends on the seed and the step alone. A damaged image is named in the log and replaced by another, which only its
    place decides, so that labels follow; `damaged` holds them all. Close it, or leave its `with` block.
    """

    def __init__(
        self,
        split: Split,
        *,
        size: tuple[int, int],
        augmentation: Augmentation | None,
        order: Order,
        batch_size: int,
        num_workers: int,
        seed: int,
        rank: int = 0,
        world: int = 1,
        start_step: int = 0,
        ahead: int = AHEAD,
        pin_memory: bool = False,
        max_damaged: float = 0.01,
    ) -> None:
        self.split = split
        self._damage = Damage(len(split), max_damaged, SETTING)
        plain = Augmentation(crop="resize", flip=0.0)
        self._feed = Feed(
            TrainingReader(split.images, size, augmentation or plain, seed),
            _steps(order, start_step, batch_size, rank, world),
            self._damage,
            rows=len(order.batch(start_step, batch_size, rank, world)[0]),
            size=size,
            num_workers=num_workers,
            ahead=ahead,
            pin_memory=pin_memory,
        )

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Batch:
        images, indices, places = next(self._feed)
        return Batch(images, _labels(self.split, indices), torch.from_numpy(indices), torch.from_numpy(places))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def damaged(self) -> dict[int, str]:
        """What could not be read so far: a sentence for each index."""
        return dict(self._damage.found)

    def check(self, count: int) -> None:
        """An error if so many images, over all processes, are more than may be damaged."""
        self._damage.check(count)

    def close(self) -> None:
        """End the workers; no more batches can be had."""
        self._feed.close()


def evaluation_batches(
    split: Split,
    preprocess: Preprocess,
    *,
    batch_size: int,
    num_workers: int,
    rank: int = 0,
    world: int = 1,
    pin_memory: bool = False,
    max_damaged: float = 0.01,
) -> Iterator[EvaluationBatch]:
    """Every image once over all ranks, as `preprocess.picture` has it, in batches of `batch_size` over all ranks.

    All ranks get equally many batches of equally many rows; `counts` says which rows are images.
    """
    order = EvaluationOrder(len(split), batch_size, world)
    damage = _damage_of(split, max_damaged)

    def plan() -> Iterator[tuple[Array, Array]]:
        for step in range(len(order)):
            indices, counts = order.batch(step, rank)
            yield np.where(counts, indices, -1), indices

    feed = Feed(
        EvaluationReader(split.images, preprocess),
        plan(),
        damage,
        rows=order.part,
        size=preprocess.size,
        num_workers=min(num_workers, order.part),
        pin_memory=pin_memory,
    )
    try:
        for images, indices, wanted in feed:
            counts = torch.from_numpy(indices >= 0)
            yield EvaluationBatch(images, _labels(split, wanted), torch.from_numpy(wanted), counts)
    finally:
        feed.close()


def _damage_of(split: Split, share: float) -> Damage:
    """A split's damage, with which later evaluations of it go on, so that each image is named once."""
    known = id(split), share
    if known not in _evaluated:
        _evaluated[known] = Damage(len(split), share)
        weakref.finalize(split, _evaluated.pop, known)
    return _evaluated[known]


def _steps(order: Order, step: int, batch_size: int, rank: int, world: int) -> Iterator[tuple[Array, Array]]:
    while True:
        yield order.batch(step, batch_size, rank, world)
        step += 1


def _labels(split: Split, indices: Array) -> Tensor:
    kind = np.int64 if split.labels.ndim == 1 else np.float32
    return torch.from_numpy(split.labels[indices].astype(kind))

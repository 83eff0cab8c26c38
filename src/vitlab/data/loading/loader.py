"""Batches of a data set as bytes, read ahead by worker processes: the same bytes whatever their number.

Images are not copied between processes: workers write into batches in shared memory, which take turns, and whoever asks
for the next batch gives the last one back.
"""

import weakref
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import NamedTuple, Self, final

import numpy as np
import torch
from torch import Tensor

from vitlab.core.preprocess import Preprocess
from vitlab.data.contract import Array, Split, Target, Values
from vitlab.data.loading.order import EvaluationOrder, share
from vitlab.data.loading.reading import EvaluationReader, TrainingReader, view_name
from vitlab.data.loading.ring_buffer import AHEAD, SETTING, Damage, Feed
from vitlab.data.streams import StreamPlan, view_keys
from vitlab.data.targets import masks_of, stored, wanted_targets

_evaluated: dict[tuple[int, float], Damage] = {}  # by a split that is alive, and the share that may be damaged


class Loaded(NamedTuple):
    """A training batch; `views`, and targets that are masks, are overwritten when the next batch is asked for."""

    views: tuple[Tensor, ...]  # uint8 [b, 3, H, W]
    targets: dict[str, Tensor]  # as `targets.stored` gives them; masks uint8 [b, H, W]
    indices: Tensor  # int64 [b]: which images these are
    places: Tensor  # int64 [b]: where they are in the order of training


class EvaluationBatch(NamedTuple):
    """A batch of an evaluation; `images` and masks are overwritten when the next batch is asked for."""

    images: Tensor  # uint8 [b, 3, H, W]
    targets: Mapping[str, Tensor]  # as `targets.stored` gives them; masks uint8 [b, H, W]
    indices: Tensor
    counts: Tensor  # bool [b]: False for rows that only fill the last batch, and for images that are damaged


@final
class Loader:
    """The training batches of a stream, of steps `start_step`, `start_step` + 1, ... without end.

    A batch here is this rank's part. What is in it depends on the plan, the seed and the step alone. A damaged image is
    named in the log and replaced by another, which only its place decides, so that targets follow; `damaged` holds them
    all. `keys` are those of the views. Close it, or leave its `with` block.
    """

    def __init__(
        self,
        plan: StreamPlan,
        *,
        num_workers: int,
        seed: int,
        keys: tuple[int, ...] | None = None,
        rank: int = 0,
        world: int = 1,
        start_step: int = 0,
        ahead: int = AHEAD,
        pin_memory: bool = False,
        max_damaged: float = 0.01,
    ) -> None:
        self.plan, self._targets = plan, plan.wanted()
        self._damage = Damage(len(plan.split), max_damaged, SETTING)
        keys = view_keys([plan], seed)[0] if keys is None else keys
        self._feed = Feed(
            TrainingReader(plan.split.images, plan.views, keys, seed, masks_of(self._targets)),
            _steps(plan, start_step, rank, world),
            self._damage,
            rows=share(plan.batch_size, world),
            num_workers=num_workers,
            ahead=ahead,
            pin_memory=pin_memory,
        )

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Loaded:
        filled, indices, places = next(self._feed)
        views = tuple(filled[view_name(j)] for j in range(len(self.plan.views)))
        targets = _targets(self._targets, indices, filled)
        return Loaded(views, targets, torch.from_numpy(indices), torch.from_numpy(places))

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
    targets: tuple[str, ...] = (),
    batch_size: int,
    num_workers: int,
    rank: int = 0,
    world: int = 1,
    pin_memory: bool = False,
    max_damaged: float = 0.01,
) -> Iterator[EvaluationBatch]:
    """Every image once over all ranks, as `preprocess.picture` has it, in batches of `batch_size` over all ranks.

    `targets` are those of the split to hand out too; an image whose mask cannot be read counts as damaged. All ranks
    get equally many batches of equally many rows; `counts` says which rows are images.
    """
    order = EvaluationOrder(len(split), batch_size, world)
    damage = _damage_of(split, max_damaged)
    wanted = wanted_targets(split, targets)

    def plan() -> Iterator[tuple[Array, Array]]:
        for step in range(len(order)):
            indices, counts = order.batch(step, rank)
            yield np.where(counts, indices, -1), indices

    feed = Feed(
        EvaluationReader(split.images, preprocess, masks_of(wanted)),
        plan(),
        damage,
        rows=order.part,
        num_workers=min(num_workers, order.part),
        pin_memory=pin_memory,
    )
    try:
        for filled, indices, images in feed:
            counts = torch.from_numpy(indices >= 0)
            found = _targets(wanted, images, filled)
            yield EvaluationBatch(filled[view_name(0)], found, torch.from_numpy(images), counts)
    finally:
        feed.close()


def _damage_of(split: Split, share: float) -> Damage:
    """A split's damage, which later evaluations of it continue, so that each image is named once."""
    known = id(split), share
    if known not in _evaluated:
        _evaluated[known] = Damage(len(split), share)
        weakref.finalize(split, _evaluated.pop, known)
    return _evaluated[known]


def _steps(plan: StreamPlan, step: int, rank: int, world: int) -> Iterator[tuple[Array, Array]]:
    while True:
        yield plan.order.batch(step, plan.batch_size, rank, world)
        step += 1


def _targets(targets: Mapping[str, Target], indices: Array, filled: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The targets of some images; workers filled in those that are read from files."""
    return {
        name: stored(target, indices) if isinstance(target, Values) else filled[name]
        for name, target in targets.items()
    }

"""Training batches of splits that lie on the device: an epoch never touches the host."""

from collections.abc import Iterator, Mapping, Sequence
from typing import final

import torch
from torch import Tensor

from vitlab.core.compiling import compile_options
from vitlab.core.errors import ConfigError
from vitlab.core.preprocess import Preprocess
from vitlab.core.random import key
from vitlab.data.augmentation import augment, crop, erase, make_tables, mix
from vitlab.data.batch import Batch, Stream
from vitlab.data.contract import ValueKind, Values
from vitlab.data.loading.order import share
from vitlab.data.loading.reading import MAX_REPLACEMENTS, replacement
from vitlab.data.loading.resident import Pixels
from vitlab.data.streams import StreamPlan, check_plans, view_keys
from vitlab.data.targets import as_target


@final
class ResidentFeed:
    """Batches of streams whose splits lie on the device, as `pixels` by their names; each is a function of its step.

    `prepare` puts the step and the orders of its epochs into tensors of fixed places, and `made` reads nothing else and
    gives nothing but tensors, so that it can be compiled and captured in a graph; `wrap` makes a batch of them.
    """

    def __init__(
        self,
        plans: Sequence[StreamPlan],
        pixels: Mapping[str, Pixels],
        *,
        preprocess: Preprocess,
        seed: int,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        check_plans(plans, world)
        self._streams = [
            _Resident(plan, keys, pixels[plan.name], preprocess, seed, rank, world)
            for plan, keys in zip(plans, view_keys(plans, seed), strict=True)
        ]
        self.damaged = pixels[plans[0].name].damaged
        self.made = self.make  # or the compiled one

    def prepare(self, step: int) -> None:
        """Make ready for the batch of a step."""
        for stream in self._streams:
            stream.prepare(step)

    def make(self) -> list[Tensor]:
        """The tensors of the batch that was made ready: augmented, normalised and mixed."""
        return [tensor for stream in self._streams for tensor in stream.make()]

    def wrap(self, tensors: Sequence[Tensor]) -> Batch:
        """The batch whose tensors `made` gave."""
        rest, streams = iter(tensors), dict[str, Stream]()
        for stream in self._streams:
            views = tuple(next(rest) for _ in stream.plan.views)
            targets = {name: next(rest) for name in stream.plan.targets}
            streams[stream.plan.name] = Stream(views, targets, next(rest))
        assert next(rest, None) is None
        return Batch(streams)

    def batch(self, step: int) -> Batch:
        self.prepare(step)
        return self.wrap(self.made())

    def compile(self) -> None:
        """Make batches with one compiled function."""
        self.made = torch.compile(self.make, options=compile_options(self._streams[0].pixels.device))

    def close(self) -> None:
        """Nothing is held open."""


@final
class _Resident:
    """One stream of them."""

    def __init__(
        self,
        plan: StreamPlan,
        keys: tuple[int, ...],
        pixels: Pixels,
        preprocess: Preprocess,
        seed: int,
        rank: int,
        world: int,
    ) -> None:
        self.plan, self.pixels, self.preprocess = plan, pixels.values, preprocess
        self._keys, self._replacement, self._is_readable = keys, key(seed, "replacement"), pixels.readable
        device, part, order = self.pixels.device, share(plan.batch_size, world), plan.order
        self._targets = _on_device(plan, device)
        self._offsets = torch.arange(part, device=device) + rank * part
        self._num_epochs = -(-plan.batch_size // order.num) + 1  # that a batch can touch
        self._orders = torch.empty(self._num_epochs * order.num, dtype=torch.int64, device=device)
        self._first_epoch = -1
        self._epoch_start = torch.zeros((), dtype=torch.int64, device=device)
        self._start = torch.zeros((), dtype=torch.int64, device=device)
        self._tables = [make_tables(view.augmentation, device) for view in plan.views]

    def prepare(self, step: int) -> None:
        order, start = self.plan.order, step * self.plan.batch_size
        epoch = start // order.num
        if epoch != self._first_epoch:
            for i in range(self._num_epochs):
                part = self._orders[i * order.num : (i + 1) * order.num]
                part.copy_(order.epoch_order(epoch + i, self._orders.device))
            self._first_epoch = epoch
            self._epoch_start.fill_(epoch * order.num)
        self._start.fill_(start)

    def make(self) -> Iterator[Tensor]:
        """Views, targets and places."""
        places = self._start + self._offsets
        indices = self._readable(self._orders[places - self._epoch_start], places)
        pixels = self.pixels[indices]
        views = [self._view(j, pixels, places) for j in range(len(self.plan.views))]
        targets = [as_target(values[indices], kind, self.plan.num_classes) for kind, values in self._targets]
        aug = self.plan.views[0].augmentation
        if aug.mixes:
            until = self.plan.mix_until
            views[0], targets[0] = mix(aug, views[0], targets[0], places, self._keys[0], self._tables[0], until)
        yield from (*views, *targets, places)

    def _view(self, number: int, pixels: Tensor, places: Tensor) -> Tensor:
        view, own, tables = self.plan.views[number], self._keys[number], self._tables[number]
        images = crop(view.augmentation, pixels, places, own, view.size, tables)
        images = augment(view.augmentation, images, places, own, tables)
        return erase(view.augmentation, self.preprocess.normalize(images), places, own, tables)

    def _readable(self, indices: Tensor, places: Tensor) -> Tensor:
        """The images to take: for damaged ones those that workers would take."""
        if self._is_readable is not None:
            for attempt in range(MAX_REPLACEMENTS):
                other = replacement(self._replacement, places, attempt, len(self._is_readable))
                indices = torch.where(self._is_readable[indices], indices, other)
        return indices


def _on_device(plan: StreamPlan, device: torch.device) -> list[tuple[ValueKind, Tensor]]:
    """All targets of a split as they are stored: rows of a unit matrix for all images may be larger than these."""
    found: list[tuple[ValueKind, Tensor]] = []
    for name, target in plan.wanted().items():
        if not isinstance(target, Values):
            raise ConfigError(f"The target '{name}' is read from files: images that stay in memory cannot have it.")
        found.append((target.kind, torch.from_numpy(target.values).to(device)))
    return found

"""Which sample sits where: the endless, counted order of training, and the order of evaluation.

Places count on over the epochs: place p is in epoch p // num. The order of an epoch depends on (seed, epoch) alone, and
step s takes the places [s B, (s + 1) B), of which every rank takes its contiguous part; so what is seen depends neither
on the number of workers nor of ranks, and nothing is dropped at an epoch's end.
"""

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitlab.core.errors import ConfigError
from vitlab.core.random import bits, key, permutation
from vitlab.data.contract import Array, Values

BLOCK = 4  # distinct images that are repeated together
# The four images of a block at their first, second and third repetition. Mixing pairs neighbours (place p with p ^ 1):
# these three arrangements pair each image with each of the other three, and never with itself.
ARRANGEMENTS = ((0, 1, 2, 3), (0, 2, 1, 3), (0, 3, 1, 2))
WEIGHT_BITS = 48


class Order:
    """The order of training over `num` samples, for as many epochs as are asked for; an epoch is `num` places.

    Without options an epoch is a permutation. `repeats` > 1 is repeated augmentation: an epoch holds the first
    num / repeats samples of its permutation that many times each, as DeiT's does, every four samples together, so that
    repetitions fall into one batch, or two that follow each other. `weights` [num] draws with replacement in
    proportion, instead of permuting.
    """

    def __init__(
        self, seed: int, num: int, *, repeats: int = 1, weights: Sequence[float] | Array | None = None
    ) -> None:
        if num < 1:
            raise ConfigError("There are no samples to order: the data set's training split is empty.")
        if repeats < 1:
            raise ConfigError(f"Each sample must be repeated at least once, not {repeats} times.")
        self.seed, self.num, self.repeats = seed, num, repeats
        self._thresholds = None if weights is None else _thresholds(weights, num)
        self._cache: dict[tuple[int, torch.device], Tensor] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_cache": {}}  # an epoch's order is cheaper to make than to send to a worker

    def another(self, name: str) -> "Order":
        """The same samples as often, in an order of its own."""
        other = copy.copy(self)
        other.seed, other._cache = key(self.seed, name), {}
        return other

    def epoch(self, place: int) -> int:
        """The epoch of a place."""
        return place // self.num

    def index(self, place: int) -> int:
        """The sample at a place."""
        return int(self.epoch_order(self.epoch(place))[place % self.num])

    def epoch_order(self, epoch: int, device: torch.device | str = "cpu") -> Tensor:
        """The samples of an epoch, int64 [num]; the last two epochs asked for are kept on their device."""
        device = torch.device(device)
        where = (epoch, device)
        if where not in self._cache:
            while len(self._cache) > 1:
                self._cache.pop(next(iter(self._cache)))
            self._cache[where] = self._make_epoch(epoch, device)
        return self._cache[where]

    def span(self, start: int, stop: int, device: torch.device | str = "cpu") -> Tensor:
        """The samples at the places start ... stop - 1, int64; on a GPU nothing waits for the host."""
        parts: list[Tensor] = []
        while start < stop:
            epoch, first = divmod(start, self.num)
            last = min(first + stop - start, self.num)
            parts.append(self.epoch_order(epoch, device)[first:last])
            start += last - first
        return torch.cat(parts) if parts else torch.empty(0, dtype=torch.int64, device=device)

    def batch(self, step: int, batch_size: int, rank: int = 0, world: int = 1) -> tuple[Array, Array]:
        """The samples and the places of a rank's part of the global batch of a step, int64 [batch_size / world]."""
        indices, places = self.device_batch(step, batch_size, rank, world)
        return indices.numpy(), places.numpy()

    def device_batch(
        self, step: int, batch_size: int, rank: int = 0, world: int = 1, *, device: torch.device | str = "cpu"
    ) -> tuple[Tensor, Tensor]:
        """What `batch` gives, as tensors that were made on the device."""
        part = share(batch_size, world)
        start = step * batch_size + rank * part
        return self.span(start, start + part, device), torch.arange(start, start + part, device=device)

    def _make_epoch(self, epoch: int, device: torch.device) -> Tensor:
        ranks = torch.arange(self.num, device=device)
        if self.repeats > 1:
            inside = ranks % (BLOCK * self.repeats)
            arrangement = torch.tensor(ARRANGEMENTS, device=device)
            slot = arrangement[inside // BLOCK % len(ARRANGEMENTS), inside % BLOCK]
            ranks = ranks // (BLOCK * self.repeats) * BLOCK + slot
        if self._thresholds is None:
            order = permutation(key(self.seed, "order", epoch), self.num, device)
            return order[ranks] if self.repeats > 1 else order
        here = key(self.seed, "draws", epoch)
        number = bits(here, ranks) << 16 | bits(here, ranks, 1) >> 16
        return torch.searchsorted(torch.from_numpy(self._thresholds).to(device), number, right=True)


class EvaluationOrder:
    """Every sample exactly once, in the order of the data set; the end is padded so that all ranks take all steps."""

    def __init__(self, num: int, batch_size: int, world: int = 1) -> None:
        if num < 1:
            raise ConfigError("There are no samples to evaluate: the data set's split is empty.")
        self.num, self.batch_size, self.world = num, batch_size, world
        self.part = share(batch_size, world)

    def __len__(self) -> int:
        """How many steps there are."""
        return -(-self.num // self.batch_size)

    def batch(self, step: int, rank: int = 0) -> tuple[Array, Array]:
        """Samples, int64 [batch_size / world], and which count, bool: where False, the last sample fills the place."""
        start = step * self.batch_size + rank * self.part
        places = np.arange(start, start + self.part)
        return np.minimum(places, self.num - 1), places < self.num


def balanced_weights(label: Values, power: float = 1.0) -> Array:
    """Weights for `Order` that draw every class alike (power 1), or as often as it comes (power 0), or in between.

    A sample of a class weighs count ** -power; with several labels it weighs what its rarest weighs, and one without
    any what the commonest weighs; probabilities weigh what their classes do on average.
    """
    labels = label.values
    if label.kind == "number":
        raise ConfigError("Classes cannot be drawn alike where labels are numbers to predict: leave balancing out.")
    if label.kind == "class":
        counts = np.bincount(labels)
        return np.maximum(counts, 1)[labels].astype(np.float64) ** -power
    if label.kind == "soft":
        sums = np.maximum(labels.sum(axis=0, dtype=np.float64), np.finfo(np.float64).tiny)
        return labels @ sums**-power
    counts = np.maximum(labels.sum(axis=0), 1).astype(np.float64) ** -power
    return np.where(labels != 0, counts, counts.min()).max(axis=1)


def _thresholds(weights: Sequence[float] | Array, num: int) -> Array:
    """Where the samples' shares of [0, 2^48) end: whole numbers, so that every device draws the same sample."""
    values = np.asarray(weights, dtype=np.float64)
    if values.shape != (num,):
        raise ConfigError(f"Sampling needs one weight per sample: {num}, not an array of shape {values.shape}.")
    if not np.isfinite(values).all() or values.min() < 0 or values.sum() <= 0:
        raise ConfigError("Sampling weights must be finite and not negative, and at least one must be positive.")
    ends = np.cumsum(values)
    return np.floor(ends / ends[-1] * 2.0**WEIGHT_BITS).astype(np.int64)


def share(batch_size: int, world: int) -> int:
    """The images of a batch that each process has."""
    if batch_size < 1 or world < 1 or batch_size % world:
        raise ConfigError(f"A batch of {batch_size} cannot be divided among {world} processes: choose a multiple.")
    return batch_size // world

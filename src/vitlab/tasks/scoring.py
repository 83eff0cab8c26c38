"""A held-out part through a model, by its task's score: what training, `evaluate score` and the report all call."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from vitlab.core.preprocess import Preprocess
from vitlab.data.contract import Split
from vitlab.data.loading.loader import evaluation_batches
from vitlab.data.targets import as_target
from vitlab.models.contract import Model

Scores: TypeAlias = dict[str, float]


class Scorer(ABC):
    """A score over a split from sums, which add up over batches and processes."""

    def of(self, called: nn.Module, model: Model, batch: "Held") -> Tensor:
        """The sums of a batch that `called` answers: the model, or what it is wrapped in."""
        del model
        return self.sums(called(batch.images), batch.target, batch.counts)

    @abstractmethod
    def sums(self, outputs: Tensor, target: Tensor, counts: Tensor) -> Tensor:
        """Of the rows that count (bool [B]), float64 [n]."""

    @abstractmethod
    def scores(self, sums: Tensor) -> Scores:
        """By name, from the sums of all; `score` selects, higher being better, `loss` decides between equal ones.

        `score` is there by its own name too, first of all others, by which it is shown; negative where less is better.
        """


class Held(NamedTuple):
    """A batch of a held-out part on the device: images as a model takes them, and which of the rows count."""

    images: Tensor
    target: Tensor  # where the task has none, the images
    counts: Tensor
    pixels: Tensor  # uint8 [b, 3, H, W]
    indices: Tensor  # int64 [b]: which images of the split


def held_batches(
    split: Split,
    target: str,
    preprocess: Preprocess,
    *,
    num_classes: int,
    device: torch.device,
    batch_size: int,
    num_workers: int = 0,
    rank: int = 0,
    world: int = 1,
    max_damaged: float = 0.01,
) -> Iterator[Held]:
    """A split in its order, read and put on the device; of several processes, each gets its share of every batch."""
    targets = (target,) if target else ()
    for batch in evaluation_batches(
        split,
        preprocess,
        targets=targets,
        batch_size=batch_size,
        num_workers=num_workers,
        rank=rank,
        world=world,
        max_damaged=max_damaged,
    ):
        images = preprocess.normalize(batch.images.to(device))
        values = images
        for name in targets:
            values = as_target(batch.targets[name].to(device), split.targets[name].kind, num_classes)
        yield Held(images, values, batch.counts.to(device), batch.images, batch.indices)

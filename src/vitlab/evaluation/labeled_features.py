"""Features with labels: checked once, read in blocks (they may be memory-mapped), held out in part."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, final

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import ArrayLike
from torch import Tensor

from vitlab.core.random import key, uniform
from vitlab.evaluation.contract import EvaluationError, Metric

Array: TypeAlias = np.ndarray[Any, Any]
Progress: TypeAlias = Callable[[int, int], None]  # what is done, and all

BLOCK_BYTES = 2**26  # of features, or of scores, at a time
Z95 = 1.959963984540054  # of the normal distribution, within 95%


@final
@dataclass(frozen=True)
class Examples:
    """Features [N, D] and class numbers [N] of a split; the features are never copied whole."""

    features: Array
    labels: Array
    split: str = "test"

    @classmethod
    def of(cls, features: ArrayLike, labels: ArrayLike, split: str) -> "Examples":
        """Checked: one row of finite features and one class number per image, and at least one image."""
        x, y = np.asarray(features), np.asarray(labels)
        if x.ndim != 2 or x.dtype.kind not in "fiu":
            raise EvaluationError(
                f"The features of the {split} split must be numbers [images, width], not {x.dtype} {list(x.shape)}."
            )
        if len(x) != len(y):
            raise EvaluationError(f"The {split} split has {len(x)} rows of features and {len(y)} labels.")
        if not x.size:
            raise EvaluationError(f"The {split} split has no features: {x.shape[0]} images of width {x.shape[1]}.")
        examples = cls(x, class_numbers(y, split), split)
        for start, block in examples.blocks(np.float32 if x.dtype.itemsize <= 4 else np.float64):
            bad = (~block.isfinite()).any(dim=1).nonzero()
            if len(bad):
                raise EvaluationError(
                    f"The features of image {start + int(bad[0])} of the {split} split are not finite: the model's"
                    " weights or its preprocessing are broken."
                )
        return examples

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def width(self) -> int:
        return self.features.shape[1]

    @property
    def dtype(self) -> type[np.floating[Any]]:
        """The features' own precision, float32 at least."""
        return np.float64 if self.features.dtype == np.float64 else np.float32

    def take(self, rows: Array, split: str | None = None) -> "Rows":
        return Rows(self, rows, split or self.split)

    def blocks(
        self, dtype: type[np.floating[Any]], *, width: int = 0, device: torch.device | str = "cpu"
    ) -> Iterator[tuple[int, Tensor]]:
        """(first row, rows as a tensor), a few at a time; `width` is what the caller makes of a row beside it."""
        yield from self.take(np.arange(len(self))).blocks(dtype, width=width, device=device)


@final
@dataclass(frozen=True)
class Rows:
    """Some rows of examples, read in the order of the file; `rows` must ascend."""

    examples: Examples
    rows: Array
    split: str

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def labels(self) -> Array:
        return self.examples.labels[self.rows]

    @property
    def width(self) -> int:
        return self.examples.width

    @property
    def dtype(self) -> type[np.floating[Any]]:
        return self.examples.dtype

    def take(self, rows: Array, split: str | None = None) -> "Rows":
        return Rows(self.examples, self.rows[rows], split or self.split)

    def blocks(
        self, dtype: type[np.floating[Any]], *, width: int = 0, device: torch.device | str = "cpu"
    ) -> Iterator[tuple[int, Tensor]]:
        size = max(1, BLOCK_BYTES // (np.dtype(dtype).itemsize * (self.width + width)))
        for start in range(0, len(self), size):
            rows = self.rows[start : start + size]
            whole = rows[-1] - rows[0] + 1 == len(rows)  # then a slice, which a memory map reads in one go
            chosen = self.examples.features[rows[0] : rows[-1] + 1] if whole else self.examples.features[rows]
            yield start, torch.from_numpy(np.array(chosen, dtype)).to(device)


def class_numbers(labels: ArrayLike, split: str) -> Array:
    """Labels as int64 [N]; what is no class number is refused."""
    y = np.asarray(labels)
    if y.ndim != 1:
        raise EvaluationError(
            f"The labels of the {split} split must be one class number per image, not an array {list(y.shape)}:"
            " this protocol does not take several labels per image."
        )
    if y.dtype.kind not in "iu":
        if y.dtype.kind != "f" or not (np.isfinite(y) & (y == np.floor(y))).all():
            raise EvaluationError(f"The labels of the {split} split must be whole numbers, not {y.dtype}.")
        y = y.astype(np.int64)
    if len(y) and y.min() < 0:
        place = int(np.flatnonzero(y < 0)[0])
        raise EvaluationError(f"Image {place} of the {split} split has the label {y[place]}, which is below 0.")
    return y.astype(np.int64)


def count_classes(train: Examples, others: Sequence[Examples], num_classes: int | None = None) -> int:
    """How many classes there are; refused where widths differ, a label is too large, or train lacks a class."""
    for other in others:
        if other.width != train.width:
            raise EvaluationError(
                f"The features of the {train.split} and {other.split} splits have different widths: {train.width} and"
                f" {other.width}."
            )
    largest = max(int(part.labels.max()) for part in (train, *others))
    num = largest + 1 if num_classes is None else num_classes
    for part in (train, *others):
        place = int(part.labels.argmax())
        if part.labels[place] >= num:
            raise EvaluationError(
                f"Image {place} of the {part.split} split has the label {part.labels[place]}, but there are {num}"
                f" classes, 0 to {num - 1}."
            )
    known = np.bincount(train.labels, minlength=num) > 0
    for other in others:
        unknown = np.unique(other.labels[~known[other.labels]])
        if len(unknown):
            raise EvaluationError(
                f"Class {unknown[0]} has images in the {other.split} split but none in the {train.split} split"
                f"{f' (and so have {len(unknown) - 1} others)' if len(unknown) > 1 else ''}."
            )
    return num


def moments(rows: Examples | Rows, device: torch.device | str = "cpu") -> tuple[Float[Tensor, "d"], Float[Tensor, "d"]]:
    """Mean and population standard deviation of each feature, in float64 and two passes."""
    total = torch.zeros(rows.width, dtype=torch.float64, device=device)
    for _, block in rows.blocks(np.float64, device=device):
        total += block.sum(dim=0)
    mean, squares = total / len(rows), torch.zeros_like(total)
    for _, block in rows.blocks(np.float64, device=device):
        squares += (block - mean).square().sum(dim=0)
    return mean, (squares / len(rows)).sqrt()


def held_out(labels: Array, fraction: float, seed: int = 0) -> Array:
    """Which rows to choose settings on, bool [N]: about `fraction` of each class, the same rows for the same seed.

    Every class keeps one row at least; where none would be held out, the first in line is.
    """
    if not 0 < fraction < 1:
        raise EvaluationError(f"The fraction to hold out must be between 0 and 1, not {fraction}.")
    chance = uniform(key(seed, "hold out", "features"), np.arange(len(labels))).astype(np.float64)
    held = chance < fraction
    order = np.argsort(chance, kind="stable")
    last = np.full(int(labels.max()) + 1, -1)
    last[labels[order]] = order  # of each class the row that would be held out last: assignment keeps the last
    movable = np.ones(len(labels), bool)
    movable[last[last >= 0]] = False
    held &= movable
    if not held.any():
        held[order[movable[order]][:1]] = True
    if not held.any():
        raise EvaluationError("Nothing can be held out of train: every class has one image. Give a validation split.")
    return held


def wilson(right: int, num: int) -> tuple[float, float]:
    """Wilson's 95% confidence interval of a share that was seen `right` times in `num`."""
    share, z = right / num, Z95
    center = (share + z * z / (2 * num)) / (1 + z * z / num)
    half = z / (1 + z * z / num) * math.sqrt(share * (1 - share) / num + z * z / (4 * num * num))
    return (center - half if right else 0.0), (center + half if right < num else 1.0)  # the ends exactly, not nearly


def share(right: int, num: int) -> Metric:
    """A share of images, with half the width of its interval as spread."""
    low, high = wilson(right, num)
    return Metric(value=right / num, count=num, spread=(high - low) / 2, spread_of="half of Wilson's 95% interval")

"""What a data set is to everything above it: named splits of encoded or decoded images with labels."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, Any]


class Images(Protocol):
    """Images by number; picklable, so that worker processes can read them."""

    def __len__(self) -> int: ...

    def read(self, index: int) -> bytes | Array:
        """An encoded file's bytes, or a decoded picture as uint8 [H, W, 3] or [H, W]."""
        ...

    def where(self, index: int) -> str:
        """What to call the image in a message: its path, or its number in its file."""
        ...


@dataclass(frozen=True)
class Split:
    """One part of a data set: images, and labels [N] (class numbers) or [N, K] (one column a class, 0 or 1)."""

    images: Images
    labels: Array

    def __post_init__(self) -> None:
        assert len(self.images) == len(self.labels)

    def __len__(self) -> int:
        return len(self.images)

    def counts(self, num_classes: int) -> Array:
        """How many images each class has."""
        if self.labels.ndim == 2:
            return self.labels.sum(axis=0).astype(np.int64)
        return np.bincount(self.labels, minlength=num_classes)

    def take(self, indices: Sequence[int] | Array) -> "Split":
        """Only these images, in this order."""
        chosen = np.asarray(indices, dtype=np.int64)
        return Split(Subset(self.images, chosen), self.labels[chosen])


@dataclass(frozen=True)
class Subset:
    """Some of the images of another collection."""

    images: Images
    indices: Array

    def __len__(self) -> int:
        return len(self.indices)

    def read(self, index: int) -> bytes | Array:
        return self.images.read(int(self.indices[index]))

    def where(self, index: int) -> str:
        return self.images.where(int(self.indices[index]))


@dataclass(frozen=True)
class DataSet:
    """Classes and splits. `fingerprint` changes when what a run would read changes: names, sizes, labels, counts."""

    name: str
    classes: tuple[str, ...]
    splits: Mapping[str, Split]  # of 'train', 'val' and 'test', those that are there
    fingerprint: str
    multi_label: bool = False
    notes: tuple[str, ...] = field(default=())  # what was understood or left out, in sentences
    fixed_classes: bool = False  # the task names its classes and its images: train may lack some that test has

    @property
    def num_classes(self) -> int:
        return len(self.classes)

"""What a data set is to everything above it: named splits of encoded or decoded images, with targets by name."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias, final

import numpy as np

from vitlab.core.errors import DataError

Array: TypeAlias = np.ndarray[Any, Any]
ValueKind: TypeAlias = Literal["class", "soft", "several", "number"]
Change: TypeAlias = Literal["crop", "flip"]  # of an image, by augmentation


class Images(Protocol):
    """Images by number; picklable, so that worker processes can read them."""

    def __len__(self) -> int: ...

    def read(self, index: int) -> bytes | Array:
        """An encoded file's bytes, or a decoded picture as uint8 [H, W, 3] or [H, W]."""
        ...

    def where(self, index: int) -> str:
        """What to call the image in a message: its path, or its number in its file."""
        ...


@final
@dataclass(frozen=True)
class Values:
    """A row of an array for each image; its kind, never its shape, says what it means.

    class: class numbers, int64 [N]. soft: probabilities, float32 [N, K]. several: 0 or 1 per class, [N, K].
    number: what a regression predicts, float32 [N] or [N, M].
    """

    values: Array
    kind: ValueKind = "class"

    def __len__(self) -> int:
        return len(self.values)

    def take(self, indices: Array) -> "Values":
        return Values(self.values[indices], self.kind)


@final
@dataclass(frozen=True)
class Masks:
    """A class number per pixel of each image, read when it is needed: an encoded file's bytes, or an array [H, W].

    `classes` names them. `table` [256] maps stored values to class numbers, where they are others; `IGNORED` pixels
    count for nothing.
    """

    images: Images
    classes: tuple[str, ...]
    table: Array | None = None  # uint8 [256]

    @property
    def kind(self) -> Literal["mask"]:
        return "mask"

    def __len__(self) -> int:
        return len(self.images)

    def take(self, indices: Array) -> "Masks":
        return Masks(Subset(self.images, indices), self.classes, self.table)


UNLABELLED = "unlabelled"  # the split of images to learn from without labels: it has no targets
IGNORED = 255  # the class number of pixels that belong to no class
Target: TypeAlias = Values | Masks


@final
@dataclass(frozen=True)
class Split:
    """One part of a data set: images, and for each of them targets by name (`label`, `mask`), or none at all.

    The target `condition` is what an image of a corrupted set went through: see `vitlab.data.conditions`.
    """

    images: Images
    targets: Mapping[str, Target] = field(default_factory=dict)

    def __post_init__(self) -> None:
        assert all(len(target) == len(self.images) for target in self.targets.values())

    @classmethod
    def labelled(cls, images: Images, labels: Array, kind: ValueKind = "class") -> "Split":
        """Images with a label each."""
        return cls(images, {"label": Values(labels, kind)})

    def __len__(self) -> int:
        return len(self.images)

    @property
    def label(self) -> Values:
        """The labels and their kind; an error where there are none."""
        label = self.targets.get("label")
        if not isinstance(label, Values):
            raise DataError("These images have no labels, and this needs them: put them into one folder per class.")
        return label

    @property
    def labels(self) -> Array:
        """The labels' values, of whichever kind."""
        return self.label.values

    @property
    def has_classes(self) -> bool:
        """Whether its labels, if it has any, are of classes: not numbers to predict."""
        label = self.targets.get("label")
        return isinstance(label, Values) and label.kind != "number"

    def counts(self, num_classes: int) -> Array:
        """How many images each class has; of probabilities, their sums rounded."""
        if self.label.kind == "class":
            return np.bincount(self.labels, minlength=num_classes)
        return np.rint(self.labels.sum(axis=0)).astype(np.int64)

    def take(self, indices: Sequence[int] | Array) -> "Split":
        """Only these images, in this order."""
        chosen = np.asarray(indices, dtype=np.int64)
        return Split(Subset(self.images, chosen), {name: each.take(chosen) for name, each in self.targets.items()})


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


@final
@dataclass(frozen=True)
class Joined:
    """The images of several collections, one after the other."""

    collections: tuple[Images, ...]

    def __len__(self) -> int:
        return sum(map(len, self.collections))

    def read(self, index: int) -> bytes | Array:
        images, place = self._find(index)
        return images.read(place)

    def where(self, index: int) -> str:
        images, place = self._find(index)
        return images.where(place)

    def _find(self, index: int) -> tuple[Images, int]:
        place = range(len(self))[index]
        for images in self.collections:
            if place < len(images):
                return images, place
            place -= len(images)
        raise AssertionError


@dataclass(frozen=True)
class DataSet:
    """Classes and splits. `fingerprint` changes when what a run would read changes: names, sizes, labels, counts.

    `classes` are the names of what labels number; empty where images have none.
    """

    name: str
    classes: tuple[str, ...]
    splits: Mapping[str, Split]  # of 'train', 'val', 'test' and 'unlabelled', those that are there
    fingerprint: str
    notes: tuple[str, ...] = field(default=())  # what was understood or left out, in sentences
    fixed_classes: bool = False  # the task names its classes and its images: train may lack some that test has
    changes_labels: tuple[Change, ...] = ()  # under which an image does not keep its label

    @property
    def num_classes(self) -> int:
        return len(self.classes)

    @property
    def undivided(self) -> bool:
        """Whether nothing is held out: there is train, and beside it at most images without labels."""
        return set(self.splits) - {UNLABELLED} == {"train"}

    @property
    def multi_label(self) -> bool:
        """Whether an image may have several labels."""
        return any("label" in split.targets and split.label.kind == "several" for split in self.splits.values())

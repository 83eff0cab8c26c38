"""Copies among the images of a data set: of the same bytes, or that look the same when they are made small.

A picture is known by 16 x 16 levels of grey, without their mean and at unit length: resizing and compressing again
hardly change them, and other pictures have others. What has no structure, as a blank page, or is small is a copy by its
bytes only.
"""

import hashlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import numpy as np
from jaxtyping import Float
from PIL import Image

from vitlab.core.errors import ImageError
from vitlab.data.contract import UNLABELLED, Array, DataSet, Split
from vitlab.data.decoding import decode

SIDE: Final = 16
SMALLEST: Final = 24  # px: smaller pictures of one kind, as digits, look alike without being copies
FLAT: Final = 4.0  # levels of 255: the standard deviation below which a picture has no structure
NEAR: Final = 0.95  # the correlation from which two pictures are called copies: docs/results/data.md
ROWS: Final = 1024  # that are compared with all at a time
TOGETHER: Final = 64  # images that a thread looks at
Kind: TypeAlias = Literal["exact", "near", "cropped", "mirrored"]  # the last two are of vitlab.data.crops


@dataclass(frozen=True)
class Place:
    """An image of a data set."""

    split: str
    index: int
    where: str
    label: str | None = None  # its class, where it has one


@dataclass(frozen=True)
class Pair:
    """Two images that are copies of each other; the first is that of the earlier part, or the earlier one."""

    kind: Kind
    similarity: float
    first: Place
    second: Place

    @property
    def leaks(self) -> bool:
        """Whether a picture is in two parts, of which one is measured on: it was learned by heart."""
        return self.first.split != self.second.split and {self.first.split, self.second.split} != {"train", UNLABELLED}

    @property
    def disagrees(self) -> bool:
        """Whether the same picture has two labels, of which one at least is wrong."""
        labels = (self.first.label, self.second.label)
        return None not in labels and labels[0] != labels[1]


def find_copies(
    dataset: DataSet, *, near: float = NEAR, progress: Callable[[int, int], None] | None = None
) -> list[Pair]:
    """Each image that is a copy of an earlier one, with the first of those; what cannot be read is left out.

    Parts come in their order, train first. `near` is the least correlation; above 1 only exact copies are found.
    """
    places: list[Place] = []
    seen: list[_Seen] = []
    total, done = sum(map(len, dataset.splits.values())), 0
    with ThreadPoolExecutor() as pool:
        for name, split in dataset.splits.items():
            parts = np.array_split(np.arange(len(split)), max(1, len(split) // TOGETHER))
            for part, found in zip(parts, pool.map(lambda part, split=split: _look(split, part), parts), strict=True):
                done += len(part)
                if progress is not None:
                    progress(done, total)
                for index, each in found:
                    places.append(place_of(dataset, name, split, index))
                    seen.append(each)
    if not seen:
        return []
    return [
        Pair(kind, similarity, places[first], places[second])
        for kind, similarity, first, second in _pairs([each.digest for each in seen], _stacked(seen), near)
    ]


@dataclass(frozen=True)
class _Seen:
    digest: bytes
    levels: Float[Array, "256"]


def _look(split: Split, indices: Array) -> list[tuple[int, _Seen]]:
    found: list[tuple[int, _Seen]] = []
    for index in map(int, indices):
        try:
            raw = split.images.read(index)
            pixels = decode(raw, split.images.where(index), min_size=(2 * SIDE, 2 * SIDE))
        except ImageError:
            continue
        data = raw.tobytes() if isinstance(raw, np.ndarray) else raw
        found.append((index, _Seen(hashlib.blake2b(data, digest_size=16).digest(), levels_of(pixels))))
    return found


def levels_of(pixels: Array) -> Float[Array, "256"]:
    """What a picture is known by; zeros where it is small or has no structure."""
    small = Image.fromarray(pixels).convert("L").resize((SIDE, SIDE), Image.Resampling.BOX)
    levels = np.asarray(small, np.float32).ravel()
    levels -= levels.mean()
    known = min(pixels.shape[:2]) >= SMALLEST and levels.std() >= FLAT
    return levels / np.linalg.norm(levels) if known else np.zeros_like(levels)


def _stacked(seen: list[_Seen]) -> Float[Array, "n 256"]:
    return np.stack([each.levels for each in seen])


def _pairs(digests: list[bytes], levels: Float[Array, "n 256"], near: float) -> Iterator[tuple[Kind, float, int, int]]:
    """(kind, similarity, earlier image, image) for each image that has an earlier copy, with the first of those."""
    first: dict[bytes, int] = {}
    for start in range(0, len(levels), ROWS):
        part = levels[start : start + ROWS]
        likeness = part @ levels[: start + len(part)].T
        for row, second in enumerate(range(start, start + len(part))):
            if (same := first.setdefault(digests[second], second)) != second:
                yield "exact", 1.0, same, second
            elif (alike := likeness[row, :second] >= near).any():
                earlier = int(alike.argmax())
                yield "near", min(float(likeness[row, earlier]), 1.0), earlier, second


def place_of(dataset: DataSet, name: str, split: Split, index: int) -> Place:
    """What an image of a part is called, with its class where it has one."""
    label = dataset.classes[int(split.labels[index])] if split.has_classes and split.label.kind == "class" else None
    return Place(name, index, split.images.where(index), label)

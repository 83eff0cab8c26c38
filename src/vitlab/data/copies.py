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
from jaxtyping import Float, Int
from PIL import Image

from vitlab.core.errors import ImageError
from vitlab.data.contract import UNLABELLED, Array, DataSet, Split
from vitlab.data.decoding import decode

SIDE: Final = 16
SMALLEST: Final = 24  # px: smaller pictures of one kind, as digits, look alike without being copies
FLAT: Final = 4.0  # levels of 255: the standard deviation below which a picture has no structure
NEAR: Final = 0.95  # the correlation from which two pictures are called copies: docs/results/data.md
ROWS: Final = 1024  # that are compared with as many others at a time
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
    total, done = sum(map(len, dataset.splits.values())), 0
    images, digests, levels = list[tuple[str, int]](), list[bytes](), np.empty((total, SIDE * SIDE), np.float32)
    with ThreadPoolExecutor() as pool:
        for name, split in dataset.splits.items():
            parts = np.array_split(np.arange(len(split)), max(1, len(split) // TOGETHER))
            for part, found in zip(parts, pool.map(lambda part, split=split: _look(split, part), parts), strict=True):
                done += len(part)
                if progress is not None:
                    progress(done, total)
                for index, digest, known in found:
                    levels[len(images)] = known
                    images.append((name, index))
                    digests.append(digest)

    def place(row: int) -> Place:
        name, index = images[row]
        return place_of(dataset, name, dataset.splits[name], index)

    return [
        Pair(kind, similarity, place(first), place(second))
        for kind, similarity, first, second in _pairs(digests, levels[: len(images)], near)
    ]


def _look(split: Split, indices: Array) -> list[tuple[int, bytes, Float[Array, "256"]]]:
    """The number, a digest of the bytes, and the levels of each image that can be read."""
    found: list[tuple[int, bytes, Float[Array, 256]]] = []
    for index in map(int, indices):
        try:
            raw = split.images.read(index)
            pixels = decode(raw, split.images.where(index), min_size=(2 * SIDE, 2 * SIDE))
        except ImageError:
            continue
        data = raw.tobytes() if isinstance(raw, np.ndarray) else raw
        found.append((index, hashlib.blake2b(data, digest_size=16).digest(), levels_of(pixels)))
    return found


def levels_of(pixels: Array) -> Float[Array, "256"]:
    """What a picture is known by; zeros where it is small or has no structure."""
    small = Image.fromarray(pixels).convert("L").resize((SIDE, SIDE), Image.Resampling.BOX)
    levels = np.asarray(small, np.float32).ravel()
    levels -= levels.mean()
    known = min(pixels.shape[:2]) >= SMALLEST and levels.std() >= FLAT
    return levels / np.linalg.norm(levels) if known else np.zeros_like(levels)


def _pairs(digests: list[bytes], levels: Float[Array, "n 256"], near: float) -> Iterator[tuple[Kind, float, int, int]]:
    """(kind, similarity, earlier image, image) for each image that has an earlier copy, with the first of those."""
    first: dict[bytes, int] = {}
    for start in range(0, len(levels), ROWS):
        earlier, likeness = _earlier(levels, start, near)
        for second, (one, alike) in enumerate(zip(earlier.tolist(), likeness.tolist(), strict=True), start):
            if (same := first.setdefault(digests[second], second)) != second:
                yield "exact", 1.0, same, second
            elif one >= 0:
                yield "near", min(alike, 1.0), one, second


def _earlier(levels: Float[Array, "n 256"], start: int, near: float) -> tuple[Int[Array, "m"], Float[Array, "m"]]:
    """For some images from `start` on the first before each that is so like it, or -1, and how like; in parts."""
    part = levels[start : start + ROWS]
    earlier, likeness = np.full(len(part), -1), np.zeros(len(part), np.float32)
    for left in range(0, start + 1, ROWS):
        alike = part @ levels[left : left + ROWS].T
        if left == start:
            alike[~np.tri(len(part), k=-1, dtype=bool)] = -np.inf
        rows = np.flatnonzero((earlier < 0) & (alike.max(axis=1) >= near))
        columns = (alike[rows] >= near).argmax(axis=1)
        earlier[rows], likeness[rows] = left + columns, alike[rows, columns]
    return earlier, likeness


def place_of(dataset: DataSet, name: str, split: Split, index: int) -> Place:
    """What an image of a part is called, with its class where it has one."""
    label = dataset.classes[int(split.labels[index])] if split.has_classes and split.label.kind == "class" else None
    return Place(name, index, split.images.where(index), label)

"""What a data set was understood to be, in words, and which of its images cannot be read."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from vitlab.core.errors import ImageError
from vitlab.core.words import count
from vitlab.data.contract import Array, DataSet, Masks, Split
from vitlab.data.decoding import decode, read_mask
from vitlab.data.places import spread

THREADS = 8  # that decode


@dataclass(frozen=True)
class Unreadable:
    """An image that cannot be decoded."""

    index: int
    where: str
    reason: str
    split: str = ""


@dataclass(frozen=True)
class PictureSizes:
    """Width and height in pixels of the smallest, the median and the largest picture, by their areas."""

    smallest: tuple[int, int]
    median: tuple[int, int]
    largest: tuple[int, int]

    def words(self) -> str:
        """'median 500 x 375 pixels, from 96 x 96 to 4032 x 3024'."""
        low, mid, high = (f"{width:,} x {height:,}" for width, height in (self.smallest, self.median, self.largest))
        return f"all of {mid} pixels" if low == mid == high else f"median {mid} pixels, from {low} to {high}"


@dataclass(frozen=True)
class Description:
    """What a data set holds."""

    name: str
    classes: tuple[str, ...]
    multi_label: bool
    counts: dict[str, tuple[int, ...]]  # images of each class, for each split that has labels
    sizes: dict[str, int]  # images of each split
    notes: tuple[str, ...]
    looked_at: int = 0  # images that were decoded
    unreadable: tuple[Unreadable, ...] = ()  # those of them that could not be
    mask_classes: tuple[str, ...] = ()  # of the pixels, where there are masks
    numbers: bool = False  # whether labels are numbers to predict
    pictures: PictureSizes | None = None  # of those that were decoded

    @property
    def imbalance(self) -> float | None:
        """The largest class of train over the smallest that has images; None where there is no train part."""
        found = [amount for amount in self.counts.get("train", ()) if amount]
        return max(found) / min(found) if found else None

    def lines(self) -> list[str]:
        """The description as text, the most important first."""
        kind = "several labels per image" if self.multi_label else "one label per image"
        without = "a number per image" if self.numbers else "a mask per image" if self.mask_classes else "no labels"
        said = f"{len(self.classes):,} classes, {kind} ({_shown(self.classes)})" if self.counts else without
        lines = [f"{self.name}: {said}"]
        if self.mask_classes:
            lines.append(f"masks: {len(self.mask_classes):,} classes of pixels ({_shown(self.mask_classes)})")
        for split, size in self.sizes.items():
            lines.append(f"{split}: {count(size, 'image')}{_each(self.counts.get(split))}")
        if self.imbalance is not None and self.imbalance > 1:
            lines.append(
                f"imbalance: the largest class of train has {self.imbalance:.1f} times the images of the smallest"
            )
        if self.looked_at:
            whole = self.looked_at == sum(self.sizes.values())
            some = f"all {self.looked_at:,} images" if whole else f"{self.looked_at:,} images that were looked at"
            found = f"{len(self.unreadable):,}" if self.unreadable else "none"
            lines.append(f"unreadable: {found} of {some}")
            lines += [f"  {item.reason}" for item in self.unreadable[:10]]
            if len(self.unreadable) > 10:
                lines.append(f"  and {len(self.unreadable) - 10:,} more")
        if self.pictures is not None:
            lines.append(f"pictures: {self.pictures.words()}")
        return [*lines, *self.notes]

    def __str__(self) -> str:
        return "\n".join(self.lines())


def describe(
    dataset: DataSet, *, look: bool | int = False, progress: Callable[[int, int], None] | None = None
) -> Description:
    """What a data set holds; with `look`, all images or so many of each part are decoded to find what cannot be."""
    parts = dataset.splits.values()
    counts = {
        split: tuple(part.counts(dataset.num_classes).tolist())
        for split, part in dataset.splits.items()
        if part.has_classes
    }
    masks = next((mask.classes for part in parts if isinstance(mask := part.targets.get("mask"), Masks)), ())
    numbers = any("label" in part.targets and not part.has_classes for part in parts)
    sizes = {split: len(part) for split, part in dataset.splits.items()}
    chosen = {split: spread(len(part), None if look is True else int(look)) for split, part in dataset.splits.items()}
    looked_at, done = sum(map(len, chosen.values())), 0
    found, shapes = list[Unreadable](), list[tuple[int, int]]()
    for split, part in dataset.splits.items():
        for seen in _looks(part, chosen[split]):
            found += [replace(item, split=split) for item in seen.unreadable]
            shapes += seen.sizes
            done += seen.num
            if progress is not None:
                progress(done, looked_at)
    return Description(
        dataset.name,
        dataset.classes,
        dataset.multi_label,
        counts,
        sizes,
        dataset.notes,
        looked_at,
        tuple(found),
        masks,
        numbers,
        _sizes(shapes),
    )


class _Seen(NamedTuple):
    num: int
    unreadable: list[Unreadable]
    sizes: list[tuple[int, int]]  # width and height of those that can be read


def _looks(split: Split, chosen: Array) -> Iterator[_Seen]:
    with ThreadPoolExecutor(THREADS) as pool:
        yield from pool.map(lambda part: _look(split, part), np.array_split(chosen, max(1, len(chosen) // 16)))


def _sizes(shapes: list[tuple[int, int]]) -> PictureSizes | None:
    ordered = sorted(shapes, key=lambda shape: (shape[0] * shape[1], shape))
    return PictureSizes(ordered[0], ordered[len(ordered) // 2], ordered[-1]) if ordered else None


def _look(split: Split, indices: Sequence[int]) -> _Seen:
    found, sizes = list[Unreadable](), list[tuple[int, int]]()
    images, masks = split.images, [target for target in split.targets.values() if isinstance(target, Masks)]
    for index in map(int, indices):
        try:
            pixels = decode(images.read(index), images.where(index))
            for mask in masks:
                read_mask(mask, index, pixels.shape[:2])
        except ImageError as error:
            found.append(Unreadable(index, images.where(index), str(error)))
        else:
            sizes.append((pixels.shape[1], pixels.shape[0]))
    return _Seen(len(indices), found, sizes)


def _each(counts: Sequence[int] | None) -> str:
    """How many images per class has."""
    if counts is None:
        return ""
    least, most = min(counts, default=0), max(counts, default=0)
    return f", {least:,} per class" if least == most else f", {least:,} to {most:,} per class"


def _shown(classes: Sequence[str]) -> str:
    return ", ".join(classes) if len(classes) <= 10 else f"{', '.join(classes[:8])}, ... {classes[-1]}"

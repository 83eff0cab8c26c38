"""Part of the training images held out, by a stable hash of each, so that adding images moves few or none."""

import dataclasses
from typing import cast

import numpy as np

from vitlab.core.errors import DataError
from vitlab.core.random import key, uniform
from vitlab.data.contract import UNLABELLED, Array, DataSet, Images, Joined, Split, Subset
from vitlab.data.sources.source import SPLITS, Digest, SourceImages


def hold_out(dataset: DataSet, fraction: float, seed: int = 0, into: str = "val") -> DataSet:
    """The data set with about `fraction` of train moved to the split `into`, and a note that says so.

    Which images go depends on each one's name below the root (in an array: its number) and on the seed alone. So a
    class has about its share, not exactly. Two exceptions for few images: a class keeps at least one image in train,
    and where none at all would be held out, the first in line is.
    """
    if not 0 <= fraction < 1:
        raise DataError(f"The fraction to hold out must be at least 0 and less than 1, not {fraction}.")
    assert "train" in dataset.splits
    assert into not in dataset.splits
    train = dataset.splits["train"]
    if fraction == 0:
        return dataset
    held = _choose(identities(train.images), _class_numbers(train), fraction, seed, into)
    kept, taken = np.flatnonzero(~held), np.flatnonzero(held)
    if not len(taken):
        why = "it has one image only" if len(train) == 1 else "every class has one image only"
        note = f"No {into} part was held out of train: {why}."
        return dataclasses.replace(dataset, notes=(*dataset.notes, note))
    splits = {"train": train.take(kept), into: train.take(taken)}
    splits |= {name: split for name, split in dataset.splits.items() if name != "train"}
    part = f"{into} is {len(taken):,} of the {len(train):,} images of train ({fraction * 100:g}% wanted)"
    note = f"{part}, held out by a hash of each image's name (seed {seed})."
    return dataclasses.replace(
        dataset,
        splits={name: splits[name] for name in (*SPLITS, UNLABELLED) if name in splits},
        fingerprint=Digest(dataset.fingerprint, into, repr(float(fraction)), seed).text(),
        notes=(*dataset.notes, note),
    )


def divide_by_class(dataset: DataSet, fraction: float, seed: int = 0) -> DataSet:
    """A set with a train part alone, of each class about `fraction` in val and as many in test, and a note on it.

    The images of a class stand in the order of a hash of each one's name: the first are test, the last val. A class is
    in train first, in val with two images, and in all three parts with three. An added image moves at most two others.
    Images without one class each are divided as one; without any target there is nothing to test.
    """
    assert dataset.undivided
    train = dataset.splits["train"]
    if fraction == 0:
        return dataset
    if not train.targets:
        return hold_out(dataset, fraction, seed)
    classes = _class_numbers(train)
    chosen = _numbered_parts(identities(train.images), classes, fraction, seed)
    places = {part: np.flatnonzero(chosen == number) for number, part in enumerate(SPLITS)}
    splits = {part: train.take(found) for part, found in places.items() if len(found)}
    if len(splits) == 1:
        note = f"Nothing was held out of train: {'it has' if len(train) == 1 else 'every class has'} one image only."
    else:
        held = " and ".join(f"{len(splits[part]):,} are {part}" for part in ("val", "test") if part in splits)
        share = f"{'' if classes is None else 'of each class '}about {fraction * 100:g}% each"
        note = f"Of {len(train):,} images {held}: {share}, by a hash of each image's name (seed {seed})."
    fingerprint = Digest(dataset.fingerprint, "by class", repr(float(fraction)), seed).text()
    splits |= {name: split for name, split in dataset.splits.items() if name == UNLABELLED}
    return dataclasses.replace(dataset, splits=splits, fingerprint=fingerprint, notes=(*dataset.notes, note))


def fraction_of_train(dataset: DataSet, fraction: float, seed: int = 0) -> DataSet:
    """The data set with of each class of train about `fraction` of the images, one at least, and a note on it.

    The images of a class stand in the order of a hash of each one's name, and the first are taken: a smaller part lies
    within every larger one. Images without one class each are taken as one.
    """
    if fraction == 1:
        return dataset
    train = _train_of(dataset)
    taken = _first_of_each_class(train, fraction, seed)
    note = (
        f"train is {len(taken):,} of its {len(train):,} images: of each class {fraction * 100:g}%, by a hash of each"
        f" image's name (seed {seed})."
    )
    return dataclasses.replace(
        dataset,
        splits={**dataset.splits, "train": train.take(taken)},
        fingerprint=Digest(dataset.fingerprint, "fraction", repr(float(fraction)), seed).text(),
        notes=(*dataset.notes, note),
    )


def labelled_part_of_train(dataset: DataSet, fraction: float, seed: int = 0) -> DataSet:
    """The data set with labels for about `fraction` of each class of train alone, one image at least, and a note on it.

    Train is what `fraction_of_train` leaves of it; all of its images are unlabelled ones too, as FixMatch has them,
    before those that the set has in any case.
    """
    if fraction == 1:
        return dataset
    train = _train_of(dataset)
    if not train.targets:
        raise DataError(
            f"{dataset.name} has no labels, so that there are none to keep for {fraction * 100:g}% of its images: leave"
            " out data.labelled."
        )
    taken = _first_of_each_class(train, fraction, seed)
    images, others = train.images, dataset.splits.get(UNLABELLED)
    if others is not None:
        images = Joined((images, others.images))
    note = (
        f"Labels are those of {len(taken):,} of the {len(train):,} images of train: of each class"
        f" {fraction * 100:g}%, by a hash of each image's name (seed {seed}). All are in unlabelled, without them."
    )
    return dataclasses.replace(
        dataset,
        splits={**dataset.splits, "train": train.take(taken), UNLABELLED: Split(images)},
        fingerprint=Digest(dataset.fingerprint, "labelled", repr(float(fraction)), seed).text(),
        notes=(*dataset.notes, note),
    )


def _train_of(dataset: DataSet) -> Split:
    if "train" not in dataset.splits:
        raise DataError(f"{dataset.name} has no train part, of which data.fraction and data.labelled take some.")
    return dataset.splits["train"]


def _first_of_each_class(train: Split, fraction: float, seed: int) -> Array:
    """The numbers of about `fraction` of the images of each class, those that a counted order has first."""
    strata, rank = _ranked(identities(train.images), _class_numbers(train), key(seed, "fraction of train"))
    wanted = np.maximum(np.floor(np.bincount(strata) * fraction + 0.5), 1)  # halves upwards
    return np.flatnonzero(rank < wanted[strata])


def _ranked(numbers: Array, labels: Array | None, order_key: int) -> tuple[Array, Array]:
    """Each image's class, or 0, and its place among the images of that class in an order that is counted."""
    chance = uniform(order_key, numbers).astype(np.float64)
    strata = np.zeros(len(numbers), np.int64) if labels is None else labels
    order = np.lexsort((numbers, chance, strata))
    counts = np.bincount(strata)
    starts = np.cumsum(counts) - counts
    rank = np.empty(len(numbers), np.int64)
    rank[order] = np.arange(len(numbers)) - starts[strata[order]]
    return strata, rank


def _numbered_parts(numbers: Array, labels: Array | None, fraction: float, seed: int) -> Array:
    """0, 1 or 2 for each image: train, val or test."""
    strata, rank = _ranked(numbers, labels, key(seed, "divide by class"))
    counts = np.bincount(strata)
    share = np.floor(counts * fraction + 0.5).astype(np.int64)  # halves upwards
    share = np.minimum(np.maximum(share, 1), (counts - 1) // 2)
    last = (counts - np.where(counts == 2, 1, share))[strata]
    return np.where(rank < share[strata], 2, np.where(rank >= last, 1, 0))


def identities(images: Images) -> Array:
    """A number for each image that stays its own when others are added; its place where the images tell no more."""
    if isinstance(images, Subset):
        return identities(images.images)[images.indices]
    if isinstance(images, Joined):
        return np.concatenate([identities(each) for each in images.collections])
    if hasattr(images, "identities"):
        return cast("SourceImages", images).identities()
    return np.arange(len(images), dtype=np.int64)


def _class_numbers(split: Split) -> Array | None:
    """The one class of each image; None where they have several, or no label at all."""
    return split.labels if "label" in split.targets and split.label.kind == "class" else None


def _choose(numbers: Array, labels: Array | None, fraction: float, seed: int, into: str) -> Array:
    chance = uniform(key(seed, "hold out", into), numbers).astype(np.float64)
    held = chance < fraction
    order = np.lexsort((numbers, chance))
    if labels is not None:
        last = np.full(int(labels.max()) + 1, -1)
        last[labels[order]] = order  # of each class the image that would be held out last; assignment keeps the last
        held[last[last >= 0]] = False
    if not held.any():
        movable = np.ones(len(numbers), bool) if labels is None else np.bincount(labels)[labels] > 1
        movable &= np.arange(len(numbers)) != order[-1]
        first = order[movable[order]][:1]
        held[first] = True
    return held

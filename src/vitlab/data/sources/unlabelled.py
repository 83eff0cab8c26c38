"""A folder of images without labels beside those of a set's parts, whatever these are."""

import dataclasses
from pathlib import Path

from vitlab.data.contract import UNLABELLED, DataSet, Joined, Split
from vitlab.data.sources.files import Files, list_folders, list_images
from vitlab.data.sources.source import SPLIT_WORDS, Digest

NAMES = ("unlabelled", "unlabeled")


def is_unlabelled(name: str) -> bool:
    """Whether a folder beside train is called as the unlabelled images are."""
    return name.lower() in NAMES


def with_unlabelled(dataset: DataSet, path: Path) -> DataSet:
    """The set with the images of a folder `unlabelled` beside its `train`, however deep they lie, as one part more."""
    folders = list_folders(path) if path.is_dir() else []
    if not any(SPLIT_WORDS.get(name.lower()) == "train" for name in folders):
        return dataset  # it may be a class
    for name in filter(is_unlabelled, folders):
        listing = list_images(path, name)
        if not listing.names:
            continue
        images, there = Files(path, listing.names, listing.sizes), dataset.splits.get(UNLABELLED)
        joined = images if there is None else Joined((there.images, images))
        dataset = dataclasses.replace(
            dataset,
            splits={**dataset.splits, UNLABELLED: Split(joined)},
            fingerprint=Digest(dataset.fingerprint, UNLABELLED, images.mark()).text(),
            notes=(*dataset.notes, *listing.notes()),
        )
    return dataset

"""ImageNet-C and Tiny-ImageNet-C as their authors publish them: CORRUPTION/SEVERITY/WNID/*.JPEG.

All of it is the test part, in which the target `condition` tells corruption and severity of each image.
"""

import dataclasses
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from vitlab.core.errors import DataError
from vitlab.core.imagenet import WNID
from vitlab.data.conditions import ALL, SEVERITIES, TARGET, condition
from vitlab.data.contract import Array, DataSet, Split, Values
from vitlab.data.sources.files import Files, Listing, list_folders, list_many
from vitlab.data.sources.source import Published, make

FAMILIES = ("", "noise/", "blur/", "weather/", "digital/", "extra/")  # the archives' folders, where they are kept
IMAGENET_C, TINY = "imagenet-c", "tiny-imagenet-c"


def is_imagenet_c(path: Path) -> bool:
    return not _is_tiny(path) and any(True for _ in _corruptions(path))


def is_tiny_c(path: Path) -> bool:
    return _is_tiny(path) and any(True for _ in _corruptions(path))


def read(path: Path) -> DataSet:
    """Conditions in the order of the paper, in each of them the images by class and name."""
    found: list[tuple[int, str, Listing]] = []  # condition, class, images
    for corruption, folder in _corruptions(path):
        for severity in SEVERITIES:
            here = f"{folder}/{severity}"
            classes = [name for name in list_folders(path / here) if WNID.fullmatch(name)]
            if not classes:
                raise DataError(f"{path / here} has no class folders (n01440764, ...): unpack {corruption} again.")
            listings = list_many(path, [f"{here}/{name}" for name in classes])
            number = condition(corruption, severity)
            found += [(number, name, listing) for name, listing in zip(classes, listings, strict=True) if listing.names]
    everything = Listing()
    for _, _, listing in found:
        everything.add(listing)
    if not any(everything.sizes):
        raise DataError(f"The folder {path} holds no images.")
    classes = sorted({name for _, name, _ in found})
    labels = _repeated((classes.index(name), listing) for _, name, listing in found)
    conditions = _repeated((number, listing) for number, _, listing in found)
    images = Files(path, everything.names, everything.sizes)
    name = TINY if _is_tiny(path) else IMAGENET_C
    dataset = make(name, classes, {"test": (images, labels)}, notes=everything.notes())
    targets = {**dataset.splits["test"].targets, TARGET: Values(conditions)}
    return dataclasses.replace(dataset, splits={"test": Split(images, targets)})


def _is_tiny(path: Path) -> bool:
    return "tiny" in path.absolute().name.lower()


def _corruptions(path: Path) -> Iterable[tuple[str, str]]:
    """The corruptions that are there, each with its folder below the path."""
    for corruption in ALL:
        for family in FAMILIES:
            if (path / family / corruption / str(SEVERITIES[0])).is_dir():
                yield corruption, f"{family}{corruption}"
                break


def _repeated(items: Iterable[tuple[int, Listing]]) -> Array:
    return np.concatenate([np.full(len(listing.names), number, np.int64) for number, listing in items])


PAGE = "https://github.com/hendrycks/robustness"
SOURCE = (
    Published(TINY, "Tiny-ImageNet-C", is_tiny_c, read, ("Tiny-ImageNet-C",), PAGE, num_classes=200),
    Published(IMAGENET_C, "ImageNet-C", is_imagenet_c, read, ("ImageNet-C",), PAGE, num_classes=1000),
)

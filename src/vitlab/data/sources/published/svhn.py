"""SVHN's cropped digits (format 2) as its authors publish them."""

from pathlib import Path

import numpy as np

from vitlab.core.errors import DataError
from vitlab.data.contract import Array, DataSet
from vitlab.data.sources.pixels import Pixels
from vitlab.data.sources.published.matlab import read_mat, whole_numbers
from vitlab.data.sources.source import Published, make

FILES = {"train": "train_32x32.mat", "test": "test_32x32.mat"}
EXTRA = "extra_32x32.mat"


def recognizes(path: Path) -> bool:
    return any((path / file).is_file() for file in FILES.values())


def read(path: Path) -> DataSet:
    """X is [32, 32, 3, N], y is 1 to 10, where 10 stands for the digit 0."""
    parts: dict[str, tuple[Pixels, Array]] = {}
    notes: list[str] = []
    for split, name in FILES.items():
        file = path / name
        if not file.is_file():
            notes.append(f"There is no {split} part: {name} is missing.")
            continue
        pictures, labels = read_mat(file, "X", "y")
        labels = whole_numbers(labels, file)
        if labels.min(initial=0) < 0 or labels.max(initial=0) > 10:
            raise DataError(f"{file} is damaged: its labels reach from {labels.min()} to {labels.max()}, not 1 to 10.")
        if pictures.dtype != np.uint8 or pictures.shape != (32, 32, 3, len(labels)):
            raise DataError(f"{file} is damaged: pictures of shape {list(pictures.shape)} for {len(labels)} labels.")
        parts[split] = Pixels(np.ascontiguousarray(pictures.transpose(3, 0, 1, 2)), str(file)), labels % 10
    if (path / EXTRA).is_file():
        notes.append(f"{EXTRA} is not used.")
    return make("svhn", tuple("0123456789"), parts, notes=notes, changes_labels=("flip",))


SOURCE = Published(
    "svhn",
    "SVHN (cropped digits)",
    recognizes,
    read,
    ("svhn",),
    "http://ufldl.stanford.edu/housenumbers",
    num_classes=10,
)

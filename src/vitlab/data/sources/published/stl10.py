"""STL-10 as its authors publish it: one block of bytes per part."""

from pathlib import Path

import numpy as np

from vitlab.core.errors import DataError
from vitlab.data.contract import UNLABELLED, Array, DataSet
from vitlab.data.sources.labels import read_lines
from vitlab.data.sources.pixels import MappedPixels
from vitlab.data.sources.source import Published, make

SIDE = 96
CLASSES = ("airplane", "bird", "car", "cat", "deer", "dog", "horse", "monkey", "ship", "truck")  # class_names.txt


def recognizes(path: Path) -> bool:
    return any((path / f"{split}_X.bin").is_file() for split in ("train", "test"))


def read(path: Path) -> DataSet:
    """Pictures [N, 3, 96, 96] with columns before rows; labels 1 to 10."""
    names = path / "class_names.txt"
    classes = read_lines(names) if names.is_file() else CLASSES
    parts: dict[str, tuple[MappedPixels, Array | None]] = {}
    notes: list[str] = []
    for split in ("train", "test"):
        pixels, labels = path / f"{split}_X.bin", path / f"{split}_y.bin"
        if not pixels.is_file():
            notes.append(f"There is no {split} part: {pixels.name} is missing.")
            continue
        if not labels.is_file():
            raise DataError(f"{path} is not complete: there is no {labels.name}.")
        numbers = np.fromfile(labels, np.uint8).astype(np.int64) - 1
        shape = (len(numbers), 3, SIDE, SIDE)
        size = pixels.stat().st_size
        if size != len(numbers) * 3 * SIDE * SIDE:
            raise DataError(f"{pixels} is damaged: {size:,} bytes for the {len(numbers):,} labels of {labels.name}.")
        if len(numbers) and not 0 <= numbers.min() <= numbers.max() < len(classes):
            raise DataError(f"{labels} is damaged: its labels are not all in 1 to {len(classes)}.")
        parts[split] = MappedPixels(pixels, shape, np.dtype(np.uint8), axes=(2, 1, 0)), numbers
    if (pixels := path / "unlabeled_X.bin").is_file():
        num, rest = divmod(pixels.stat().st_size, 3 * SIDE * SIDE)
        if rest:
            raise DataError(f"{pixels} is damaged: its {pixels.stat().st_size:,} bytes are no whole number of images.")
        parts[UNLABELLED] = MappedPixels(pixels, (num, 3, SIDE, SIDE), np.dtype(np.uint8), axes=(2, 1, 0)), None
    if (path / "fold_indices.txt").is_file():
        notes.append("fold_indices.txt (the ten folds of train) is not used.")
    return make("stl10", classes, parts, notes=notes)


SOURCE = Published(
    "stl10", "STL-10", recognizes, read, ("stl10_binary",), "https://cs.stanford.edu/~acoates/stl10", num_classes=10
)

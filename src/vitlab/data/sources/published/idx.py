"""MNIST and Fashion-MNIST as their authors publish them: IDX files, plain or gzipped."""

import gzip
import math
import struct
import zlib
from pathlib import Path

import numpy as np

from vitlab.core.errors import DataError
from vitlab.core.reading import most_inflated
from vitlab.data.contract import Array, DataSet
from vitlab.data.sources.pixels import MappedPixels, Pixels
from vitlab.data.sources.source import Published, make

DIGITS = tuple("0123456789")
# github.com/zalandoresearch/fashion-mnist, README
CLOTHES = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
CLOTHES_LABELS = (9, 0, 0, 3, 0, 2, 7, 2)  # how Fashion-MNIST's training labels begin; the files' names are MNIST's
PARTS = {"train": "train", "test": "t10k"}
BYTE = 8  # the type code of unsigned bytes, the third byte of the magic number


def recognizes(path: Path) -> bool:
    """Whether the files are there, of whichever of the two sets."""
    return any(_find(path, prefix, "images", 3) for prefix in PARTS.values())


def read_mnist(path: Path) -> DataSet:
    return _read(path, "mnist", DIGITS)


def read_fashion(path: Path) -> DataSet:
    return _read(path, "fashion-mnist", CLOTHES)


def is_fashion(path: Path) -> bool:
    """Whether it is Fashion-MNIST, by its first labels or the name of its folder, the nearest that tells."""
    if not recognizes(path):
        return False
    around = [part.lower() for part in reversed(path.resolve().parts[-3:])]
    if "fashion" in next((part for part in around if "mnist" in part), " ".join(around)):
        return True
    labels = _find(path, "train", "labels", 1)
    try:
        return labels is not None and tuple(_load(labels, 1)[: len(CLOTHES_LABELS)].tolist()) == CLOTHES_LABELS
    except DataError:  # what is wrong with it, reading says
        return False


def is_mnist(path: Path) -> bool:
    return recognizes(path) and not is_fashion(path)


def _read(path: Path, name: str, classes: tuple[str, ...]) -> DataSet:
    parts: dict[str, tuple[MappedPixels | Pixels, Array]] = {}
    notes: list[str] = []
    for split, prefix in PARTS.items():
        images, labels = _find(path, prefix, "images", 3), _find(path, prefix, "labels", 1)
        if images is None and labels is None:
            notes.append(f"There is no {split} part: {prefix}-images-idx3-ubyte is missing.")
            continue
        if images is None or labels is None:
            raise DataError(f"{path} is not complete: of {prefix} there are no {'labels' if images else 'images'}.")
        numbers = _load(labels, 1).astype(np.int64)
        pictures = Pixels(_load(images, 3), str(images)) if images.suffix == ".gz" else _map(images)
        if len(pictures) != len(numbers):
            raise DataError(f"{images} holds {len(pictures):,} pictures, but {labels.name} {len(numbers):,} labels.")
        if numbers.max(initial=0) >= len(classes):
            raise DataError(f"{labels} is damaged: the label {numbers.max()} is none of 0 to {len(classes) - 1}.")
        parts[split] = pictures, numbers
    return make(name, classes, parts, notes=notes, changes_labels=("flip",) if name == "mnist" else ())


def _find(path: Path, prefix: str, what: str, dimensions: int) -> Path | None:
    for joint in "-.":  # unpackers have written the name both ways
        for end in ("", ".gz"):
            file = path / f"{prefix}-{what}{joint}idx{dimensions}-ubyte{end}"
            if file.is_file():
                return file
    return None


def _load(file: Path, dimensions: int) -> Array:
    most = most_inflated(file.stat().st_size)
    try:
        with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as stream:
            shape = _shape(file, stream.read(4 + 4 * dimensions), dimensions)
            if (claimed := math.prod(shape)) > most:
                raise DataError(f"{file} is damaged: its header tells {claimed:,} bytes, which it cannot hold.")
            values = stream.read(claimed + 1)  # one more, to see that there are no more
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{file} is damaged: {str(error).rstrip('.')}.") from error
    _check_size(file, shape, 4 + 4 * dimensions + len(values))
    return np.frombuffer(values, np.uint8).reshape(shape)


def _map(file: Path) -> MappedPixels:
    with file.open("rb") as stream:
        shape = _shape(file, stream.read(16), 3)
    _check_size(file, shape, file.stat().st_size)
    return MappedPixels(file, shape, np.dtype(np.uint8), offset=16)


def _shape(file: Path, head: bytes, dimensions: int) -> tuple[int, ...]:
    if head[:4] != bytes((0, 0, BYTE, dimensions)):
        raise DataError(f"{file} is not an IDX file of bytes: it begins with {head[:4].hex(' ') or 'nothing'}.")
    if len(head) < 4 + 4 * dimensions:
        raise DataError(f"{file} is cut off in its header.")
    return struct.unpack(f">{dimensions}I", head[4:])


def _check_size(file: Path, shape: tuple[int, ...], size: int) -> None:
    expected = 4 + 4 * len(shape) + math.prod(shape)
    if size != expected:
        raise DataError(f"{file} is damaged: {size:,} bytes where its header tells {expected:,}.")


SOURCE = (
    Published(
        "fashion-mnist",
        "Fashion-MNIST",
        is_fashion,
        read_fashion,
        ("FashionMNIST/raw", "fashion-mnist", "data/fashion"),  # the last in its authors' repository
        "https://github.com/zalandoresearch/fashion-mnist",
        num_classes=10,
    ),
    Published(
        "mnist", "MNIST", is_mnist, read_mnist, ("MNIST/raw",), "http://yann.lecun.com/exdb/mnist", num_classes=10
    ),
)

"""Arrays of NumPy's: a `.npz`, or a folder of `.npy` files; uncompressed pictures are mapped into memory.

Names say what an array is: x, images or data; y, labels or targets; with train, val or test beside it or nothing. So
Keras's (x_train, y_train, x_test, y_test) and MedMNIST's (train_images, train_labels, ...) are read as they are.
"""

import math
import re
import struct
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from vitlab.core.errors import DataError, Error
from vitlab.core.reading import most_inflated
from vitlab.data.contract import Array, DataSet
from vitlab.data.sources.labels import Labels, class_names_beside, from_columns, from_numbers, from_texts
from vitlab.data.sources.pixels import MappedPixels, Pixels, check_values, picture_axes
from vitlab.data.sources.source import SPLIT_WORDS, Source, make
from vitlab.data.sources.wording import few

IMAGE_WORDS = {"x", "image", "images", "data", "pictures"}
LABEL_WORDS = {"y", "label", "labels", "target", "targets"}
NAMES = ("classes", "class_names", "label_names")


@dataclass(frozen=True)
class Stored:
    """An array in a file, not yet read; `info` where the file is a zip."""

    path: Path
    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran: bool
    offset: int | None  # where its values begin; None where they are compressed
    info: zipfile.ZipInfo | None = None

    def load(self) -> Array:
        with _damage(self.path, self.name), _stream(self.path, self.info) as stream:
            return np.lib.format.read_array(stream, allow_pickle=False)


def recognizes(path: Path) -> bool:
    """Whether it is such a file, or a folder of them."""
    if path.is_dir():
        return any(role(file.stem) and role(file.stem)[0] == "images" for file in path.glob("*.npy"))  # pyright: ignore[reportOptionalSubscript]
    return path.suffix.lower() in (".npz", ".npy")


def read(path: Path) -> DataSet:
    """The pictures and labels of a `.npz`, of a folder, or of the folder that a `.npy` is in."""
    if path.suffix.lower() == ".npy" and not path.is_dir():
        path = path.parent
    stored = _in_folder(path) if path.is_dir() else _in_zip(path)
    roles = {name: what for name in stored if (what := role(name)) is not None}
    images = {split: stored[name] for name, (kind, split) in roles.items() if kind == "images"}
    labelled = {split: stored[name] for name, (kind, split) in roles.items() if kind == "labels"}
    if len(images) + len(labelled) != len(roles):
        raise DataError(f"{path} holds several arrays of the same meaning: {', '.join(sorted(roles))}.")
    if not images or images.keys() != labelled.keys():
        raise DataError(
            f"{path} holds {', '.join(sorted(stored)) or 'no arrays'}; expected were images and labels, or x_train and"
            " y_train (and the same with val or test)."
        )
    notes = (
        [f"Arrays left out: {few(left_out)}."] if (left_out := sorted(stored.keys() - roles.keys() - {*NAMES})) else []
    )
    labels = _labels({split: labelled[split].load() for split in images}, _class_names(path, stored), where=str(path))
    parts: dict[str, tuple[MappedPixels | Pixels, Array]] = {}
    for split, array in images.items():
        if array.shape[:1] != labels.splits[split].shape[:1]:
            raise DataError(
                f"{path}: '{array.name}' holds {array.shape[0] if array.shape else 0:,} pictures, but"
                f" '{labelled[split].name}' {len(labels.splits[split]):,} labels."
            )
        parts[split] = _pictures(array), labels.splits[split]
    name = path.resolve().stem if path.is_file() else path.resolve().name
    return make(name, labels.classes, parts, kind=labels.kind, notes=notes + labels.notes)


def role(name: str) -> tuple[str, str] | None:
    """('images' or 'labels', split) of an array's name; None where it says neither."""
    words = [word for word in re.split(r"[^a-z0-9]+", name.lower()) if word]
    splits = [SPLIT_WORDS[word] for word in words if word in SPLIT_WORDS]
    rest = [word for word in words if word not in SPLIT_WORDS]
    if len(splits) > 1 or len(rest) != 1 or rest[0] not in IMAGE_WORDS | LABEL_WORDS:
        return None
    return "images" if rest[0] in IMAGE_WORDS else "labels", splits[0] if splits else "train"


def _pictures(array: Stored) -> MappedPixels | Pixels:
    where = f"{array.path} ({array.name})" if array.info else str(array.path)
    axes = picture_axes(array.shape, where=where)
    if array.offset is None:
        values = array.load()
        pixels = Pixels(values if axes is None else values.transpose(0, *(axis + 1 for axis in axes)), where)
    else:
        pixels = MappedPixels(
            array.path, array.shape, array.dtype, offset=array.offset, axes=axes, fortran=array.fortran
        )
    check_values(pixels.values, where=where)
    return pixels


def _labels(splits: Mapping[str, Array], names: Sequence[str] | None, *, where: str) -> Labels:
    flat = {split: values[:, 0] if values.shape[1:] == (1,) else values for split, values in splits.items()}
    kinds = {values.dtype.kind for values in flat.values()}
    if all(values.ndim == 1 for values in flat.values()):
        if kinds <= {"U", "S"}:
            return from_texts({split: [_text(value) for value in values] for split, values in flat.items()})
        return from_numbers(flat, names, where=where)
    widths = {values.shape[1:] for values in flat.values()}
    if len(widths) > 1 or len(next(iter(widths))) != 1 or not all(np.isin(v, (0, 1)).all() for v in flat.values()):
        shapes = " and ".join(str(list(values.shape)) for values in flat.values())
        raise DataError(
            f"{where}: labels must be class numbers [N], or columns of 0 and 1 [N, classes]; found {shapes}."
        )
    [[width]] = widths
    if names is not None and len(names) != width:
        raise DataError(f"{where}: there are {len(names)} class names for {width} columns of labels.")
    return from_columns(flat, names if names is not None else [str(i) for i in range(width)])


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _class_names(path: Path, stored: Mapping[str, Stored]) -> list[str] | None:
    for name in NAMES:
        if name in stored:
            names = [_text(value) for value in stored[name].load().reshape(-1)]
            if twice := [of for of, count in Counter(names).items() if count > 1]:
                raise DataError(f"{path}: '{name}' names {few(twice)} twice: give each class a name of its own.")
            return names
    return class_names_beside(path if path.is_dir() else path.parent)


def _in_folder(folder: Path) -> dict[str, Stored]:
    found: dict[str, Stored] = {}
    for path in sorted(folder.glob("*.npy")):
        with _damage(path, ""), path.open("rb") as stream:
            shape, fortran, dtype = _header(stream)
            offset = stream.tell()
            missing = offset + math.prod(shape) * dtype.itemsize - path.stat().st_size
        found[path.stem] = _checked(Stored(path, path.stem, shape, dtype, fortran, offset), missing)
    return found


def _in_zip(path: Path) -> dict[str, Stored]:
    found: dict[str, Stored] = {}
    with _damage(path, ""), zipfile.ZipFile(path) as archive:
        claimed, held = sum(info.file_size for info in archive.infolist()), path.stat().st_size
        if claimed > most_inflated(held):
            raise DataError(f"{path} is damaged: its arrays claim {claimed:.3g} bytes, and the file has {held:.3g}.")
        for info in archive.infolist():
            name = info.filename.removesuffix(".npy")
            with archive.open(info) as stream:
                shape, fortran, dtype = _header(stream)
                header = stream.tell()
            offset = None
            if info.compress_type == zipfile.ZIP_STORED:
                with path.open("rb") as raw:
                    raw.seek(info.header_offset)  # the central directory does not tell how long the local header is
                    of_name, of_extra = struct.unpack("<26xHH", raw.read(30))
                offset = info.header_offset + 30 + of_name + of_extra + header
            missing = header + math.prod(shape) * dtype.itemsize - info.file_size
            found[name] = _checked(Stored(path, name, shape, dtype, fortran, offset, info), missing)
    return found


def _header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = np.lib.format.read_magic(stream)
    reader = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    return reader(stream)


def _checked(array: Stored, missing: int) -> Stored:
    what = f"{array.path} ({array.name})" if array.info else str(array.path)
    if array.dtype.hasobject:
        raise DataError(f"{what} is an array of Python objects, which could run code: it is not read.")
    if missing > 0 or min(array.shape, default=0) < 0:
        raise DataError(f"{what} is cut off: {missing:,} bytes are missing.")
    return array


@contextmanager
def _stream(path: Path, info: zipfile.ZipInfo | None) -> Iterator[IO[bytes]]:
    if info is None:
        with path.open("rb") as stream:
            yield stream
    else:
        with zipfile.ZipFile(path) as archive, archive.open(info) as stream:
            yield stream


@contextmanager
def _damage(path: Path, name: str) -> Iterator[None]:
    try:
        yield
    except Error:
        raise
    except Exception as error:  # NumPy raises many kinds for damaged headers
        said = (str(error).splitlines() or [""])[0].rstrip(".") or type(error).__name__
        raise DataError(
            f"{path}{f' ({name})' if name else ''} is damaged, or not an array of NumPy's: {said}."
        ) from error


SOURCE = Source("arrays", "arrays", recognizes, read)

"""Labels as they are written, to class numbers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from vitlab.core.errors import DataError
from vitlab.data.contract import Array, ValueKind
from vitlab.data.sources.wording import few, natural

CLASS_FILES = ("classes.txt", "classnames.txt", "class_names.txt")


@dataclass
class Labels:
    """Classes, and for each split class numbers [N], or, of kind several, one column per class [N, K]."""

    classes: tuple[str, ...]
    splits: dict[str, Array]
    kind: ValueKind = "class"
    notes: list[str] = field(default_factory=list)


def read_lines(path: Path) -> list[str]:
    """The lines of a text file that are not blank, without surrounding space."""
    try:
        lines = path.read_text("utf-8-sig").splitlines()
    except FileNotFoundError:
        raise DataError(f"There is no {path}, which belongs to the data set.") from None
    except OSError as error:
        raise DataError(f"Cannot read {path}: {error.strerror or error}.") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not a text in UTF-8.") from error
    return [line.strip() for line in lines if line.strip()]


def class_names_beside(folder: Path) -> list[str] | None:
    """The names of the classes, one per line, where a file beside the data gives them."""
    for name in CLASS_FILES:
        if (folder / name).is_file():
            names = read_lines(folder / name)
            if len(set(names)) < len(names):
                raise DataError(f"{folder / name} has a class twice: {few([n for n in names if names.count(n) > 1])}.")
            return names
    return None


def from_numbers(splits: Mapping[str, Array], names: Sequence[str] | None, *, where: str) -> Labels:
    """Class numbers from numbers as written: whole ones from 0 on, of whichever type.

    With names a number is a place among them. Without, the classes are the distinct numbers in order, each named by
    itself, so that labels 1 to 10 give ten classes and not eleven.
    """
    splits = {split: _integers(values, where) for split, values in splits.items()}
    distinct = np.unique(np.concatenate([np.unique(values) for values in splits.values()]))
    if names is not None:
        wrong = [str(value) for value in distinct if not 0 <= value < len(names)]
        if wrong:
            raise DataError(
                f"{where}: the labels {few(wrong)} are not among the {len(names)} classes, which count from 0."
            )
        return Labels(tuple(names), splits)
    found = {split: np.searchsorted(distinct, values).astype(np.int64) for split, values in splits.items()}
    return Labels(tuple(str(value) for value in distinct.tolist()), found)


def _integers(values: Array, where: str) -> Array:
    if values.dtype.kind not in "biuf" or not np.isfinite(values).all() or (values != np.rint(values)).any():
        raise DataError(f"{where}: labels must be whole numbers or texts, not {values.dtype}.")
    if (values < 0).any():
        raise DataError(f"{where}: some labels are negative; leave images without a label out.")
    if (most := int(values.max(initial=0))) >= 2**63:
        raise DataError(f"{where}: the label {most} is too large for a class number; number the classes from 0.")
    return values.astype(np.int64)


def from_texts(splits: Mapping[str, Sequence[str]]) -> Labels:
    """Class numbers from names: the classes are the distinct names in natural order."""
    classes = sorted({name for names in splits.values() for name in names}, key=natural)
    if any(not name.strip() for name in classes):
        raise DataError("Some images have a blank label: write their class, or leave them out.")
    number = {name: i for i, name in enumerate(classes)}
    found = {split: np.fromiter((number[name] for name in names), np.int64) for split, names in splits.items()}
    return Labels(tuple(classes), found)


def from_sets(splits: Mapping[str, Sequence[Sequence[str]]]) -> Labels:
    """One column per class from several names an image; none is allowed."""
    classes = sorted({name for rows in splits.values() for row in rows for name in row}, key=natural)
    number = {name: i for i, name in enumerate(classes)}
    found: dict[str, Array] = {}
    for split, rows in splits.items():
        columns = np.zeros((len(rows), len(classes)), np.uint8)
        for i, row in enumerate(rows):
            columns[i, [number[name] for name in row]] = 1
        found[split] = columns
    return Labels(tuple(classes), found, kind="several")


def from_columns(splits: Mapping[str, Array], names: Sequence[str]) -> Labels:
    """Columns of 0 and 1, one per class; where every row has exactly one 1 they are class numbers in disguise."""
    if all((columns.sum(axis=1) == 1).all() for columns in splits.values()):
        found = {split: columns.argmax(axis=1).astype(np.int64) for split, columns in splits.items()}
        return Labels(tuple(names), found, notes=["Every image has exactly one class, so it is a single-label set."])
    return Labels(tuple(names), {split: c.astype(np.uint8) for split, c in splits.items()}, kind="several")

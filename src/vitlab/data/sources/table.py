"""CSV files that name images and their labels: one label per row, several, or a column of 0 and 1 for each class."""

import csv
import itertools
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import numpy as np

from vitlab.core.errors import DataError
from vitlab.data.contract import DataSet
from vitlab.data.sources.files import Files, Listing, list_folders, measure
from vitlab.data.sources.labels import Labels, from_columns, from_sets, from_texts
from vitlab.data.sources.source import SPLIT_WORDS, Source, make
from vitlab.data.sources.wording import few

PATH_COLUMNS = ("path", "file", "filename", "file_name", "filepath", "file_path", "image", "image_path", "img")
LABEL_COLUMNS = ("label", "labels", "class", "classes", "category", "target")
SPLIT_COLUMNS = ("split", "set", "subset", "partition")
EXPECTED = (
    "expected were 'path' and 'label' (several labels joined by ; or |), or 'path' and a column of 0 and 1 a class"
)


@dataclass(frozen=True)
class Table:
    """The cells of a CSV and what its columns are."""

    path: Path
    header: list[str]
    rows: list[list[str]]
    lines: list[int]  # where each row ends in the file
    image: int
    label: int | None
    split: int | None

    @property
    def class_columns(self) -> list[int]:
        return [i for i in range(len(self.header)) if i not in (self.image, self.label, self.split)]


def recognizes(path: Path) -> bool:
    """Whether it is a CSV or TSV, or a folder with train.csv and no train/ of class folders."""
    if path.is_dir():
        return (path / "train.csv").is_file() and not ((path / "train").is_dir() and list_folders(path / "train"))
    return path.suffix.lower() in (".csv", ".tsv")


def names_images(folder: Path) -> bool:
    """Whether a file that the first rows of train.csv name is there."""
    path = folder / "train.csv"
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = list(itertools.islice(csv.reader(file, delimiter=_delimiter(path, file)), 100))
    except (OSError, UnicodeDecodeError, csv.Error):
        return False
    return any(os.path.isfile(folder / cell.strip()) for row in rows for cell in row)  # noqa: PTH113  never raises


def read(path: Path) -> DataSet:
    """The images that a CSV names; a folder's train.csv, val.csv and test.csv together."""
    tables = [_parse(file) for file in _files(path)]
    where, root = str(path), path if path.is_dir() else path.parent
    split_of = [split for table in tables for split in _splits(table, fixed=path.is_dir())]
    names = [row[table.image] for table in tables for row in table.rows]
    if not names:
        raise DataError(f"{where} names no images: it has a header only.")
    sizes = measure(root, names, named_in=path)
    if not any(sizes):
        raise DataError(f"All {len(names):,} images that {where} names are empty files: copy them again.")
    chosen = {split: [i for i, of in enumerate(split_of) if of == split] for split in dict.fromkeys(split_of)}
    labels = _labels(tables, chosen)
    parts = {
        split: (Files(root, [names[i] for i in rows], [sizes[i] for i in rows]), labels.splits[split])
        for split, rows in chosen.items()
    }
    notes = labels.notes + Listing(names, sizes).notes()
    distinct = [{names[i] for i in rows} for rows in chosen.values()]
    if twice := len(names) - sum(map(len, distinct)):
        notes.append(
            f"{twice:,} {'row names an image' if twice == 1 else 'rows name images'} named before in its split."
        )
    if several := [name for name in dict.fromkeys(names) if sum(name in found for found in distinct) > 1]:
        what = "image is" if len(several) == 1 else "images are"
        notes.append(f"{len(several):,} {what} in several splits, so that scores on them flatter: {few(several)}.")
    return make(path.resolve().stem, labels.classes, parts, kind=labels.kind, notes=notes)


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    found = [file for file in sorted(path.glob("*.csv")) if file.stem.lower() in SPLIT_WORDS]
    splits = [SPLIT_WORDS[file.stem.lower()] for file in found]
    if len(set(splits)) < len(splits):
        raise DataError(f"{path} holds several tables of one split: {', '.join(file.name for file in found)}.")
    return found


def _parse(path: Path) -> Table:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, delimiter=_delimiter(path, file), strict=True, skipinitialspace=True)
            cells = [(reader.line_num, [cell.strip() for cell in row]) for row in reader]
    except OSError as error:
        raise DataError(f"Cannot read {path}: {error.strerror or error}.") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not a text in UTF-8: save it as CSV (UTF-8).") from error
    except csv.Error as error:
        raise DataError(f"{path} is not a CSV that can be read: {error}.") from error
    cells = [(line, row) for line, row in cells if any(row)]
    if not cells:
        raise DataError(f"{path} is empty.")
    header = cells[0][1]
    for line, row in cells[1:]:
        if len(row) != len(header):
            raise DataError(f"{path}, line {line}: {len(row)} cells where the header has {len(header)}.")
    return _understand(path, header, cells[1:])


def _delimiter(path: Path, file: TextIO) -> str:
    header = file.readline()
    file.seek(0)
    if path.suffix.lower() == ".tsv" or ("\t" in header and "," not in header):
        return "\t"
    return ";" if ";" in header and "," not in header else ","  # as spreadsheets write it where , is the decimal point


def _understand(path: Path, header: list[str], cells: list[tuple[int, list[str]]]) -> Table:
    lower = [name.lower() for name in header]
    if len(set(lower)) < len(lower):
        raise DataError(f"{path}: two columns have the same name: {', '.join(header)}.")
    image, split, label = (
        next((lower.index(name) for name in known if name in lower), None)
        for known in (PATH_COLUMNS, SPLIT_COLUMNS, LABEL_COLUMNS)
    )
    rest = [i for i in range(len(header)) if i not in (image, split, label)]
    if label is None and len(rest) == 1:
        label = rest[0]
    rows = [row for _, row in cells]
    binary = len(rest) > 1 and all(row[i] in ("0", "1", "0.0", "1.0") for row in rows for i in rest)
    if image is None or (label is None and not binary):
        raise DataError(f"{path} has the columns {', '.join(repr(name) for name in header)}; {EXPECTED}.")
    table = Table(path, header, rows, [line for line, _ in cells], image, label, split)
    _check_blank(table, [column for column in (image, split) if column is not None])
    return table


def _check_blank(table: Table, columns: list[int]) -> None:
    for line, row in zip(table.lines, table.rows, strict=True):
        for column in columns:
            if not row[column]:
                raise DataError(f"{table.path}, line {line}: there is no {table.header[column]}.")


def _splits(table: Table, *, fixed: bool) -> Iterable[str]:
    for line, row in zip(table.lines, table.rows, strict=True):
        word = table.path.stem if fixed else "train" if table.split is None else row[table.split]
        if word.lower() not in SPLIT_WORDS:
            raise DataError(f"{table.path}, line {line}: the split '{word}' is none of train, val and test.")
        yield SPLIT_WORDS[word.lower()]


def _labels(tables: list[Table], chosen: dict[str, list[int]]) -> Labels:
    first = tables[0]
    if any(table.header != first.header for table in tables):
        raise DataError(f"{' and '.join(str(table.path) for table in tables)} have different columns.")
    rows = [row for table in tables for row in table.rows]
    notes: list[str] = []
    if first.label is None:
        columns = np.array([[float(row[i]) for i in first.class_columns] for row in rows]).astype(np.uint8)
        names = [first.header[i] for i in first.class_columns]
        return from_columns({split: columns[of] for split, of in chosen.items()}, names)
    if first.class_columns:
        notes.append(
            f"Columns left out: {few([first.header[i] or 'one without a name' for i in first.class_columns])}."
        )
    texts = [row[first.label] for row in rows]
    separator = next((mark for mark in ";|" if any(mark in text for text in texts)), None)
    if separator is None:
        for table in tables:
            _check_blank(table, [first.label])
        labels = from_texts({split: [texts[i] for i in of] for split, of in chosen.items()})
    else:
        sets = [[name.strip() for name in text.split(separator) if name.strip()] for text in texts]
        labels = from_sets({split: [sets[i] for i in of] for split, of in chosen.items()})
        notes.append(f"Labels are joined by '{separator}', so an image may have several classes.")
        if bare := sum(not names for names in sets):
            notes.append(f"{bare:,} {'image has' if bare == 1 else 'images have'} no label, which stands for no class.")
    labels.notes += notes
    return labels


SOURCE = Source("table", "a CSV file", recognizes, read, certain=names_images)

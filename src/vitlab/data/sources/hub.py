"""Hugging Face datasets: of the hub, saved to disk, or parquet files. Needs the package `datasets`."""

import contextlib
import importlib
import importlib.util
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, final

import numpy as np
from huggingface_hub import constants

from vitlab.core.errors import DataError, Error, ImageError, MissingDependencyError
from vitlab.core.hub import answering
from vitlab.core.reading import check_regular
from vitlab.core.words import listed
from vitlab.data.contract import Array, DataSet
from vitlab.data.sources.labels import Labels, from_columns, from_numbers, from_texts
from vitlab.data.sources.source import SPLIT_WORDS, Digest, Source, make, split_named
from vitlab.data.sources.wording import few

PREFIX = "hf-datasets:"
LABEL_COLUMNS = ("label", "labels", "fine_label", "class", "category", "target")
SAMPLES = 64
PACKAGE = "datasets"
LOCAL = ("arrow", "csv", "generator", "imagefolder", "json", "parquet", "text", "webdataset")  # made of local files


@final
class HubImages:
    """The encoded images of a column; each process maps the Arrow files for itself."""

    def __init__(self, rows: Any, column: str, place: str) -> None:
        self._rows = rows
        self._column = column
        self._place = place

    def __len__(self) -> int:
        return len(self._rows)

    def read(self, index: int) -> bytes:
        try:
            cell = self._rows[index][self._column]
            if cell["bytes"] is None:
                check_regular(cell["path"])
            data = Path(cell["path"]).read_bytes() if cell["bytes"] is None else cell["bytes"]
        except Exception as error:  # whatever Arrow says about a damaged file
            raise ImageError(f"{self.where(index)} cannot be read: {_first_line(error)}.") from error
        if not data:
            raise ImageError(f"{self.where(index)} is empty.")
        return data

    def where(self, index: int) -> str:
        return f"image {range(len(self))[index]} of {self._place}"

    def mark(self) -> str:
        digest = Digest(len(self), self._column)
        for index in np.unique(np.linspace(0, len(self) - 1, min(len(self), SAMPLES)).astype(np.int64)):
            cell = self._rows[int(index)][self._column]
            encoded, path = (None, None) if cell is None else (cell["bytes"], cell["path"])
            digest.add(str(path) if encoded is None else encoded)
        return digest.text()

    def identities(self) -> Array:
        return np.arange(len(self), dtype=np.int64)


def recognizes(path: Path) -> bool:
    """Whether it is a folder of `save_to_disk`, a parquet file, or a folder of parquet files."""
    if path.is_dir():
        return is_saved(path) or bool(_tables(path) or _configurations(path))
    return path.suffix.lower() == ".parquet"


def is_saved(path: Path) -> bool:
    """Whether it is a folder of `save_to_disk`."""
    if (path / "dataset_dict.json").is_file():
        return any(path.glob("*/state.json"))  # alone, beside images say, a file of such a name tells nothing
    return (path / "state.json").is_file() and any(path.glob("*.arrow"))


def read(path: Path) -> DataSet:
    """A data set on disk."""
    package = _package(str(path))
    with _explained(f"{path} cannot be read as a Hugging Face dataset"):
        if is_saved(path):
            loaded = package.load_from_disk(str(path))
        else:
            loaded = package.load_dataset("parquet", data_files=_parquet(path))
        return _understand(loaded, path.resolve().stem, str(path))


def read_hub(name: str) -> DataSet:
    """'hf-datasets:owner/name', with '@revision' or '#configuration' after it, from the hub or its local cache."""
    rest, _, configuration = name.removeprefix(PREFIX).partition("#")
    repository, _, revision = rest.partition("@")
    if not repository.strip():
        raise DataError(f"'{name}' names no data set: write it as {PREFIX}owner/name.")
    if importlib.util.find_spec(PACKAGE) is None:
        _package(name)
    with answering() as silent:
        if silent and repository not in cached():  # said at once: importing the package takes seconds
            raise DataError(
                f"{name} is not in the local cache, and the hub cannot be reached ({silent}). Here there are"
                f" {listed(['digits', *(PREFIX + found for found in cached())])}, and any folder of images."
            )
        with _explained(f"{name} cannot be had from the hub or its local cache"), _offline(silent) as package:
            loaded = package.load_dataset(repository, configuration or None, revision=revision or None)
            return _understand(loaded, repository.rpartition("/")[2], name)


def cached() -> list[str]:
    """The data sets of the hub that are in the package's own cache, as owner/name."""
    folder = Path(os.environ.get("HF_DATASETS_CACHE") or Path(constants.HF_HOME, "datasets"))
    made = sorted({info.relative_to(folder).parts[0] for info in folder.glob("*/*/*/*/dataset_info.json")})
    return [name.replace("___", "/") for name in made if name not in LOCAL]


@contextlib.contextmanager
def _offline(silent: str) -> Iterator[ModuleType]:
    """The package, which keeps by itself whether it asks the hub."""
    package = _package(PREFIX)
    before = package.config.HF_HUB_OFFLINE
    package.config.HF_HUB_OFFLINE = bool(silent)
    try:
        yield package
    finally:
        package.config.HF_HUB_OFFLINE = before


@contextlib.contextmanager
def _explained(what: str) -> Iterator[None]:
    """Errors as a sentence: whatever Arrow says about a damaged file, or the client's HTTP library, whichever it is."""
    try:
        yield
    except Error:
        raise
    except Exception as error:
        raise DataError(f"{what}: {_first_line(error)}.") from error


def _package(what: str) -> ModuleType:
    try:
        return importlib.import_module(PACKAGE)
    except ModuleNotFoundError as error:
        raise MissingDependencyError(f"{what} needs the package datasets: pip install 'vitlab[hub]'.") from error


def _parquet(path: Path) -> dict[str, list[str]]:
    """The parquet files of each split, by a word in their names, or all for train."""
    files = [path] if path.is_file() else _tables(path)
    if not files:
        configurations = _configurations(path)
        if len(configurations) > 1:
            raise DataError(
                f"{path} holds several configurations, {', '.join(configurations)}: give the folder of one."
            )
        files = _tables(path / configurations[0])
    found: dict[str, list[str]] = {}
    for file in files:
        found.setdefault(split_named(file.stem), []).append(str(file))
    return found


def _tables(path: Path) -> list[Path]:
    return sorted([*path.glob("*.parquet"), *path.glob("data/*.parquet")])


def _configurations(path: Path) -> list[str]:
    """The folders of the configurations of a clone from the hub: plain_text/train-00000-of-00001.parquet."""
    found = {file.parent.name for file in path.glob("[!.]*/*-of-*.parquet")}
    return sorted(name for name in found if name.lower() not in SPLIT_WORDS)


def _understand(loaded: Any, name: str, where: str) -> DataSet:
    tables: dict[str, Any] = dict(loaded) if isinstance(loaded, Mapping) else {split_named(str(loaded.split)): loaded}
    notes: list[str] = []
    splits: dict[str, Any] = {}
    for word, rows in tables.items():
        split = SPLIT_WORDS.get(str(word).lower())
        if split is None or split in splits:
            notes.append(f"The split '{word}' is left out.")
        else:
            splits[split] = rows
    if not splits:
        raise DataError(f"{where} has the splits {', '.join(tables)}; expected were train, validation or test.")
    features = next(iter(splits.values())).features
    image, label = _image_column(features, where), _label_column(features, where)
    notes.append(f"Images are in the column '{image}', labels in '{label}'.")
    missing = {split: [c for c in (image, label) if c not in rows.features] for split, rows in splits.items()}
    for split in [split for split, columns in missing.items() if columns]:
        notes.append(f"{split} has no column '{missing[split][0]}': it is left out.")
        del splits[split]
    texts = {split: rows.with_format(None)[label][:] for split, rows in splits.items()}
    for split in [split for split, values in texts.items() if _unlabelled(values)]:
        notes.append(f"{split} has no labels: it is left out.")
        del texts[split], splits[split]
    if not splits:
        raise DataError(f"{where} has no labels.")
    known = {split: _names(rows.features[label]) for split, rows in splits.items()}
    if any(names != next(iter(known.values())) for names in known.values()):
        texts = {split: [_named(value, known[split], where) for value in values] for split, values in texts.items()}
        notes.append("The splits number their classes differently: they are matched by name.")
        labels = _labels(texts, None, where)
    else:
        labels = _labels(texts, next(iter(known.values())), where)
    parts = {}
    for split, rows in splits.items():
        # encoded, for the loader decodes
        raw = rows.select_columns([image]).with_format(None).cast_column(image, _package(where).Image(decode=False))
        parts[split] = HubImages(raw, image, f"{where} ({split})"), labels.splits[split]
    notes += labels.notes
    return make(name, labels.classes, parts, kind=labels.kind, notes=notes)


def _image_column(features: Any, where: str) -> str:
    found = [name for name, feature in features.items() if type(feature).__name__ == "Image" or _is_encoded(feature)]
    if not found:
        raise DataError(f"{where} has the columns {', '.join(features)}, none of which holds images.")
    return next((name for name in ("image", "img") if name in found), found[0])


def _is_encoded(feature: Any) -> bool:
    """Whether a column is {bytes, path}, as images are stored when the schema does not say that they are."""
    return isinstance(feature, dict) and set(feature) == {"bytes", "path"}


def _label_column(features: Any, where: str) -> str:
    classes = [name for name, feature in features.items() if _class_label(feature) is not None]
    for name in LABEL_COLUMNS:
        if name in classes or (not classes and name in features):
            return name
    if classes:
        return classes[0]
    raise DataError(
        f"{where} has the columns {', '.join(features)}; expected was one called {' or '.join(LABEL_COLUMNS[:2])}."
    )


def _class_label(feature: Any) -> Any:
    """The ClassLabel of a column, also of a column of lists."""
    inner = getattr(feature, "feature", feature[0] if isinstance(feature, list) and feature else feature)
    return inner if type(inner).__name__ == "ClassLabel" else None


def _names(feature: Any) -> list[str] | None:
    """The names of the classes that a column's numbers are places among."""
    known = _class_label(feature)
    return None if known is None else list(known.names)


def _named(value: Any, names: list[str] | None, where: str) -> Any:
    """A label, or a list of them, by name."""
    if isinstance(value, list):
        return [_named(item, names, where) for item in value]
    if names is None or isinstance(value, str):
        return value
    if not _is_number(value, names):
        raise DataError(f"{where}: the label {value} is not among the {len(names)} classes, which count from 0.")
    return names[int(value)]


def _unlabelled(values: list[Any]) -> bool:
    return all(value is None or value == -1 for value in values)


def _labels(splits: Mapping[str, list[Any]], names: list[str] | None, where: str) -> Labels:
    values = [value for found in splits.values() for value in found]
    if any(value is None for value in values):
        raise DataError(f"{where}: some images have no label.")
    if all(isinstance(value, list) for value in values):
        return _from_lists(splits, names, where)
    if all(isinstance(value, int | float) for value in values):
        return from_numbers({split: np.array(found) for split, found in splits.items()}, names, where=where)
    if all(isinstance(value, str) for value in values):
        return from_texts(splits)
    raise DataError(
        f"{where}: labels must be numbers, texts or lists of numbers; found {few([str(v) for v in values])}."
    )


def _from_lists(splits: Mapping[str, list[list[Any]]], names: list[str] | None, where: str) -> Labels:
    """Several labels per image: class numbers or names, or a 0 or 1 for each class."""
    rows = [row for found in splits.values() for row in found]
    odd = [str(value) for row in rows for value in row if not isinstance(value, int | float | str)]
    if odd:
        raise DataError(f"{where}: lists of labels must hold numbers or texts; found {few(odd)}.")
    distinct = {value for row in rows for value in row}
    if names is None and {len(row) for row in rows} == {len(rows[0])} != {1} and distinct <= {0, 1}:
        # class numbers would be the same two for every image
        columns = {split: np.array(found) for split, found in splits.items()}
        return from_columns(columns, [str(i) for i in range(len(rows[0]))])
    if not all(isinstance(value, str) for value in distinct) and not all(_is_number(v, names) for v in distinct):
        raise DataError(
            f"{where}: lists of labels must hold class numbers from 0 on, class names, or a 0 or 1 for each class;"
            f" found {few([str(value) for value in distinct])}."
        )
    ordered = sorted(distinct) if names is None else range(len(names))
    place = {value: i for i, value in enumerate(ordered)}
    columns: dict[str, Array] = {}
    for split, found in splits.items():
        columns[split] = np.zeros((len(found), len(place)), np.uint8)
        for i, row in enumerate(found):
            columns[split][i, [place[value] for value in row]] = 1
    return from_columns(columns, names or [value if isinstance(value, str) else str(int(value)) for value in ordered])


def _is_number(value: Any, names: list[str] | None) -> bool:
    """Whether a value is a class number, of as many classes as there are names."""
    whole = isinstance(value, int | float) and float(value).is_integer()
    return whole and 0 <= value < (math.inf if names is None else len(names))


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0].rstrip(".") or type(error).__name__


SOURCE = Source("hub", "a Hugging Face dataset", recognizes, read, certain=is_saved)

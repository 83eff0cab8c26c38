"""A data set from a path or a name."""

import dataclasses
import inspect
import os
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from vitlab.core.errors import DataError, UnknownNameError, did_you_mean, near_names
from vitlab.core.files import near_paths
from vitlab.core.imagenet import with_words
from vitlab.core.registry import FILE_REFERENCE, Registry, is_file_reference
from vitlab.data.contract import Array, DataSet
from vitlab.data.description import Description, Unreadable, describe
from vitlab.data.sources import arranged, folder, hub, shards
from vitlab.data.sources.files import ARCHIVES
from vitlab.data.sources.holdout import hold_out
from vitlab.data.sources.source import Published, Source
from vitlab.data.sources.unlabelled import with_unlabelled
from vitlab.data.sources.wording import few

__all__ = ["SOURCES", "Description", "Unreadable", "describe", "hold_out", "names", "open_data"]

# The more particular come first: the image folder takes any folder.
MODULES = (
    "published.cifar",
    "published.idx",
    "published.svhn",
    "published.stl10",
    "published.flowers",
    "published.pets",
    "published.dtd",
    "published.food",
    "published.eurosat",
    "published.caltech",
    "published.imagenet_c",
    "published.imagenet_variants",
    "published.objectnet",
    "published.imagenet",
    "digits",
    "masks",
    "hub",
    "shards",
    "arrays",
    "table",
    "published.vtab",
    "folder",
)
SOURCES = Registry(Source, "data set", "vitlab.data.sources", "SOURCE", MODULES, group="vitlab.sources")

PRIVATE = {  # sets that recipes name and nobody outside can have
    "jft": "JFT-300M",
    "jft300m": "JFT-300M",
    "jft3b": "JFT-3B",
}

PHOTOS = "photos:"  # begins the name of all images below a folder, without labels
VARIABLE = "VITLAB_DATA"  # folders, separated as in PATH
PLACES = (
    ".",
    "data",
    "datasets",
    "~/data",
    "~/datasets",
    "~/.keras/datasets",
    "/data",
    "/datasets",
    "/usr/share/datasets",
)


def open_data(data: str | os.PathLike[str], *, val_fraction: float = 0.1, seed: int = 0) -> DataSet:
    """The data set at a path, or of a name.

    Splits are what the source says. Where it has a train part alone, `val_fraction` of it becomes val, by a hash of
    each image's name and `seed`; 0 leaves it whole. A path that exists goes before a name, but for 'digits'.
    """
    if not 0 <= val_fraction < 1:
        raise DataError(f"The fraction held out for validation must be at least 0 and below 1, not {val_fraction}.")
    dataset = _find(data)
    if dataset.undivided:
        dataset = hold_out(dataset, val_fraction, seed)
    return _checked(dataclasses.replace(dataset, classes=with_words(dataset.classes)))


def names() -> tuple[str, ...]:
    """The data sets that can be asked for by name."""
    return tuple(sorted(source.name for source in _published()))


def _published() -> list[Published]:
    return [source for source in SOURCES if isinstance(source, Published)]


def _forms() -> list[Source]:
    """Those that are asked for by path, the image folder last, after those of other packages."""
    found = [source for source in SOURCES if not isinstance(source, Published)]
    return sorted(found, key=lambda source: source.name == folder.SOURCE.name)


def _find(data: str | os.PathLike[str]) -> DataSet:
    text = os.fspath(data)
    _check_text("The path", text)
    if not text.strip():
        raise UnknownNameError("The data set has no name; give a path, or one of " + ", ".join(names()) + ".")
    if isinstance(data, str):
        if text.startswith(hub.PREFIX):
            return hub.read_hub(text)
        if text.startswith(arranged.PREFIX):
            return arranged.read_arranged(text, _find)
        if text.startswith(PHOTOS):
            return folder.read_photos(Path(os.path.expanduser(text.removeprefix(PHOTOS))))  # noqa: PTH111
        if is_file_reference(text):
            return _in_a_file(text)
        if re.match(r"(pipe:|[a-z0-9]+://)", text):
            raise DataError(f"'{text}' is not on this machine: copy it here first, then give its path.")
        named = next((source for source in _published() if _plain(text) in _known_as(source)), None)
        if named is not None and not re.search(r"[/\\]", text) and (named.embedded or not os.path.exists(text)):  # noqa: PTH110
            return dataclasses.replace(_by_name(named), name=named.name)
    return _by_path(Path(os.path.expanduser(text)))  # noqa: PTH111  as with exists, Path's raises over odd texts


def _in_a_file(name: str) -> DataSet:
    """The set of a source in a file of one's own, which reads from the folder of that file, or needs no path."""
    source, match = SOURCES.find(name), FILE_REFERENCE.fullmatch(name)
    assert match is not None
    takes_path = bool(inspect.signature(source.read).parameters)
    dataset = source.read(Path(match["file"]).expanduser().absolute().parent) if takes_path else source.read()
    if not isinstance(dataset, DataSet):  # it is somebody else's code
        raise DataError(f"The source {name} gave {type(dataset).__name__}, not a DataSet.")
    return dataclasses.replace(dataset, notes=(f"Read by {name}.", *dataset.notes))


def _by_path(path: Path) -> DataSet:
    if not os.path.exists(path) and not ("{" in path.name and _recognizes(shards.SOURCE, path)):  # noqa: PTH110
        raise _nothing_there(path)
    try:
        source = next((published for published in _published() if published.recognizes(path)), None) or _general(path)
    except OSError as error:
        raise DataError(f"Cannot read {path}: {error.strerror or error}.") from error
    if isinstance(source, Published):
        return _said(source.read(path), source, path)
    inside = {source.name: (source, place) for source in _published() for place in _inside(source, path)}
    if inside and not (source is not None and source.certain(path)):
        if len(inside) > 1:
            raise DataError(f"{path} holds several data sets, {', '.join(sorted(inside))}: give the folder of one.")
        [(source, path)] = inside.values()
    if source is None and path.suffix.lower() in ARCHIVES:
        raise DataError(f"{path} is an archive: unpack it, and give the folder.")
    if source is None:
        raise DataError(
            f"{path} is no data set: give a folder, or a file that ends in .csv, .tsv, .npz, .npy, .tar or .parquet."
        )
    return _said(source.read(path), source, path)


def _general(path: Path) -> Source | None:
    """The form of a path; class folders of images go before what may be a stray file beside them."""
    found = [source for source in _forms() if source.recognizes(path)]
    if len(found) > 1:  # a folder, for a file has one form
        sure = next((source for source in found if source.certain(path)), None)
        return sure or (folder.SOURCE if folder.has_classes(path) else found[0])
    return next(iter(found), None)


def _recognizes(source: Source, path: Path) -> bool:
    """Whether a source takes a path that nobody named, which may be closed to us."""
    try:
        return source.recognizes(path)
    except (OSError, DataError):
        return False


def _by_name(source: Published) -> DataSet:
    if source.embedded:
        dataset = source.read(Path())
        if not Path(source.name).exists():
            return dataset
        note = f"There is a {source.name} here too: write {Path('.', source.name).absolute()} to read that."
        return dataclasses.replace(dataset, notes=(*dataset.notes, note))
    looked = list(_places())
    for place in looked:
        for path in _candidates(source, place):
            if _recognizes(source, path):
                return _said(source.read(path), source, path)
    for place in looked:  # the same set in another form, as an image folder say, in a folder of that name
        for path in _called(source, place):
            general = _general(path)
            assert general is not None
            try:
                dataset = general.read(path)
            except DataError as error:
                if (archive := _archive(path)) is None:
                    raise
                raise DataError(f"{path} holds {archive}, which is still packed: unpack it there.") from error
            if source.num_classes not in (None, dataset.num_classes):
                raise DataError(
                    f"{path} has {dataset.num_classes:,} classes ({few(dataset.classes)}) where {source.name} has"
                    f" {source.num_classes:,}: if you want what is there, give its path."
                )
            return _said(dataset, general, path)
    where = ", ".join(str(place) for place in looked)
    called = " or ".join(source.folders)
    raise DataError(
        f"The data set {source.name} was not found: looked for {called} in {where}; get it from {source.page} and set"
        f" {VARIABLE} to the folder that it is in."
    )


def _places() -> Iterator[Path]:
    """Where data sets are looked for, as far as those folders exist; all that were named are told in the error."""
    given = [part for part in os.environ.get(VARIABLE, "").split(os.pathsep) if part]
    seen: set[Path] = set()
    for text in (*given, *PLACES):
        path = Path(text).expanduser()
        if (text in given or path.is_dir()) and path.absolute() not in seen:
            seen.add(path.absolute())
            yield path


def _candidates(source: Published, place: Path) -> Iterator[Path]:
    """Where below a place a published set may be: in the folder of its archive, there or in a folder of its name."""
    for base in (*_called(source, place), place):
        if base != place or not source.known_by_name or _plain(place.name) in _known_as(source):
            yield base
        yield from _inside(source, base, known=False)


def _called(source: Published, place: Path) -> list[Path]:
    """The folders in a place, and the `.npz` files, that are called as the set is."""
    if not place.is_dir():
        return []
    known = _known_as(source)
    try:
        found = sorted(place.iterdir())
    except OSError:  # a place of ours that is closed to this user
        return []
    return [p for p in found if _plain(p.stem if p.suffix == ".npz" else p.name) in known and (p.is_dir() or p.suffix)]


def _inside(source: Published, path: Path, *, known: bool = True) -> Iterator[Path]:
    """The folders of a published set that are inside a path; with `known`, those that it recognizes."""
    here = f"{path.absolute().name}/"  # MNIST/raw is inside MNIST too
    for name in dict.fromkeys((*source.folders, *(name.removeprefix(here) for name in source.folders))):
        if os.path.isdir(path / name) and (not known or _recognizes(source, path / name)):  # noqa: PTH112  never raises
            yield path / name


def _archive(path: Path) -> str | None:
    """A set's own archive, as its authors publish it, in a folder."""
    files = sorted(path.iterdir()) if path.is_dir() else []
    return next((file.name for file in files if file.name.lower().endswith((".tar", ".gz", ".tgz", ".zip"))), None)


def _known_as(source: Published) -> set[str]:
    return {_plain(name) for name in (source.name, *source.aliases, *(f for f in source.folders if "/" not in f))}


def _plain(name: str) -> str:
    return re.sub(r"[-_ ]", "", name.lower())


def _said(dataset: DataSet, source: Source, path: Path) -> DataSet:
    dataset = with_unlabelled(dataset, path)
    return dataclasses.replace(dataset, notes=(f"Read as {source.kind}: {path}.", *dataset.notes))


def _nothing_there(path: Path) -> UnknownNameError:
    known = [*names(), *(alias for source in _published() for alias in source.aliases)]
    text = str(path)
    if _plain(text) in PRIVATE:
        return UnknownNameError(
            f"{PRIVATE[_plain(text)]} is private to Google: train on images of your own with --data.source PATH, a"
            " folder that holds a folder per class, or any form that docs/data.md lists."
        )
    if text in known:  # it was given as a path, with a separator behind it or before it
        return UnknownNameError(f"There is no folder {text} here; write {text} alone for the data set of that name.")
    if path.name == text and not path.suffix:
        there = near_paths(path)
        near = near_names(text, [*there, *known]) or there
        hint = did_you_mean(near) or f" Known names: {', '.join(names())}."
        return UnknownNameError(f"There is no data set named '{text}', and no such folder here.{hint}")
    return UnknownNameError(f"There is no file or folder {path}.{did_you_mean(near_paths(path))}")


def _check_text(what: str, text: str) -> None:
    """Refuse a name whose bytes are no text: neither a page nor a file of JSON can hold it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise DataError(f"{what} {os.fsencode(text)!r} is not UTF-8: rename it.") from None


def _checked(dataset: DataSet) -> DataSet:
    """Refuses what cannot be trained on or would be scored wrongly, and notes what is odd."""
    for name in dataset.classes:
        _check_text("The class", name)
    if not dataset.splits:
        raise DataError(f"The data set {dataset.name} holds no images.")
    counts = {split: part.counts(dataset.num_classes) for split, part in dataset.splits.items() if part.has_classes}
    if not counts:
        return dataset
    if not dataset.classes:
        raise DataError(f"The data set {dataset.name} has no classes: none of its images has a label.")
    if dataset.num_classes < 2 and not dataset.multi_label:
        raise DataError(
            f"The data set {dataset.name} has one class only, '{dataset.classes[0]}': a classifier needs at least two."
        )
    notes: list[str] = []
    everywhere = np.sum([*counts.values()], axis=0)
    if bare := _of(dataset, everywhere == 0):
        notes.append(f"{len(bare)} of {dataset.num_classes} classes have no images: {few(bare)}.")
    for split, found in counts.items():
        unseen = _of(dataset, (found > 0) & (counts.get("train", found) == 0))
        if len(unseen) and not (dataset.multi_label or dataset.fixed_classes):
            some = f"the class {unseen[0]}" if len(unseen) == 1 else f"{len(unseen)} classes ({few(unseen)})"
            raise DataError(
                f"{dataset.name}: {split} has images of {some}, but train has none: add some to train, or take them"
                f" out of {split}."
            )
        if len(unseen):
            notes.append(f"train has no image of {few(unseen)}, which {split} has.")
        lacking = _of(dataset, (found == 0) & (everywhere > 0))
        if split != "train" and len(lacking):
            notes.append(f"{split} has no images of {len(lacking)} of the classes: {few(lacking)}.")
    single = _of(dataset, everywhere == 1)
    if len(single):
        notes.append(
            f"{len(single)} {'class has' if len(single) == 1 else 'classes have'} one image only: {few(single)}."
        )
    return dataclasses.replace(dataset, notes=(*dataset.notes, *notes))


def _of(dataset: DataSet, chosen: Array) -> list[str]:
    """The names of some classes."""
    return [dataset.classes[i] for i in np.flatnonzero(chosen)]

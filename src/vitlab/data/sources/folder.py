"""Image folders: class folders under train/, val/ and test/, or under one root."""

import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from vitlab.core.errors import DataError, did_you_mean
from vitlab.core.files import near_paths
from vitlab.data.contract import DataSet
from vitlab.data.sources.files import ARCHIVES, Files, Listing, is_image, list_folders, list_images, list_many
from vitlab.data.sources.source import SPLIT_WORDS, SPLITS, Source, make, one_each
from vitlab.data.sources.unlabelled import is_unlabelled
from vitlab.data.sources.wording import few, natural


@dataclass
class ClassFolders:
    """The images of one split, class by class."""

    folder: str  # below the root; empty for the root itself
    classes: dict[str, Listing] = field(default_factory=dict)


def recognizes(path: Path) -> bool:
    """Whether it is a folder at all: what is wrong with it, `read` says."""
    return path.is_dir()


def has_classes(root: Path) -> bool:
    """Whether two class folders at least hold images; a folder called train_images is none."""
    folders = list_folders(root)
    splits = split_folders(root, folders).values()
    inside = [f"{split}/{name}" for split in splits for name in list_folders(root / split)]
    others = [name for name in folders if not _splits_in(name)]
    found: set[str] = set()
    for folder in inside or others:
        name = folder.rpartition("/")[2]
        if name not in found and _holds_images(root / folder):
            found.add(name)
        if len(found) == 2:
            return True
    return False


def read(root: Path) -> DataSet:
    """The images below a folder."""
    folders = list_folders(root)
    splits = split_folders(root, folders)
    if splits:
        used = {folder.partition("/")[0] for folder in splits.values()}
        left_out = [name for name in folders if name not in used and not is_unlabelled(name)]
        return _read_splits(root, splits, left_out)
    if not folders:
        return _unlabelled(root, {"train": ""}, [])
    if len(set(_splits_in(*folders))) > 1:
        full = [name for name in folders if _holds_images(root / name)]
        if all(_splits_in(name) for name in full):
            raise DataError(
                f"{root}: {few(full)} are called as splits are, not as classes: put the images into class folders in"
                f" train, val and test, as in train/cat/1.jpg{_or_a_table(root)}."
            )
    part = list_classes(root, "", folders)
    notes = _notes([part], [list_images(root, deep=False)])
    return assemble(root.resolve().name, root, {"train": part}, notes)


def read_unsplit(name: str, root: Path, left_out: Iterable[str]) -> DataSet:
    """A published set of class folders without a split, but for folders that are none of its classes."""
    without = set(left_out)
    part = list_classes(root, "", (folder for folder in list_folders(root) if folder not in without))
    notes = ["Its authors publish no split."]
    if without:
        notes.append(f"Left out, as no class of it: {', '.join(sorted(without))}.")
    return assemble(name, root, {"train": part}, notes + _notes([part], [list_images(root, deep=False)]), order=str)


def assemble(
    name: str, root: Path, parts: dict[str, ClassFolders], notes: list[str], order: Callable[[str], Any] = natural
) -> DataSet:
    """A data set of class folders; classes without an image anywhere are left out."""
    everything = {name: None for part in parts.values() for name in part.classes}
    classes = sorted((c for c in everything if _has_images(parts.values(), c)), key=order)
    bare = sorted((c for c in everything if not _has_images(parts.values(), c)), key=order)
    unread = Listing(heic=[name for part in parts.values() for each in part.classes.values() for name in each.heic])
    if len(classes) < 2 and unread.heic:
        raise DataError(f"{root} holds images of {len(classes)} of its {len(everything)} classes: {unread.notes()[0]}")
    if not classes:
        raise DataError(f"The folder {root} holds no images.")
    if len(classes) == 1:
        raise DataError(
            f"{root} holds one class only, '{classes[0]}': a classifier needs at least two; if the classes are the"
            f" folders inside it, give {root / next(iter(parts.values())).folder / classes[0]}."
        )
    if bare:
        notes.append(f"{len(bare)} {'folder holds' if len(bare) == 1 else 'folders hold'} no images: {few(bare)}.")
    sizes = [size for part in parts.values() for listing in part.classes.values() for size in listing.sizes]
    if not any(sizes):
        raise DataError(f"All {len(sizes):,} images under {root} are empty files: copy them again.")
    found: dict[str, tuple[Files, Any]] = {}
    for split, part in parts.items():
        listing, labels = Listing(), []
        for number, of in enumerate(classes):
            here = part.classes.get(of, Listing())
            listing.add(here)
            labels.append(np.full(len(here.names), number, np.int64))
        found[split] = Files(root, listing.names, listing.sizes), np.concatenate(labels)
    return make(name, classes, found, notes=notes)


def list_classes(root: Path, folder: str, classes: Iterable[str]) -> ClassFolders:
    """The images of class folders, which may be deep."""
    names = list(classes)
    listings = list_many(root, [f"{folder}/{name}" if folder else name for name in names])
    return ClassFolders(folder, dict(zip(names, listings, strict=True)))


def split_folders(root: Path, folders: Iterable[str]) -> dict[str, str]:
    """{'train': 'training', ...} for folders that are splits; none where such names are classes (a train is a vehicle).

    They are splits when one of them holds folders, or when there are no others. One word of a name may tell it too.
    """
    names = list(folders)
    found = one_each(root, names)
    if "train" in found:
        names = [name for name in names if not is_unlabelled(name)]
    if len(found) < len(names):
        found = max(found, _worded(root, names), key=len)
        if not any(list_folders(root / name) for name in found.values()):
            return {}
    return {split: _inner(root, found[split]) for split in SPLITS if split in found}


def _worded(root: Path, names: list[str]) -> dict[str, str]:
    """{'train': 'seg_train', ...} by one word of each name; none where that may be a word of a class (test tube).

    They are splits when no other folder holds images, or when they have classes in common that no other folder has.
    """
    if len(set(_splits_in(*names))) < 2:
        return {}
    full = [name for name in names if _holds_images(root / name)]
    named = [(split, name) for name in full for split in _splits_in(name)]
    found = dict(named)
    if not 1 < len(found) == len(named):
        return {}
    others = [name for name in full if not _splits_in(name)]
    common = set.intersection(*(set(list_folders(root / _inner(root, name))) for name in found.values()))
    if others and (len(common) < 2 or any(common & set(list_folders(root / name)) for name in others)):
        return {}
    return found


def _splits_in(*names: str) -> list[str]:
    """The splits that words of names tell."""
    words = (word for name in names for word in re.split(r"[^a-z]+", name.lower()))
    return [SPLIT_WORDS[word] for word in words if word in SPLIT_WORDS]


def _inner(root: Path, folder: str) -> str:
    """The folder, or the one of its name that it holds alone, as archives make it."""
    return f"{folder}/{folder}" if list_folders(root / folder) == [folder] else folder


def _holds_images(folder: Path) -> bool:
    places = (folder, *folder.glob("*/"))  # some may be links, into which a walk does not go
    return any(is_image(file) for place in places for _, _, files in os.walk(place) for file in files)


def read_photos(root: Path) -> DataSet:
    """All images below a folder, at any depth, as a set without labels."""
    if not root.is_dir():
        raise DataError(f"There is no folder {root}.{did_you_mean(near_paths(root))}")
    return _unlabelled(root, {"train": ""}, [f"All images below {root} are taken, without labels."], deep=True)


def _unlabelled(root: Path, folders: dict[str, str], notes: list[str], *, deep: bool = False) -> DataSet:
    """Images in no class folder, or with `deep` in whichever: a set without labels."""
    listings = {split: list_images(root, folder, deep=deep) for split, folder in folders.items()}
    everything = Listing()
    for listing in listings.values():
        everything.add(listing)
    if not everything.names and everything.heic:
        raise DataError(f"{root}: {everything.notes()[0]}")
    if not everything.names:
        packed = [name for name in everything.others if Path(name).suffix.lower() in ARCHIVES]
        unpack = f": unpack {few(packed)}" if packed else _or_a_table(root)
        raise DataError(f"The folder {root} holds no images{unpack}.")
    if not any(everything.sizes):
        raise DataError(f"All {len(everything.sizes):,} images under {root} are empty files: copy them again.")
    why = [] if deep else [f"There are no class folders, so no labels{_or_a_table(root)}."]
    notes = [*why, *notes, *everything.notes()]
    parts = {split: (Files(root, listing.names, listing.sizes), None) for split, listing in listings.items()}
    return make(root.resolve().name, (), parts, notes=notes)


def _read_splits(root: Path, splits: dict[str, str], left_out: list[str]) -> DataSet:
    parts: dict[str, ClassFolders] = {}
    notes: list[str] = []
    if left_out:
        notes.append(f"{'Folders' if len(left_out) > 1 else 'The folder'} beside the splits left out: {few(left_out)}.")
    flat = {split: name for split, name in splits.items() if list_images(root, name, deep=False).names}
    if flat and not any(list_folders(root / name) for name in splits.values()):
        return _unlabelled(root, flat, notes)
    loose = [list_images(root, deep=False)]
    for split, folder in splits.items():
        classes = list_folders(root / folder)
        beside = list_images(root, folder, deep=False)
        if classes:
            parts[split] = list_classes(root, folder, classes)
            loose.append(beside)
        elif beside.names and split == "test" and len(splits) > 1:
            notes.append(f"{root / folder} has no class folders, so no labels: it was left out.")
        elif beside.names:
            raise DataError(
                f"The labels are missing: {root / folder} holds images but no class folders; put them into one folder"
                f" a class, as in {folder}/cat/1.jpg."
            )
        else:
            notes.append(f"{root / folder} is empty.")
    if not any(listing.names or listing.heic for part in parts.values() for listing in part.classes.values()):
        raise DataError(f"The folder {root} holds no images under {', '.join(splits.values())}.")
    return assemble(root.resolve().name, root, parts, notes + _notes(parts.values(), loose))


def _notes(parts: Iterable[ClassFolders], loose: Iterable[Listing]) -> list[str]:
    everything = Listing()
    astray: list[str] = []
    for listing in loose:
        astray += listing.names
        everything.add(replace(listing, names=[], sizes=[]))
    for part in parts:
        for listing in part.classes.values():
            everything.add(listing)
    notes = everything.notes()
    if astray:
        notes.append(f"{len(astray):,} {'image' if len(astray) == 1 else 'images'} in no class folder: {few(astray)}.")
    return notes


def _has_images(parts: Iterable[ClassFolders], name: str) -> bool:
    return any(part.classes[name].names for part in parts if name in part.classes)


def _or_a_table(root: Path) -> str:
    tables = sorted(path.name for path in root.glob("*.csv"))
    return f"; or give {root / tables[0]}, if that holds the labels" if tables else ""


SOURCE = Source("folder", "an image folder", recognizes, read)

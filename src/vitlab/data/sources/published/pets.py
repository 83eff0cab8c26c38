"""Oxford-IIIT Pets as its authors publish it."""

from pathlib import Path, PurePosixPath

import numpy as np

from vitlab.core.errors import DataError
from vitlab.data.contract import IGNORED, DataSet, Masks
from vitlab.data.sources.files import Files, list_images
from vitlab.data.sources.labels import read_lines
from vitlab.data.sources.published.listed import listed
from vitlab.data.sources.source import Published
from vitlab.data.sources.wording import few

TRIMAPS = "annotations/trimaps"
LISTS = {"train": "trainval.txt", "test": "test.txt"}


def recognizes(path: Path) -> bool:
    return (path / "images").is_dir() and (path / "annotations" / LISTS["train"]).is_file()


def read(path: Path) -> DataSet:
    """Lines of name, class from 1, species, breed; a class is called as its images are, without their number."""
    folder = path / "annotations"
    names: dict[int, str] = {}
    parts: dict[str, tuple[list[str], list[int]]] = {}
    for split, file in LISTS.items():
        images, labels = [], []
        for line in read_lines(folder / file):
            if line.startswith("#"):
                continue
            words = line.split()
            if len(words) != 4 or not words[1].isdecimal() or int(words[1]) < 1:
                raise DataError(f"{folder / file}: '{line[:80]}' is not a name and three numbers.")
            image, number = words[0], int(words[1]) - 1
            if names.setdefault(number, image.rpartition("_")[0]) != image.rpartition("_")[0]:
                raise DataError(f"{folder / file}: {image} has the number {number + 1} of {names[number]}.")
            images.append(f"images/{image}.jpg")
            labels.append(number)
        parts[split] = images, labels
    if not names or set(names) != set(range(len(names))):
        raise DataError(f"{folder / LISTS['train']} is not complete: classes do not count from 1 without a gap.")
    classes = [names[number] for number in range(len(names))]
    masks, notes = _trimaps(path, {split: images for split, (images, _) in parts.items()})
    return listed("pets", path, classes, parts, named_in=folder, masks=masks, notes=notes)


def _trimaps(path: Path, images: dict[str, list[str]]) -> tuple[dict[str, Masks] | None, list[str]]:
    """A mask for every image, where all are there: 1 is the pet, 2 what is behind it, 3 the border, of no class."""
    if not (path / TRIMAPS).is_dir():
        return None, []
    sizes = dict(zip((listing := list_images(path, TRIMAPS)).names, listing.sizes, strict=True))
    names = {split: [f"{TRIMAPS}/{PurePosixPath(name).stem}.png" for name in of] for split, of in images.items()}
    if missing := [name for of in names.values() for name in of if name not in sizes]:
        return None, [f"{len(missing):,} trimaps are missing, so there are no masks: {few(missing)}."]
    table = np.full(256, IGNORED, np.uint8)
    table[1:3] = 0, 1
    files = {split: Files(path, of, [sizes[name] for name in of]) for split, of in names.items()}
    return {split: Masks(found, ("pet", "background"), table) for split, found in files.items()}, []


SOURCE = Published(
    "pets",
    "Oxford-IIIT Pets",
    recognizes,
    read,
    ("oxford-iiit-pet", "oxford_iiit_pet"),
    "https://www.robots.ox.ac.uk/~vgg/data/pets",
    num_classes=37,
    aliases=("oxfordpets", "oxfordiiitpets", "oxfordiiitpet"),
)

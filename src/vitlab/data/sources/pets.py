"""Oxford-IIIT Pets as its authors publish it."""

from pathlib import Path

from vitlab.core.errors import DataError
from vitlab.data.contract import DataSet
from vitlab.data.sources.labels import read_lines
from vitlab.data.sources.listed import listed
from vitlab.data.sources.source import Published

LISTS = {"train": "trainval.txt", "test": "test.txt"}


def recognises(path: Path) -> bool:
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
    return listed("pets", path, classes, parts, named_in=folder)


SOURCES = (
    Published(
        "Oxford-IIIT Pets",
        recognises,
        read,
        "pets",
        ("oxford-iiit-pet", "oxford_iiit_pet"),
        "https://www.robots.ox.ac.uk/~vgg/data/pets",
        num_classes=37,
        aliases=("oxfordpets", "oxfordiiitpets", "oxfordiiitpet"),
    ),
)

"""Oxford Flowers-102 as its authors publish it."""

from importlib.resources import files
from pathlib import Path

from vitlab.core.errors import DataError
from vitlab.data.contract import DataSet
from vitlab.data.sources.published.listed import listed
from vitlab.data.sources.published.matlab import read_mat, whole_numbers
from vitlab.data.sources.source import Published

SPLITS = {"train": "trnid", "val": "valid", "test": "tstid"}  # 1020, 1020 and 6149 images


def recognizes(path: Path) -> bool:
    return (path / "imagelabels.mat").is_file() and (path / "jpg").is_dir()


def read(path: Path) -> DataSet:
    """Image numbers count from 1, labels from 1 to 102."""
    file, sets = path / "imagelabels.mat", path / "setid.mat"
    labels = whole_numbers(read_mat(file, "labels")[0], file) - 1
    # the order of the authors' page; their archive holds numbers only
    classes = files("vitlab.data.sources.published").joinpath("flowers102.txt").read_text("utf-8").splitlines()
    if len(labels) and not 0 <= labels.min() <= labels.max() < len(classes):
        raise DataError(f"{file} is damaged: its labels are not all in 1 to {len(classes)}.")
    parts = {}
    for split, numbers in zip(SPLITS, read_mat(sets, *SPLITS.values()), strict=True):
        places = whole_numbers(numbers, sets) - 1
        if len(places) and not 0 <= places.min() <= places.max() < len(labels):
            raise DataError(f"{sets} names images that {file.name} has no labels for.")
        parts[split] = [f"jpg/image_{place + 1:05d}.jpg" for place in places], labels[places]
    return listed("flowers102", path, classes, parts, named_in=sets)


SOURCE = Published(
    "flowers102",
    "Oxford Flowers-102",
    recognizes,
    read,
    ("flowers-102", "oxford_flowers102"),
    "https://www.robots.ox.ac.uk/~vgg/data/flowers/102",
    num_classes=102,
    aliases=("oxfordflowers", "oxford102flowers"),
)

"""The Describable Textures Dataset as its authors publish it; of its ten partitions the first."""

from pathlib import Path

from vitlab.core.errors import DataError
from vitlab.data.contract import DataSet
from vitlab.data.sources.labels import read_lines
from vitlab.data.sources.published.listed import listed
from vitlab.data.sources.source import SPLITS, Published


def recognizes(path: Path) -> bool:
    return (path / "images").is_dir() and (path / "labels" / "train1.txt").is_file()


def read(path: Path) -> DataSet:
    """Lines of class/file; the classes are those named, in plain order."""
    folder = path / "labels"
    lines = {split: read_lines(folder / f"{split}1.txt") for split in SPLITS}
    for split, names in lines.items():
        if wrong := [line for line in names if line.count("/") != 1]:
            raise DataError(f"{folder / f'{split}1.txt'}: '{wrong[0][:80]}' is not a class and a file.")
    classes = sorted({line.partition("/")[0] for names in lines.values() for line in names})
    number = {name: i for i, name in enumerate(classes)}
    parts = {
        split: ([f"images/{line}" for line in names], [number[line.partition("/")[0]] for line in names])
        for split, names in lines.items()
    }
    return listed("dtd", path, classes, parts, named_in=folder, notes=["Of the ten partitions the first is used."])


SOURCE = Published(
    "dtd",
    "DTD (describable textures)",
    recognizes,
    read,
    ("dtd/dtd", "dtd"),
    "https://www.robots.ox.ac.uk/~vgg/data/dtd",
    num_classes=47,
)

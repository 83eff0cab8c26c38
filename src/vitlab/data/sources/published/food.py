"""Food-101 as its authors publish it."""

from pathlib import Path

from vitlab.core.errors import DataError
from vitlab.data.contract import DataSet
from vitlab.data.sources.labels import read_lines
from vitlab.data.sources.published.listed import listed
from vitlab.data.sources.source import Published


def recognizes(path: Path) -> bool:
    return (path / "images").is_dir() and (path / "meta" / "train.txt").is_file()


def read(path: Path) -> DataSet:
    """Lines of class/number without an extension; meta/classes.txt has the classes in order."""
    folder = path / "meta"
    classes = read_lines(folder / "classes.txt")
    number = {name: i for i, name in enumerate(classes)}
    parts: dict[str, tuple[list[str], list[int]]] = {}
    for split in ("train", "test"):
        names = read_lines(folder / f"{split}.txt")
        if wrong := [name for name in names if name.partition("/")[0] not in number]:
            raise DataError(f"{folder / f'{split}.txt'}: '{wrong[0][:80]}' is of no class in classes.txt.")
        parts[split] = [f"images/{name}.jpg" for name in names], [number[name.partition("/")[0]] for name in names]
    return listed("food101", path, classes, parts, named_in=folder)


SOURCE = Published(
    "food101",
    "Food-101",
    recognizes,
    read,
    ("food-101",),
    "https://data.vision.ee.ethz.ch/cvl/datasets_extra/food-101",
    num_classes=101,
)

"""Caltech-101 as its authors publish it: class folders, no split."""

from pathlib import Path

from vitlab.data.contract import DataSet
from vitlab.data.sources.folder import read_unsplit
from vitlab.data.sources.source import Published

BACKGROUND = "BACKGROUND_Google"  # pictures of nothing in particular: none of the 101 categories


def recognizes(path: Path) -> bool:
    return all((path / name).is_dir() for name in ("accordion", "yin_yang"))  # the first and the last


def read(path: Path) -> DataSet:
    return read_unsplit("caltech101", path, [BACKGROUND] if (path / BACKGROUND).is_dir() else [])


SOURCE = Published(
    "caltech101",
    "Caltech-101",
    recognizes,
    read,
    ("caltech101/101_ObjectCategories", "caltech-101/101_ObjectCategories", "101_ObjectCategories"),
    "https://data.caltech.edu/records/20086",
)

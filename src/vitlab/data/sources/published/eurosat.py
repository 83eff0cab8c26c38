"""EuroSAT's RGB images as their authors publish them: class folders, no split."""

from pathlib import Path

from vitlab.data.contract import DataSet
from vitlab.data.sources.files import list_folders
from vitlab.data.sources.folder import read_unsplit
from vitlab.data.sources.source import Published

CLASSES = (
    "AnnualCrop",
    "Forest",
    "HerbaceousVegetation",
    "Highway",
    "Industrial",
    "Pasture",
    "PermanentCrop",
    "Residential",
    "River",
    "SeaLake",
)


def recognizes(path: Path) -> bool:
    return all((path / name).is_dir() for name in (CLASSES[0], CLASSES[-1]))


def read(path: Path) -> DataSet:
    return read_unsplit("eurosat", path, [name for name in list_folders(path) if name not in CLASSES])


SOURCE = Published(
    "eurosat",
    "EuroSAT (RGB)",
    recognizes,
    read,
    ("eurosat/2750", "EuroSAT/2750", "2750", "EuroSAT_RGB"),
    "https://github.com/phelber/EuroSAT",
    num_classes=10,
)

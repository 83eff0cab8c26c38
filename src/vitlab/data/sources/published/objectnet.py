"""ObjectNet as its authors publish it: objects at home, seen from odd sides, and a mapping to ImageNet's classes."""

from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np

from vitlab.core.errors import DataError
from vitlab.core.imagenet import imagenet_classes
from vitlab.core.record import read_json
from vitlab.data.contract import Array, DataSet
from vitlab.data.decoding import decode
from vitlab.data.sources.files import Files, Listing, list_folders, list_many
from vitlab.data.sources.source import Published, make
from vitlab.data.sources.wording import few

OBJECTNET = "objectnet"
FOLDERS, MAPPING = "mappings/folder_to_objectnet_label.json", "mappings/objectnet_to_imagenet_1k.json"
BORDER = 2  # px that the authors cut off each side: a red line, so that nobody trains on these unawares


@final
@dataclass(frozen=True)
class Cropped:
    """Image files without their border."""

    files: Files

    def __len__(self) -> int:
        return len(self.files)

    def read(self, index: int) -> Array:
        pixels = decode(self.files.read(index), self.where(index))
        return pixels[BORDER:-BORDER, BORDER:-BORDER] if min(pixels.shape[:2]) > 2 * BORDER else pixels

    def where(self, index: int) -> str:
        return self.files.where(index)

    def mark(self) -> str:
        return self.files.mark()

    def identities(self) -> Array:
        return self.files.identities()


def recognizes(path: Path) -> bool:
    return (path / MAPPING).is_file()


def read(path: Path) -> DataSet:
    """The classes that ImageNet has too, each named with the WordNet ids of ImageNet's classes that it is."""
    names = _texts(path / FOLDERS)
    meant = _texts(path / MAPPING)
    root = path / "images" if (path / "images").is_dir() else path
    folders = [name for name in list_folders(root) if name != "mappings"]
    known = [name for name in folders if names.get(name) in meant]
    if not known:
        raise DataError(f"{root} has no folder of a class that {path / MAPPING} names: unpack ObjectNet there.")
    classes = [f"{names[name]} ({' '.join(_wnids(meant[names[name]], path / MAPPING))})" for name in known]
    everything, labels = Listing(), list[Array]()
    for number, listing in enumerate(list_many(root, known)):
        everything.add(listing)
        labels.append(np.full(len(listing.names), number, np.int64))
    left_out = [name for name in folders if name not in known]
    notes = [f"{len(left_out):,} of {len(folders):,} classes are none of ImageNet's, and were left out."]
    images = Cropped(Files(root, everything.names, everything.sizes))
    parts = {"test": (images, np.concatenate(labels))}
    found = make(OBJECTNET, classes, parts, notes=[*(notes if left_out else []), *everything.notes()])
    if not found.splits:
        raise DataError(f"The folder {root} holds no images of {few(known)}.")
    return found


def _texts(file: Path) -> dict[str, str]:
    content = read_json(file, DataError)
    if wrong := [name for name, value in content.items() if not isinstance(value, str)]:
        raise DataError(f"{file} is damaged: {few(wrong)} is no text.")
    return content


def _wnids(lemmas: str, file: Path) -> list[str]:
    """Of 'analog clock; digital clock', the ids of both."""
    known = {name: wnid for wnid, name in imagenet_classes()}
    asked = [name.strip() for name in lemmas.split(";")]
    if wrong := [name for name in asked if name not in known]:
        raise DataError(f"{file} names {few(wrong)}, which is no class of ImageNet.")
    return [known[name] for name in asked]


SOURCE = Published(OBJECTNET, "ObjectNet", recognizes, read, ("objectnet-1.0", "objectnet"), "https://objectnet.dev")

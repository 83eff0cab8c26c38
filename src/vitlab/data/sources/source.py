"""What a source is, and what it makes of what it read."""

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, Self, cast, final

import numpy as np

from vitlab.core.errors import DataError
from vitlab.data.contract import UNLABELLED, Array, Change, DataSet, Images, Masks, Split, Target, ValueKind, Values

SPLITS = ("train", "val", "test")
SPLIT_WORDS = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "dev": "val",
    "test": "test",
    "testing": "test",
}


def split_named(text: str) -> str:
    """The split that a word in a name tells, the first that does; train where none does."""
    words = re.split(r"[^a-z]+", text.lower())
    return next((SPLIT_WORDS[word] for word in words if word in SPLIT_WORDS), "train")


def one_each(root: Path, folders: Iterable[str]) -> dict[str, str]:
    """{'train': 'training', ...} for the folders that are called as splits are; two for one are refused."""
    found: dict[str, str] = {}
    for name in folders:
        split = SPLIT_WORDS.get(name.lower())
        if split in found:
            raise DataError(f"{root} holds both {found[split]} and {name}: keep one of them.")
        if split is not None:
            found[split] = name
    return found


class SourceImages(Images, Protocol):
    """Images that also tell what they are, apart from where they are."""

    def mark(self) -> str:
        """A digest that changes when the images do; cheap, so of names and sizes, or of a part of the pixels."""
        ...

    def identities(self) -> Array:
        """A number for each image, int64, that stays its own when others are added."""
        ...


@dataclass(frozen=True)
class Source:
    """One form in which data sets are kept.

    One of your own is `SET = Source("mine", "my pictures", never, read)` in a file, named mine.py:SET; its `read` gets
    the folder of that file, or takes nothing.
    """

    name: str  # 'folder'
    kind: str  # 'an image folder'
    recognizes: Callable[[Path], bool]  # looks at a few names only
    read: Callable[..., DataSet]
    # whether a folder is of this form even where it holds class folders or a published set too
    certain: Callable[[Path], bool] = field(default=lambda _: False, kw_only=True)


@dataclass(frozen=True)
class Published(Source):
    """A data set as its authors publish it, which can be asked for by name."""

    folders: tuple[str, ...]  # what its archive, or torchvision, calls its folder
    page: str  # where the authors publish it
    aliases: tuple[str, ...] = ()
    embedded: bool = False  # part of a library: there is nothing to find
    known_by_name: bool = False  # its files could be another set's, so the folder has to be called as it is
    num_classes: int | None = None  # in whichever form it is kept; None where they differ


def never(_: Path) -> bool:
    """For a source that is asked for by name alone."""
    return False


def make(
    name: str,
    classes: Sequence[str],
    parts: Mapping[str, tuple[SourceImages, Array | None]],
    *,
    kind: ValueKind = "class",
    masks: Mapping[str, Masks] | None = None,
    notes: Iterable[str] = (),
    changes_labels: tuple[Change, ...] = (),
) -> DataSet:
    """A data set of images and labels, masks, both or neither, with its fingerprint; empty parts are left out.

    The part `unlabelled` has neither.
    """
    digest = Digest(*classes)
    splits: dict[str, Split] = {}
    for split in (*SPLITS, UNLABELLED):
        if split not in parts or not len(parts[split][0]):
            continue
        images, labels = parts[split]
        targets: dict[str, Target] = {}
        digest.add(split, images.mark())
        if labels is not None:
            digest.add(labels)
            targets["label"] = Values(labels, kind)
        if masks is not None and split != UNLABELLED:
            targets["mask"] = masks[split]
            if labels is None:  # labelled sets had their fingerprints before they had masks
                digest.add("mask", *masks[split].classes, _mark(masks[split].images))
        splits[split] = Split(images, targets)
    return DataSet(name, tuple(classes), splits, digest.text(), tuple(notes), changes_labels=changes_labels)


def _mark(images: Images) -> str:
    assert hasattr(images, "mark"), "a source's masks are a source's images"
    return cast("SourceImages", images).mark()


@final
class Digest:
    """A hash of values in a row; each is preceded by its length, so that no two rows are alike by accident."""

    def __init__(self, *values: str | bytes | int | Array) -> None:
        self._hash = hashlib.blake2b(digest_size=16)
        self.add(*values)

    def add(self, *values: str | bytes | int | Array) -> Self:
        for value in values:
            if isinstance(value, np.ndarray):
                self.add(str(value.dtype.newbyteorder("<")), str(value.shape))
                value = np.ascontiguousarray(value, value.dtype.newbyteorder("<")).tobytes()
            elif isinstance(value, int):
                value = str(value).encode()
            elif isinstance(value, str):
                value = value.encode("utf-8", "surrogateescape")
            self._hash.update(len(value).to_bytes(8, "little"))
            self._hash.update(value)
        return self

    def text(self) -> str:
        return self._hash.hexdigest()

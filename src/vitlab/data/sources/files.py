"""Image files by name, and the image files under a folder."""

import hashlib
import itertools
import os
import stat
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import final

import numpy as np

from vitlab.core.errors import DataError, ImageError
from vitlab.core.reading import check_regular
from vitlab.data.contract import Array
from vitlab.data.decoding import HEIC, HEIC_NEEDS, image_extensions, reads_heic
from vitlab.data.sources.source import Digest
from vitlab.data.sources.wording import few

ARCHIVES = frozenset({".zip", ".rar", ".7z"})  # what people unpack first
THREADS = 16  # a folder on a network answers many questions at once faster than one after another


@final
class Files:
    """Image files below a root, read one at a time and not decoded.

    The names are one block of bytes: as a list of strings, a million of them would be copied into every worker process
    as its reference counts change.
    """

    def __init__(self, root: Path, names: Sequence[str], sizes: Sequence[int]) -> None:
        encoded = [os.fsencode(name) for name in names]
        self.root = str(root)
        self._text = b"".join(encoded)
        self._ends = np.cumsum([0, *map(len, encoded)])
        self._mark = Digest(self._text, self._ends, np.asarray(sizes, np.int64)).text()

    def __len__(self) -> int:
        return len(self._ends) - 1

    def name(self, index: int) -> str:
        """The path below the root, with slashes."""
        return os.fsdecode(self._name(index))

    def where(self, index: int) -> str:
        return os.path.join(self.root, self.name(index))  # noqa: PTH118  ten times faster than Path

    def read(self, index: int) -> bytes:
        path = self.where(index)
        try:
            check_regular(path)
            with open(path, "rb", buffering=0) as file:  # noqa: PTH123
                data = file.readall()
        except OSError as error:
            raise ImageError(f"Cannot read {path}: {error.strerror or error}.") from error
        if not data:
            raise ImageError(f"{path} is empty.")
        return data

    def mark(self) -> str:
        return self._mark

    def identities(self) -> Array:
        ends = self._ends.tolist()
        names = (self._text[start:end] for start, end in itertools.pairwise(ends))
        digests = b"".join(hashlib.blake2b(name, digest_size=8).digest() for name in names)
        return np.frombuffer(digests, "<i8").astype(np.int64)

    def _name(self, index: int) -> bytes:
        index = range(len(self))[index]  # checks it, and counts from the end where it is negative
        return self._text[self._ends[index] : self._ends[index + 1]]


@dataclass
class Listing:
    """The image files under a folder, in order, and what else was there."""

    names: list[str] = field(default_factory=list)  # below the root, with slashes
    sizes: list[int] = field(default_factory=list)
    hidden: int = 0
    others: list[str] = field(default_factory=list)
    dangling: list[str] = field(default_factory=list)  # links that lead nowhere
    heic: list[str] = field(default_factory=list)  # where they cannot be read

    def add(self, other: "Listing") -> None:
        self.names += other.names
        self.sizes += other.sizes
        self.hidden += other.hidden
        self.others += other.others
        self.dangling += other.dangling
        self.heic += other.heic

    def notes(self) -> list[str]:
        """Sentences on what was left out, and on images that hold nothing."""
        empty = [name for name, size in zip(self.names, self.sizes, strict=True) if size == 0]
        notes: list[str] = []
        if self.hidden:
            notes.append(f"{self.hidden:,} hidden {'file was' if self.hidden == 1 else 'files were'} left out.")
        if self.others:
            what = "file that is not an image was" if len(self.others) == 1 else "files that are not images were"
            notes.append(f"{len(self.others):,} {what} left out: {few(self.others)}.")
        if self.heic:
            what = "picture is HEIC and was" if len(self.heic) == 1 else "pictures are HEIC and were"
            notes.append(f"{len(self.heic):,} {what} left out ({few(self.heic)}): to read them, {HEIC_NEEDS}.")
        if self.dangling:
            what = "link that leads nowhere was" if len(self.dangling) == 1 else "links that lead nowhere were"
            notes.append(f"{len(self.dangling):,} {what} left out: {few(self.dangling)}.")
        if empty:
            notes.append(f"{len(empty):,} {'image is' if len(empty) == 1 else 'images are'} empty: {few(empty)}.")
        return notes


def is_image(name: str) -> bool:
    """Whether a file is an image by its name, and not hidden."""
    return not name.startswith(".") and os.path.splitext(name)[1].lower() in image_extensions()  # noqa: PTH122


def is_heic(name: str) -> bool:
    """Whether a file is one of HEIC by its name."""
    return os.path.splitext(name)[1].lower() in HEIC  # noqa: PTH122


def list_folders(folder: Path) -> list[str]:
    """The names of the folders in a folder, without hidden ones, in plain order."""
    try:
        with os.scandir(folder) as entries:
            return sorted(entry.name for entry in entries if not entry.name.startswith(".") and entry.is_dir())
    except OSError as error:
        raise DataError(f"Cannot read the folder {folder}: {error.strerror or error}.") from error


def list_images(root: Path, folder: str = "", *, deep: bool = True) -> Listing:
    """The images in `root`/`folder`, and with `deep` in its folders; links are followed, but not up or in circles."""
    found: list[tuple[str, int]] = []
    listing = Listing()
    seen: set[tuple[int, int]] = set()
    waiting = [folder]
    while waiting:
        here = waiting.pop()
        try:
            status = os.stat(root / here)  # noqa: PTH116
            if (status.st_dev, status.st_ino) in seen or _leads_up(root, here):
                continue
            seen.add((status.st_dev, status.st_ino))
            with os.scandir(root / here) as entries:
                for entry in entries:
                    name = f"{here}/{entry.name}" if here else entry.name
                    if entry.is_dir():
                        if deep and not entry.name.startswith("."):
                            waiting.append(name)
                    elif entry.name.startswith("."):
                        listing.hidden += 1
                    elif is_heic(entry.name) and not reads_heic():
                        listing.heic.append(name)
                    elif is_image(entry.name) and entry.is_file():
                        found.append((name, entry.stat().st_size))
                    elif entry.is_symlink() and not os.path.exists(entry.path):  # noqa: PTH110
                        listing.dangling.append(name)
                    else:
                        listing.others.append(name)
        except OSError as error:
            raise DataError(f"Cannot read the folder {root / here}: {error.strerror or error}.") from error
    found.sort()
    listing.others.sort()
    listing.dangling.sort()
    listing.heic.sort()
    listing.names = [name for name, _ in found]
    listing.sizes = [size for _, size in found]
    return listing


def list_many(root: Path, folders: Sequence[str]) -> list[Listing]:
    """`list_images` of several folders at once."""
    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(lambda folder: list_images(root, folder), folders))


def measure(root: Path, names: Iterable[str], *, named_in: Path) -> list[int]:
    """The sizes of files that a table names; a DataError when some are not there."""
    listed = list(names)
    chunks = [listed[i : i + 256] for i in range(0, len(listed), 256)]
    with ThreadPoolExecutor(THREADS) as pool:
        sizes = [
            size for part in pool.map(lambda chunk: [_size(root, name) for name in chunk], chunks) for size in part
        ]
    missing = [name for name, size in zip(listed, sizes, strict=True) if size is None]
    if missing:
        some = "is" if len(missing) == 1 else "are"
        hint = " Write paths with /, not with \\." if all("\\" in name for name in missing) else ""
        raise DataError(
            f"{len(missing):,} of the {len(listed):,} images that {named_in} names {some} not below {root}:"
            f" {few(missing)}.{hint}"
        )
    return [size for size in sizes if size is not None]


def _leads_up(root: Path, folder: str) -> bool:
    """Whether a folder is a link to one that it is in, or to one that the root is in."""
    if not folder or not (root / folder).is_symlink():
        return False
    target = (root / folder).resolve()
    above = [(root / parent).resolve() for parent in Path(folder).parents]
    return target in above or root.resolve().is_relative_to(target)


def _size(root: Path, name: str) -> int | None:
    try:
        status = os.stat(root / name)  # noqa: PTH116
    except (OSError, ValueError):  # ValueError: a name with a zero character
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None

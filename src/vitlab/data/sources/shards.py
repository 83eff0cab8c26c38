"""WebDataset tars: members of one name are a sample, an image and beside it `.cls` (a number), `.json` or `.txt`.

The members are indexed once, so that any image can be read by its number straight from its tar; neither the
webdataset package nor an order of reading is needed.
"""

import itertools
import re
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

import numpy as np

from vitlab.core.errors import DataError, Error, ImageError
from vitlab.core.reading import parse_json
from vitlab.data.contract import Array, DataSet
from vitlab.data.decoding import image_extensions
from vitlab.data.sources.files import Files, list_folders
from vitlab.data.sources.labels import Labels, class_names_beside, from_numbers, from_texts
from vitlab.data.sources.source import SPLIT_WORDS, Source, make, one_each, split_named
from vitlab.data.sources.wording import few, natural

SAMPLE = re.compile(r"((?:.*/|)[^.]+)[.]([^/]*)")  # the webdataset package's rule: a name ends at its first dot
BRACES = re.compile(r"\{([^{}]*)\}")
LABEL_KEYS = ("label", "cls", "class", "class_id", "label_name", "class_name")  # in a .json, the first that is there
END, LOOK = 1024, 1 << 16  # a tar ends in two blocks of zeros, and is filled up to a whole record
MOST_TARS = 1_000_000
LONGEST_LABEL = 1 << 20  # bytes: a .json may hold more than a label
COMPRESSED = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")


@final
class TarImages:
    """Images inside tars, by the tar's number, offset and size."""

    def __init__(self, tars: Sequence[Path], names: Files, place: Array) -> None:
        self.tars = [str(path) for path in tars]
        self._names = names
        self._place = place  # [N, 3]: tar, offset, size

    def __len__(self) -> int:
        return len(self._place)

    def read(self, index: int) -> bytes:
        tar, offset, size = self._place[index].tolist()
        try:
            with open(self.tars[tar], "rb", buffering=0) as file:  # noqa: PTH123
                file.seek(offset)
                data = file.read(size)
        except OSError as error:
            raise ImageError(f"Cannot read {self.tars[tar]}: {error.strerror or error}.") from error
        if len(data) != size or not data:
            raise ImageError(f"{self.where(index)} is {'empty' if not size else 'cut off'}.")
        return data

    def where(self, index: int) -> str:
        return f"{self.tars[int(self._place[index][0])]}:{self._names.name(index)}"

    def mark(self) -> str:
        return self._names.mark()

    def identities(self) -> Array:
        return self._names.identities()


@dataclass
class Index:
    """What a tar holds: images, and a label for each."""

    names: list[str] = field(default_factory=list)
    places: list[tuple[int, int]] = field(default_factory=list)
    labels: list[str | int] = field(default_factory=list)
    without_image: int = 0
    several: list[str] = field(default_factory=list)  # the extensions that were taken where there were others


def recognizes(path: Path) -> bool:
    """Whether it is a tar, a pattern of tars, or a folder of tars, also of train/ and val/ with tars."""
    if path.is_dir():
        return bool(_tars(path)) or any(
            _tars(path / name) for name in list_folders(path) if name.lower() in SPLIT_WORDS
        )
    return path.name.lower().endswith((".tar", *COMPRESSED))


def read(path: Path) -> DataSet:
    """The samples of all tars."""
    shards = _splits(path)
    parts: dict[str, tuple[TarImages, list[str | int]]] = {}
    without_image = 0
    several: list[str] = []
    for split, tars in shards.items():
        indices = [_index(tar) for tar in tars]
        names = [name for index in indices for name in index.names]
        if not names:
            raise DataError(f"{few([str(tar) for tar in tars])} holds no images with a label.")
        place = np.array([(i, *place) for i, index in enumerate(indices) for place in index.places], np.int64)
        root = tars[0].parent
        parts[split] = (
            TarImages(tars, Files(root, names, place[:, 2].tolist()), place),
            [label for index in indices for label in index.labels],
        )
        without_image += sum(index.without_image for index in indices)
        several += [extension for index in indices for extension in index.several]
    labels = _labels({split: found for split, (_, found) in parts.items()}, path, next(iter(shards.values()))[0].parent)
    notes = [f"{len(tars)} tars for {split}." for split, tars in shards.items()]
    if without_image:
        notes.append(f"{without_image:,} samples without an image were left out.")
    if several:
        what = "sample holds" if len(several) == 1 else "samples hold"
        notes.append(f"{len(several):,} {what} several images: .{' or .'.join(sorted(set(several)))} was taken.")
    name = path.resolve().name if path.is_dir() else re.sub(r"\.tar.*|[{}]", "", path.name)
    found = {split: (images, labels.splits[split]) for split, (images, _) in parts.items()}
    return make(name, labels.classes, found, notes=notes)


def expand(pattern: str) -> list[str]:
    """a{000..002}b and a{x,y}b, any number of times, as the shell does."""
    options: list[list[str]] = []
    for i, part in enumerate(BRACES.split(pattern)):
        if i % 2 == 0:
            options.append([part])
        elif match := re.fullmatch(r"([0-9]+)\.\.([0-9]+)", part):
            first, last = match.groups()
            width = max(len(first), len(last)) if first.startswith("0") or last.startswith("0") else 0
            numbers = range(int(first), int(last) + 1)
            if not 0 < len(numbers) <= MOST_TARS:
                raise DataError(f"{{{part}}} of {pattern} stands for {max(len(numbers), 0):,} files.")
            options.append([f"{number:0{width}d}" for number in numbers])
        else:
            options.append(part.split(","))
    return ["".join(parts) for parts in itertools.product(*options)]


def _splits(path: Path) -> dict[str, list[Path]]:
    """The tars of each split: by folder, by a word in their names, or all for train."""
    if path.is_dir():
        tars = _tars(path)
        if not tars:
            folders = [name for name in list_folders(path) if name.lower() in SPLIT_WORDS and _tars(path / name)]
            return {split: _tars(path / name) for split, name in one_each(path, folders).items()}
    else:
        tars = [Path(name) for name in expand(str(path))]
    for tar in tars:
        if not tar.is_file():
            raise DataError(f"There is no file {tar}.")
        if tar.name.lower().endswith(COMPRESSED):
            raise DataError(
                f"{tar} is compressed, so that images cannot be read by their number: unpack it to .tar first."
            )
    if all(re.fullmatch(r"n[0-9]{8}", tar.stem) for tar in tars):
        raise DataError(f"{path} holds ImageNet's class archives: unpack each into a folder of its own name.")
    found: dict[str, list[Path]] = {}
    for tar in tars:
        found.setdefault(split_named(tar.stem), []).append(tar)
    return found


def _tars(folder: Path) -> list[Path]:
    """The tars in a folder; compressed ones too, so that they can be refused by name."""
    found = [path for path in folder.iterdir() if path.name.lower().endswith((".tar", *COMPRESSED))]
    return sorted((path for path in found if not path.name.startswith(".")), key=lambda path: natural(path.name))


def _index(tar: Path) -> Index:
    found = Index()
    try:
        with tarfile.open(tar, "r:") as archive:
            for key, members in itertools.groupby(_members(archive, tar), key=lambda item: item[0]):
                _add_sample(found, tar, archive, key, {extension: member for _, extension, member in members})
    except Error:
        raise
    except Exception as error:  # tarfile raises many kinds for damaged headers
        said = str(error).rstrip(".") or type(error).__name__
        raise DataError(f"{tar} is damaged, or not a tar: {said}.") from error
    return found


def _members(archive: tarfile.TarFile, tar: Path) -> Iterator[tuple[str, str, tarfile.TarInfo]]:
    """(sample, extension, member) of every plain file that is not hidden; after the last, a check of the tar's end."""
    for member in archive:
        archive.members = []  # pyright: ignore[reportAttributeAccessIssue]  tarfile would keep them all
        match = SAMPLE.fullmatch(member.name)
        if member.isreg() and not member.issparse() and match and not Path(member.name).name.startswith((".", "__")):
            yield match[1], match[2].lower(), member
    with tar.open("rb") as stream:
        stream.seek(archive.offset)  # where tarfile found no further member, for whichever reason
        end = stream.read(END + LOOK)
    if len(end) < END or any(end[:END]):
        raise DataError(f"{tar} is cut off or damaged after {archive.offset:,} bytes: copy it again.")
    if b"ustar" in end:
        raise DataError(f"{tar} is several tars in one file, of which the first alone could be read: keep them apart.")


def _add_sample(
    found: Index, tar: Path, archive: tarfile.TarFile, key: str, members: dict[str, tarfile.TarInfo]
) -> None:
    images = [name for name in members if f".{name.rpartition('.')[2]}" in image_extensions()]
    if not images:
        found.without_image += 1
        return
    image = min(images, key=lambda name: ("." in name, name))  # 0.jpg rather than 0.mask.png
    if len(images) > 1:
        found.several.append(image)
    member = members[image]
    if member.offset_data + member.size > tar.stat().st_size:
        raise DataError(f"{tar} is cut off inside {member.name}.")
    odd = None
    for kind in ("cls", "json", "txt"):
        if kind in members:
            if members[kind].size > LONGEST_LABEL:
                raise DataError(f"{tar}: the label of the sample {key} has {members[kind].size:,} bytes; mend it.")
            stream = archive.extractfile(members[kind])
            assert stream is not None
            label = _label(kind, stream.read())
            if isinstance(label, int) and label < 0:
                raise DataError(f"{tar}: the label of the sample {key} is {label}; leave images without a label out.")
            if type(label) in (int, str):
                found.names.append(f"{tar.name}/{member.name}")
                found.places.append((member.offset_data, member.size))
                found.labels.append(label)
                return
            odd = label if odd is None else odd
    if odd is not None:
        raise DataError(
            f"{tar}: the label of the sample {key} is {str(odd)[:40]}; expected was one whole number or one text."
        )
    raise DataError(f"{tar}: the sample {key} has no label; expected was {key}.cls, or .json with one of {LABEL_KEYS}.")


def _label(kind: str, content: bytes) -> Any:
    """The label that a member holds: a number, a text, None where it holds none, or something else."""
    try:
        text: Any = content.decode().strip()
        if kind == "json":
            said = parse_json(text)
            text = next((said[key] for key in LABEL_KEYS if key in said), None) if isinstance(said, dict) else said
    except ValueError:
        return None
    if isinstance(text, float) and text.is_integer():
        return int(text)
    if not isinstance(text, str):
        return text
    return int(text) if re.fullmatch(r"-?[0-9]{1,18}", text) else text or None


def _labels(splits: dict[str, list[str | int]], path: Path, folder: Path) -> Labels:
    kinds = {type(label) for labels in splits.values() for label in labels}
    if kinds == {int}:
        names = class_names_beside(folder) or class_names_beside(folder.parent)
        return from_numbers({split: np.array(labels) for split, labels in splits.items()}, names, where=str(path))
    return from_texts({split: [str(label) for label in labels] for split, labels in splits.items()})


SOURCE = Source("shards", "WebDataset tars", recognizes, read)

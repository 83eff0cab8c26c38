"""torch's distributed checkpoints, read without calling anything that they name.

Their index (`.metadata`) and what they hold beside tensors are pickles, and a pickle is a program. Our reader answers
the index's few names with stand-ins and refuses any other; the rest is read by torch's weights-only reader.
"""

import io
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, final

import torch
from torch.distributed.checkpoint import DefaultLoadPlanner, FileSystemReader
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import ReadItem

INDEX = ".metadata"


class RefusedError(pickle.UnpicklingError):
    """A pickle holds what no checkpoint does."""


@final
class SafeReader(FileSystemReader):
    """Reads a checkpoint's tensors; its index at once, since torch prints tracebacks of one that cannot be read."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._metadata = read_index(path / INDEX)

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        del args, kwargs
        self._metadata.storage_meta = StorageMeta(load_id=self.load_id)
        return self._metadata


@final
class SafePlanner(DefaultLoadPlanner):
    """Takes what a checkpoint holds beside tensors: numbers, texts, lists of them."""

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        name = read_item.dest_index.fqn
        try:
            content = torch.load(value, map_location="cpu", weights_only=True)
        except Exception as error:  # a damaged pickle can raise almost anything
            raise RefusedError(f"'{name}' is damaged, or more than numbers and texts; it was not run") from error
        own = io.BytesIO()
        torch.save(content, own)  # torch's planner reads without such care
        own.seek(0)
        super().load_bytes(read_item, own)


def read_index(path: Path) -> Metadata:
    """Which tensors a checkpoint holds, and where in its files they are."""
    with path.open("rb") as file:
        try:
            return _index(_Reader(file).load())
        except RefusedError as error:
            raise RefusedError(f"{path.name} {error}; it was not run") from error
        except Exception as error:  # a damaged pickle can raise almost anything
            said = (str(error).strip().splitlines() or [""])[0].rstrip(".") or type(error).__name__
            raise RefusedError(f"{path.name} is damaged: {said}") from error


@dataclass(frozen=True)
class _Place:
    """Where in a file an item is, under the names that torch's reader asks for."""

    relative_path: str
    offset: int
    length: int
    transform_descriptors: tuple[str, ...] = ()


@final
class _Reader(pickle.Unpickler):
    def find_class(self, module_name: str, global_name: str, /) -> Any:
        name = f"{module_name}.{global_name}"
        if name in _STAND_INS:
            return _STAND_INS[name]
        if module_name == "torch" and isinstance(found := getattr(torch, global_name, None), torch.dtype):
            return found
        raise RefusedError(f"asks for {name}")


class _Record:
    """An object's fields, once they are known; the class itself cannot be changed through its `__setstate__`."""

    __slots__ = ("state",)

    def __init__(self) -> None:
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Index(_Record):
    __slots__ = ()


class _Tensor(_Record):
    __slots__ = ()


class _Bytes(_Record):
    __slots__ = ()


class _Chunk(_Record):
    __slots__ = ()


class _Properties(_Record):
    __slots__ = ()


class _Key(_Record):
    __slots__ = ()


class _Storage(_Record):
    __slots__ = ()


@final
class _StandIn:
    """A callable whose attributes a pickle cannot set."""

    __slots__ = ("_call",)

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call

    def __call__(self, *arguments: Any) -> Any:
        return self._call(*arguments)

    def __setstate__(self, state: Any) -> None:
        raise RefusedError("changes what it names")


def _nothing(*_: Any) -> None:
    """What torch writes and nothing here needs: a layout, a memory format, the folder that it was written to."""


_METADATA = "torch.distributed.checkpoint.metadata"
_STAND_INS: dict[str, Any] = {
    f"{_METADATA}.Metadata": _Index,
    f"{_METADATA}.TensorStorageMetadata": _Tensor,
    f"{_METADATA}.BytesStorageMetadata": _Bytes,
    f"{_METADATA}.ChunkStorageMetadata": _Chunk,
    f"{_METADATA}.TensorProperties": _Properties,
    f"{_METADATA}.MetadataIndex": _Key,
    f"{_METADATA}.StorageMeta": _Record,
    "torch.distributed.checkpoint.filesystem._StorageInfo": _Storage,
    "torch.Size": _StandIn(lambda sizes=(): torch.Size(sizes)),
    f"{_METADATA}._MEM_FORMAT_ENCODING": _StandIn(_nothing),
    "builtins.getattr": _StandIn(_nothing),  # by which Python 3.11.2 names a memory format
    "torch.serialization._get_layout": _StandIn(_nothing),
    "pathlib.PosixPath": _StandIn(_nothing),
    "pathlib.WindowsPath": _StandIn(_nothing),
    "pathlib._local.PosixPath": _StandIn(_nothing),  # Python 3.13's name for them
    "pathlib._local.WindowsPath": _StandIn(_nothing),
}


def _index(record: Any) -> Metadata:
    state = _state(record, _Index)
    items = {name: _item(value) for name, value in _dictionary(state["state_dict_metadata"]).items()}
    planned = {name: _path(value) for name, value in _dictionary(state.get("planner_data") or {}).items()}
    stored = state["storage_data"]
    if not isinstance(stored, dict):
        raise RefusedError("has no places of its items")
    places = {_key(key): _place(value) for key, value in stored.items()}
    return Metadata(items, planner_data=planned, storage_data=places, version=state.get("version"))


def _state(record: Any, kind: type[_Record]) -> dict[str, Any]:
    if type(record) is not kind:
        raise RefusedError(f"holds {type(record).__name__.strip('_')} in the place of {kind.__name__.strip('_')}")
    return _dictionary(record.state or {})


def _dictionary(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
        raise RefusedError("holds a dictionary whose keys are not texts")
    return value


def _path(value: Any) -> tuple[str | int, ...]:
    """The keys that lead to an item through dictionaries and lists."""
    if not isinstance(value, tuple) or not all(isinstance(part, str | int) for part in value):
        raise RefusedError("holds a path that is not of texts and numbers")
    return value


def _item(record: Any) -> TensorStorageMetadata | BytesStorageMetadata:
    if type(record) is _Bytes:
        return BytesStorageMetadata()
    state = _state(record, _Tensor)
    chunks = [_state(chunk, _Chunk) for chunk in state["chunks"]]
    return TensorStorageMetadata(
        TensorProperties(dtype=_dtype(state["properties"])),
        _size(state["size"]),
        [ChunkStorageMetadata(_size(chunk["offsets"]), _size(chunk["sizes"])) for chunk in chunks],
    )


def _dtype(record: Any) -> torch.dtype:
    if type(record) is not _Properties or not isinstance(record.state[0], torch.dtype):
        raise RefusedError("holds a tensor without its type")
    return record.state[0]


def _size(value: Any) -> torch.Size:
    if not isinstance(value, torch.Size):
        raise RefusedError("holds a tensor without its shape")
    return value


def _key(record: Any) -> MetadataIndex:
    state = _state(record, _Key)
    offset, index = state.get("offset"), state.get("index")
    if not isinstance(state["fqn"], str) or not isinstance(index, int | None):
        raise RefusedError("holds an item without its name")
    return MetadataIndex(state["fqn"], None if offset is None else _size(offset), index)


def _place(record: Any) -> _Place:
    """Where an item is: in a file of the same folder, as it is."""
    state = _state(record, _Storage)
    file, offset, length = state["relative_path"], state["offset"], state["length"]
    if not isinstance(file, str) or PurePath(file).name != file or "\\" in file:
        raise RefusedError(f"names {file!r}, which is not in its folder")
    if type(offset) is not int or type(length) is not int or state.get("transform_descriptors"):
        raise RefusedError(f"has no place in {file} for an item")
    return _Place(file, offset, length)

"""NumPy's `.npz`: a zip of arrays, read straight into place and written one array at a time."""

import json
import math
import struct
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeAlias, final

import numpy as np
import torch
from torch import Tensor

from vitlab.core.errors import CheckpointError, Error
from vitlab.core.files import atomic_file
from vitlab.core.reading import most_inflated, parse_json
from vitlab.weights.files.container import TensorFile, reason

Array: TypeAlias = np.ndarray[Any, Any]
CHUNK = 1 << 20  # bytes: still in the cache when the checksum is taken
COMMENT_LIMIT = 65_535  # bytes in a zip's comment
DAMAGE = (ValueError, OSError, EOFError, MemoryError, RuntimeError, zipfile.BadZipFile, zlib.error, struct.error)


@dataclass(frozen=True)
class _Member:
    """Where an array lies in the zip, and what its header says."""

    info: zipfile.ZipInfo
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran: bool
    header: int  # the length of NumPy's header before the values

    @property
    def stored(self) -> bool:
        """Whether the values lie in the file as they are."""
        return self.info.compress_type == zipfile.ZIP_STORED


@final
class NpzFile(TensorFile):
    """NumPy's zip of arrays, without object arrays."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        try:
            self._zip = zipfile.ZipFile(path)
        except DAMAGE as error:
            raise CheckpointError(f"{path}: not a .npz file, or damaged ({reason(error)}).") from error
        self._members: dict[str, _Member] = {}
        self._stacks: dict[str, Array] = {}  # compressed arrays of which parts are being read, until the last part
        claimed, held = sum(info.file_size for info in self._zip.infolist()), path.stat().st_size
        if claimed > most_inflated(held):
            raise CheckpointError(f"{path}: its arrays claim {claimed:.3g} bytes, and the file has {held:.3g}.")
        for info in self._zip.infolist():
            if info.filename.endswith(".npy"):
                name = info.filename.removesuffix(".npy")
                self._members[name] = self._member(name, info)
        self.metadata = _metadata(self._zip.comment)
        if not self._members:
            raise CheckpointError(f"{path}: there are no arrays in it.")
        self.shapes = {name: member.shape for name, member in self._members.items()}

    def _member(self, name: str, info: zipfile.ZipInfo) -> _Member:
        try:
            with self._zip.open(info) as stream:
                version = np.lib.format.read_magic(stream)
                reader = (
                    np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
                )
                shape, fortran, dtype = reader(stream)
                header = stream.tell()
        except Exception as error:  # NumPy raises many kinds for damaged headers
            raise self._damaged(name, reason(error)) from error
        if dtype.hasobject:
            raise CheckpointError(
                f"{self.path}: '{name}' is an array of Python objects, which could run code; it is not read."
            )
        size = math.prod(shape) * dtype.itemsize
        if min(shape, default=0) < 0 or header + size != info.file_size:
            raise self._damaged(name, f"{info.file_size - header} bytes for the shape {list(shape)}")
        return _Member(info, tuple(shape), dtype, fortran, header)

    def __getitem__(self, name: str) -> Tensor:
        return self._tensor(name, self._array(name))

    def part(self, name: str, index: int) -> Tensor:
        """`self[name][index]`, which in an uncompressed file is all that is read, without its checksum."""
        member = self._members[name]
        if member.stored and not member.fortran:
            return self._tensor(name, self._slice(name, index))
        if name not in self._stacks:
            self._stacks[name] = self._array(name)
        value = self._stacks[name][index].copy()  # by NumPy: glibc does not use the holes of torch's aligned ones again
        if index == member.shape[0] - 1:
            del self._stacks[name]
        return self._tensor(name, value)

    def _array(self, name: str) -> Array:
        member = self._members[name]
        try:
            array = np.empty(member.shape[::-1] if member.fortran else member.shape, member.dtype)
            with self.path.open("rb", buffering=0) if member.stored else self._zip.open(member.info) as stream:
                if member.stored:
                    stream.seek(self._start(member, stream))
                crc = _fill(stream, array, zlib.crc32(_exactly(stream, member.header)))
        except DAMAGE as error:
            raise self._damaged(name, reason(error)) from error
        if crc != member.info.CRC:
            raise self._damaged(name, "its checksum is wrong")
        return array.T if member.fortran else array

    def _slice(self, name: str, index: int) -> Array:
        member = self._members[name]
        array = np.empty(member.shape[1:], member.dtype)
        try:
            with self.path.open("rb", buffering=0) as stream:
                stream.seek(self._start(member, stream) + member.header + index * array.nbytes)
                _fill(stream, array)
        except DAMAGE as error:
            raise self._damaged(name, reason(error)) from error
        return array

    @staticmethod
    def _start(member: _Member, stream: IO[bytes]) -> int:
        """Where a stored member begins: after the zip's header, whose length only the header itself tells."""
        stream.seek(member.info.header_offset)
        of_name, of_extra = struct.unpack("<26xHH", _exactly(stream, 30))
        return member.info.header_offset + 30 + of_name + of_extra

    def _damaged(self, name: str, why: str) -> CheckpointError:
        return CheckpointError(f"{self.path}: the array '{name}' is damaged ({why}).")

    def _tensor(self, name: str, array: Array) -> Tensor:
        dtype = array.dtype
        if dtype.kind == "V" and dtype.itemsize == 2 and dtype.names is None:  # bfloat16 as JAX saves it
            return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
        try:
            return torch.from_numpy(array.astype(dtype.newbyteorder("="), copy=False))
        except TypeError as error:
            raise CheckpointError(f"{self.path}: the array '{name}' holds {dtype}, not numbers.") from error


def write_npz(path: Path, arrays: Iterable[tuple[str, Tensor]], metadata: Mapping[str, str] | None = None) -> None:
    """Named tensors as an uncompressed `.npz`, one at a time, whole or not at all; bfloat16 becomes float32.

    Metadata goes to the zip's comment, which other readers do not see.
    """
    if path.suffix != ".npz":
        raise Error(f"{path}: this format is a .npz file; give a name that ends in .npz.")
    with atomic_file(path) as partial, zipfile.ZipFile(partial, "w", zipfile.ZIP_STORED) as archive:
        archive.comment = comment_of(metadata or {})
        for name, value in arrays:
            value = value.detach().cpu().contiguous()
            array = (value.float() if value.dtype == torch.bfloat16 else value).numpy()
            with archive.open(f"{name}.npy", "w", force_zip64=True) as stream:
                np.lib.format.write_array(stream, array, allow_pickle=False)


def comment_of(metadata: Mapping[str, str]) -> bytes:
    """The comment that holds texts by their names."""
    return json.dumps(metadata, ensure_ascii=False).encode() if metadata else b""


def _metadata(comment: bytes) -> dict[str, str]:
    """What `comment_of` wrote; nothing where the comment is another program's."""
    try:
        content = parse_json(comment or b"{}")
    except ValueError:
        return {}
    return {key: value for key, value in content.items() if isinstance(value, str)} if isinstance(content, dict) else {}


def _fill(stream: IO[bytes], array: Array, crc: int = 0) -> int:
    """Read an array's bytes into it; the checksum of what came before and of them."""
    view = array.reshape(-1).view(np.uint8).data
    done = 0
    while done < len(view):
        count = stream.readinto(view[done : done + CHUNK])  # pyright: ignore[reportAttributeAccessIssue]
        if not count:
            raise EOFError(f"{len(view) - done} bytes are missing")
        crc = zlib.crc32(view[done : done + count], crc)
        done += count
    return crc


def _exactly(stream: IO[bytes], count: int) -> bytes:
    data = stream.read(count)
    if len(data) != count:
        raise EOFError(f"{count - len(data)} bytes are missing")
    return data

"""Zips, tars, gzip, safetensors, NumPy's and MATLAB's files taken apart, and put together with the right checksums.

A change of the bytes of such a file mostly ends at a checksum; a change of a part of it reaches the reader behind.
"""

import contextlib
import gzip
import io
import json
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Sequence
from typing import TypeAlias

Parts: TypeAlias = tuple[list[bytes], Callable[[Sequence[bytes]], bytes]]
COMPRESSED = 15  # the type of a MATLAB element


def taken_apart(data: bytes) -> Parts | None:
    """The parts of a file, and how to put them together; None where it is none of these."""
    for known in (_zip, _gzip, _safetensors, _npy, _matlab, _tar):
        with contextlib.suppress(Exception):  # it was changed before, and is such a file no longer
            if (found := known(data)) is not None:
                return found
    return None


def _zip(data: bytes) -> Parts | None:
    if data[:2] != b"PK":
        return None
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        infos = archive.infolist()
        parts, comment = [archive.read(info) for info in infos], archive.comment

    def together(parts: Sequence[bytes]) -> bytes:
        stream = io.BytesIO()
        with zipfile.ZipFile(stream, "w") as archive:
            for info, part in zip(infos, parts, strict=True):
                archive.writestr(info.filename, part, info.compress_type)
            archive.comment = parts[-1] if comment else b""
        return stream.getvalue()

    return parts, together


def _gzip(data: bytes) -> Parts | None:
    if data[:2] != b"\x1f\x8b":
        return None
    return [gzip.decompress(data)], lambda parts: gzip.compress(parts[0], mtime=0)


def _safetensors(data: bytes) -> Parts | None:
    length = int.from_bytes(data[:8], "little")
    if data[8:9] != b"{" or length > len(data):
        return None
    json.loads(data[8 : 8 + length])
    return [data[8 : 8 + length], data[8 + length :]], lambda parts: struct.pack("<Q", len(parts[0])) + b"".join(parts)


def _npy(data: bytes) -> Parts | None:
    if data[:8] != b"\x93NUMPY\x01\x00":
        return None
    end = 10 + int.from_bytes(data[8:10], "little")
    return [
        data[10:end],
        data[end:],
    ], lambda parts: data[:8] + struct.pack("<H", min(len(parts[0]), 65_535)) + b"".join(parts)


def _matlab(data: bytes) -> Parts | None:
    if not data.startswith(b"MATLAB 5.0") or len(data) < 136:
        return None
    kinds: list[int] = []
    parts: list[bytes] = [data[:128]]
    place = 128
    while place < len(data):
        kind, length = struct.unpack_from("<II", data, place)
        content = data[place + 8 : place + 8 + length]
        kinds.append(kind)
        parts.append(zlib.decompress(content) if kind == COMPRESSED else content)
        place += 8 + length

    def together(parts: Sequence[bytes]) -> bytes:
        contents = [
            zlib.compress(part) if kind == COMPRESSED else part for kind, part in zip(kinds, parts[1:], strict=True)
        ]
        elements = [
            struct.pack("<II", kind, len(content)) + content for kind, content in zip(kinds, contents, strict=True)
        ]
        return parts[0] + b"".join(elements)

    return parts, together


def _tar(data: bytes) -> Parts | None:
    """Each member's header and content in turn, and what is behind the last."""
    if data[257:262] != b"ustar":
        return None
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        members = [(item.offset, item.offset_data, item.size) for item in archive.getmembers()]
    cuts = [place for start, begin, size in members for place in (start, begin, begin + size)]
    bounds = list(zip(cuts, [*cuts[1:], len(data)], strict=True))

    def together(parts: Sequence[bytes]) -> bytes:
        """With the headers' checksums, which are over the header with blanks in their place."""
        made: list[bytes] = []
        for i, part in enumerate(parts):
            if i % 3 == 0 and len(part) == tarfile.BLOCKSIZE:
                blank = part[:148] + b" " * 8 + part[156:]
                part = part[:148] + b"%06o\0 " % sum(blank) + part[156:]
            made.append(part)
        return b"".join(made)

    return [data[start:end] for start, end in bounds], together

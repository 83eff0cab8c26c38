"""MessagePack (msgpack.org) as it lies in a file: a small reader that copies no bytes."""

import struct
from dataclasses import dataclass
from typing import Any, final

MAX_DEPTH = 64  # of containers in containers: a hostile file is not followed further


@dataclass(frozen=True)
class Extension:
    """A value of a type that a program added."""

    code: int
    data: memoryview


class MessageError(ValueError):
    """The bytes are no message, or not a whole one."""


def unpack(data: bytes | memoryview) -> Any:
    """The one value that `data` holds; binary values and extensions are views of it."""
    reader = _Reader(memoryview(data))
    value = reader.value(MAX_DEPTH)
    if reader.at != len(reader.data):
        raise MessageError(f"{len(reader.data) - reader.at} bytes are left over")
    return value


# first byte: the struct of a number, or of a length
FLOATS = {0xCA: ">f", 0xCB: ">d"}
UNSIGNED = {0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q"}
NUMBERS = FLOATS | UNSIGNED | {0xD0: ">b", 0xD1: ">h", 0xD2: ">i", 0xD3: ">q"}
BINARY = {0xC4: ">B", 0xC5: ">H", 0xC6: ">I"}
EXTENSIONS = {0xC7: ">B", 0xC8: ">H", 0xC9: ">I"}
FIXED_EXTENSIONS = {0xD4: 1, 0xD5: 2, 0xD6: 4, 0xD7: 8, 0xD8: 16}
STRINGS = {0xD9: ">B", 0xDA: ">H", 0xDB: ">I"}
ARRAYS = {0xDC: ">H", 0xDD: ">I"}
MAPS = {0xDE: ">H", 0xDF: ">I"}
SINGLES = {0xC0: None, 0xC2: False, 0xC3: True}


@final
class _Reader:
    """A place in the bytes, and what is read from there on."""

    def __init__(self, data: memoryview) -> None:
        self.data, self.at = data, 0

    def take(self, count: int) -> memoryview:
        if count > len(self.data) - self.at:
            raise MessageError("it ends too early")
        self.at += count
        return self.data[self.at - count : self.at]

    def number(self, kind: str) -> Any:
        return struct.unpack(kind, self.take(struct.calcsize(kind)))[0]

    def value(self, depth: int) -> Any:
        if not depth:
            raise MessageError(f"more than {MAX_DEPTH} containers lie in each other")
        first = self.number(">B")
        if first < 0x80 or first >= 0xE0:  # a small integer in the byte itself
            return first if first < 0x80 else first - 0x100
        if first < 0x90:
            return self.map(first & 0x0F, depth)
        if first < 0xA0:
            return self.array(first & 0x0F, depth)
        if first < 0xC0:
            return self.text(first & 0x1F)
        if first in SINGLES:
            return SINGLES[first]
        if first in NUMBERS:
            return self.number(NUMBERS[first])
        if first in BINARY:
            return self.take(self.number(BINARY[first]))
        if first in STRINGS:
            return self.text(self.number(STRINGS[first]))
        if first in ARRAYS:
            return self.array(self.number(ARRAYS[first]), depth)
        if first in MAPS:
            return self.map(self.number(MAPS[first]), depth)
        if first in EXTENSIONS:
            return self.extension(self.number(EXTENSIONS[first]))
        if first in FIXED_EXTENSIONS:
            return self.extension(FIXED_EXTENSIONS[first])
        raise MessageError(f"the byte {first:#x} begins no value")

    def text(self, count: int) -> str:
        try:
            return str(self.take(count), "utf-8")
        except UnicodeDecodeError as error:
            raise MessageError("a text is not UTF-8") from error

    def array(self, count: int, depth: int) -> list[Any]:
        return [self.value(depth - 1) for _ in range(count)]  # a wrong count ends at the end of the bytes

    def map(self, count: int, depth: int) -> dict[Any, Any]:
        content: dict[Any, Any] = {}
        for _ in range(count):
            key = self.value(depth - 1)
            if not isinstance(key, str | int):
                raise MessageError("a key is neither a text nor a number")
            content[key] = self.value(depth - 1)
        return content

    def extension(self, count: int) -> Extension:
        return Extension(self.number(">b"), self.take(count))

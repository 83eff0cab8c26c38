"""Changes of files, as hypothesis draws and shrinks them: of bytes, of numbers in texts, of values in JSON."""

import json
import re
import struct
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any, TypeAlias

from hypothesis import strategies as st

from fuzz.wrapped import taken_apart

Files: TypeAlias = Mapping[str, bytes]
NUMBERS = (
    0,
    1,
    2,
    3,
    7,
    255,
    256,
    65_535,
    2**24,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**48,
    2**63 - 1,
    2**63,
    2**64 - 1,
    10**30,
)
DEEP = 100_000
VALUES: tuple[Any, ...] = (
    *NUMBERS,
    *(-1, -(2**31), -(2**63), 0.5, -0.0, 1e308, float("nan"), float("inf")),
    *(None, True, False, "", "x", "é", "\x00", "\x1b[31m", "a\nvitlab: b", "<script>", "../../x", "\ud800", "x" * 5000),
    *([], {}, [[]], [1] * 1000, {"": 0}, ["a", 1, None]),
)
TEXTS = (
    b"-1",
    b"nan",
    b"1e999",
    b"9" * 30,
    b"",
    b"\xff\xfe",
    b"\x00",
    b"\n",
    b'"',
    b"\xed\xa0\x80",
    b"," * 40,
    b"x" * 200_000,
)


@st.composite
def changed(draw: st.DrawFn, files: Files) -> dict[str, bytes]:
    """The files with one to three changes."""
    found = dict(files)
    for _ in range(draw(st.integers(1, 3))):
        kind = draw(st.sampled_from(sorted({PurePath(name).suffix for name in found})))  # else images would be most
        name = draw(st.sampled_from(sorted(name for name in found if PurePath(name).suffix == kind)))
        match draw(st.integers(0, 19)):
            case 0 if len(found) > 1:
                del found[name]
            case 1:
                found[name] = found[draw(st.sampled_from(sorted(found)))]
            case _:
                found[name] = _change(draw, found[name])
    return found


def _change(draw: st.DrawFn, data: bytes) -> bytes:
    """One change: in three of four cases inside of what the file wraps."""
    if draw(st.integers(0, 3)) and (apart := taken_apart(data)) is not None:
        parts, together = apart
        number = draw(st.integers(0, len(parts) - 1))
        return together([_change(draw, part) if i == number else part for i, part in enumerate(parts)])
    if draw(st.integers(0, 3)) and (content := _json(data)) is not None:
        return _change_json(draw, content)
    if draw(st.booleans()) and data.isascii() and (numbers := list(re.finditer(rb"\d+", data))):
        chosen = draw(st.sampled_from(numbers))
        text = draw(st.sampled_from(TEXTS) | st.sampled_from(NUMBERS).map(lambda number: b"%d" % number))
        return data[: chosen.start()] + text + data[chosen.end() :]
    return _change_bytes(draw, data)


def _change_bytes(draw: st.DrawFn, data: bytes) -> bytes:
    place = draw(st.integers(0, len(data)))
    length = draw(st.sampled_from((1, 2, 4, 8, 64, 512, 4096)))
    end = min(place + length, len(data))
    match draw(st.integers(0, 8)):
        case 0 | 1 if place < len(data):
            return data[:place] + bytes([data[place] ^ 1 << draw(st.integers(0, 7))]) + data[place + 1 :]
        case 2:
            return data[:place]
        case 3:
            return data[:place] + data[end:]
        case 4:
            return data[:end] + data[place:]
        case 5:
            return data[:place] + bytes(end - place) + data[end:]
        case 6:
            return data[:place] + draw(st.binary(min_size=1, max_size=16)) + data[place:]
        case 7:
            return data[:place] + draw(st.sampled_from(TEXTS)) + data[place:]
        case _:
            order, kind = draw(st.sampled_from("<>")), draw(st.sampled_from("BHIQ"))
            size = struct.calcsize(kind)
            number = draw(st.sampled_from(NUMBERS)) % 256**size
            return data[:place] + struct.pack(order + kind, number) + data[place + size :]


def _json(data: bytes) -> Any:
    """The value of a JSON object or list; None for anything else."""
    if data.lstrip()[:1] not in (b"{", b"["):
        return None
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def _change_json(draw: st.DrawFn, content: Any) -> bytes:
    """Another value, key or depth somewhere in the tree."""
    places = list(_places(content))
    if not places:
        return json.dumps(draw(st.sampled_from(VALUES))).encode()
    holder, key = draw(st.sampled_from(places))
    match draw(st.integers(0, 7)):
        case 0:
            del holder[key]
        case 1:
            other, theirs = draw(st.sampled_from(places))
            holder[key] = other[theirs]
        case 2 if isinstance(holder, dict):
            name = draw(st.sampled_from([value for value in VALUES if isinstance(value, str)]) | st.text(max_size=8))
            holder[name] = holder.pop(key)
        case 3:
            holder[key] = "@@"
            deep = draw(st.sampled_from(("[" * DEEP + "]" * DEEP, '{"a":' * DEEP + "0" + "}" * DEEP, "9" * 5000)))
            return json.dumps(content).replace('"@@"', deep).encode()
        case _:
            holder[key] = draw(st.sampled_from(VALUES))
    try:
        return json.dumps(content).encode()
    except (ValueError, RecursionError):  # a value was put into itself
        return b"{}"


def _places(value: Any) -> Sequence[tuple[Any, Any]]:
    """Every place in the tree, as what holds it and its key there."""
    inside: list[tuple[Any, Any]] = []
    if isinstance(value, dict | list):
        for key in list(value) if isinstance(value, dict) else range(len(value)):
            inside.append((value, key))
            inside += _places(value[key])
    return inside

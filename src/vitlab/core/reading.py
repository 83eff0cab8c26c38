"""Reads that no file can make long: regular files only, JSON of a bounded size and depth."""

import errno
import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

MAX_BYTES = 64 << 20  # of a JSON file: the largest that are written here, of 21,841 classes, have a few
MAX_DEPTH = 64  # of what lies in what; recipes have 5
INFLATED, ROOM = 100, 1 << 30  # times its size, and bytes beside, that a compressed file may hold
KINDS: tuple[tuple[Callable[[int], bool], str], ...] = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def check_regular(path: str | os.PathLike[str]) -> None:
    """Refuse, as an OSError, what is there and no file: opening a pipe would wait, and a device may never end."""
    mode = os.stat(path).st_mode  # noqa: PTH116  a path as text costs less, per image
    if not stat.S_ISREG(mode):
        kind = next((name for is_kind, name in KINDS if is_kind(mode)), "something else")
        raise OSError(errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL, f"{kind}, not a file", str(path))


def most_inflated(size: int) -> int:
    """The bytes that a compressed file of this size may hold: more is a trap, which would fill the memory."""
    return INFLATED * size + ROOM


def read_text(path: Path) -> str:
    """The text of a regular file in UTF-8; OSError or ValueError where there is none."""
    check_regular(path)
    if path.stat().st_size > MAX_BYTES:
        raise OSError(errno.EFBIG, f"larger than {MAX_BYTES >> 20} MiB", str(path))
    return path.read_text(encoding="utf-8")


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text, or a ValueError, also where walking it, or writing its texts, would fail later."""
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError("nested too deep") from None
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        level = [child for item in level for child in _children(item)]
        if not level:
            break
    else:
        raise ValueError(f"nested more than {MAX_DEPTH} deep")
    if "\\u" in text if isinstance(text, str) else b"\\u" in text:
        _check_unicode(value)
    return value


def _check_unicode(value: Any) -> None:
    """Refuse halves of characters, which JSON can say and no file can hold."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ValueError("a text in it is not Unicode") from None


def _children(item: Any) -> list[Any]:
    """What lies in a value and may have values in it."""
    inside = item.values() if isinstance(item, dict) else item if isinstance(item, list) else ()
    return [child for child in cast("Any", inside) if isinstance(child, dict | list)]

"""Checksums of the files of a folder, so that a bit that flipped on a disk or on the way does not go unnoticed."""

import json
import re
from collections.abc import Mapping
from pathlib import Path

import xxhash

from vitlab.core.errors import CheckpointError

NAME = "checksums.json"
ALGORITHM = "xxh3_64"
BLOCK = 2**20  # stays in a core's cache between reading and summing


def checksum(path: Path) -> str:
    """A file's checksum, in 16 hexadecimal digits."""
    summed, block = xxhash.xxh3_64(), memoryview(bytearray(BLOCK))
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(block):
            summed.update(block[:count])
    return summed.hexdigest()


def write_checksums(folder: Path, sums: Mapping[str, str]) -> None:
    """Write the checksums of a folder's files, by their names."""
    (folder / NAME).write_bytes(_encoded(sums))


def read_checksums(folder: Path) -> dict[str, str]:
    """The checksums of a folder's files; none where it was written before there were any."""
    path = folder / NAME
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror}).") from error
    try:
        sums = json.loads(content)["files"]
        if all(re.fullmatch(r"[0-9a-f]{16}", value) for value in sums.values()) and content == _encoded(sums):
            return sums
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        pass
    raise CheckpointError(f"{path}: the checksums are damaged. Delete the file to load without them.")


def check(path: Path, expected: str) -> None:
    """Refuse a file that is not what was written."""
    try:
        found = checksum(path)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror}).") from error
    if found != expected:
        raise CheckpointError(
            f"{path}: the file is damaged, its checksum is not that in {NAME}. Copy it again from its source, or"
            f" delete {NAME} if you changed it on purpose."
        )


def _encoded(sums: Mapping[str, str]) -> bytes:
    return (json.dumps({"algorithm": ALGORITHM, "files": dict(sums)}, indent=2) + "\n").encode()

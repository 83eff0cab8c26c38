"""Disks of a few megabytes, for what happens when they are full or cannot be written."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

USAGE = shutil.disk_usage  # tests change the other


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of its own with 6 MiB, where mounting is permitted."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(place)], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"mounting a small disk is not permitted here ({mounted.stderr.strip()})")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def make_read_only(disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)


def fill(disk: Path, *, leave: int) -> None:
    """Take what room there is, but for so many bytes."""
    with (disk / "other").open("wb") as file:
        file.write(bytes(USAGE(disk).free - leave))

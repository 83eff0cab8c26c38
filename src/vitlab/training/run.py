"""A run's folder: its recipe, its environment, a lock against a second start, and signals that end it in order."""

import contextlib
import fcntl
import json
import os
import platform
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from vitlab.core.errors import Error
from vitlab.core.files import atomic_file

PACKAGES = ("vitlab", "torch", "numpy", "pillow", "simplejpeg", "safetensors")


class RunError(Error):
    """A run folder that cannot be used as asked."""


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """The folder for this process alone; a second run in it is refused. The lock dies with the process."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("a+") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            handle.seek(0)
            owner = handle.read().strip() or "another process"
            raise RunError(
                f"A run is under way in {folder} ({owner}): wait for it, stop it, or choose another folder."
            ) from error
        handle.truncate(0)
        handle.write(f"process {os.getpid()}")
        handle.flush()
        yield


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """JSON, whole or not at all."""
    with atomic_file(path) as partial:
        partial.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def read_json(path: Path) -> dict[str, Any]:
    """A run's JSON file, or a RunError that names it."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise RunError(f"{path.parent} is not a run's folder: {path.name} is missing.") from error
    except (OSError, ValueError) as error:
        raise RunError(f"{path}: cannot be read ({error}).") from error


def differences(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> list[str]:
    """The fields in which two recipes differ, as 'optimiser.rate: 0.001, now 0.002'."""
    found: list[str] = []
    for name in {**old, **new}:
        before, after = old.get(name), new.get(name)
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            found += differences(before, after, f"{prefix}{name}.")
        elif before != after:
            found.append(f"{prefix}{name}: {before!r}, now {after!r}")
    return found


def environment(decoder: str) -> dict[str, Any]:
    """What a run ran on, without names of people or machines."""
    versions = {name: _version(name) for name in PACKAGES}
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {
        "command": ["vitlab", *sys.argv[1:]],
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "packages": versions,
        "gpus": gpus,
        "threads": torch.get_num_threads(),
        "decoder": decoder,
        "commit": _commit(),
    }


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _commit() -> str | None:
    """The commit of the source tree, where vitlab runs from one."""
    root = Path(__file__).resolve().parents[3]
    if not (root / ".git").exists():
        return None
    git = subprocess.run(["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, check=False)
    return git.stdout.strip() or None


class Stop:
    """SIGINT and SIGTERM, remembered so that the step under way can end; a second SIGINT ends at once."""

    def __init__(self) -> None:
        self.signal: int | None = None

    @property
    def status(self) -> int:
        """The exit status for the signal that came: 130 for SIGINT, 143 for SIGTERM."""
        return 128 + (self.signal or 0)

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        before = {number: signal.signal(number, self._take) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _take(self, number: int, frame: FrameType | None) -> None:
        del frame
        if self.signal == signal.SIGINT and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal = number

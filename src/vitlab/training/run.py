"""A run's folder: its files, a lock against a second start, and signals that end it in order."""

import contextlib
import fcntl
import os
import shlex
import signal
import socket
import threading
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from vitlab.core import record
from vitlab.core.errors import Error, did_you_mean
from vitlab.core.files import near_paths

LOCK = ".lock"  # a run's file, there from its beginning on


class RunError(Error):
    """A run folder that cannot be used as asked."""


class StoppedError(RunError):
    """A signal ended what leaves no run to resume."""

    def __init__(self, sentence: str, number: int) -> None:
        super().__init__(sentence)
        self.status = 128 + number


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """The folder for this process alone; a second run in it is refused. The lock dies with the process.

    A folder in which nothing was made but the lock is removed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lock = folder / LOCK
    with lock.open("a+") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            handle.seek(0)
            raise _under_way(folder, handle.read().strip() or "another process") from error
        except OSError as error:
            raise RunError(
                f"{folder} cannot be locked against a second start ({error.strerror}): choose a folder on another disk."
            ) from error
        if not os.fstat(handle.fileno()).st_nlink:  # removed since it was opened, by a run that ended just now
            raise _under_way(folder, "another process")
        handle.truncate(0)
        handle.write(f"process {os.getpid()} on {socket.gethostname()}")
        handle.flush()
        try:
            yield
        finally:
            with contextlib.suppress(OSError):  # the folder is gone, or its disk: what ended the run says so
                if list(folder.iterdir()) == [lock]:
                    lock.unlink()
                    folder.rmdir()


def _under_way(folder: Path, owner: str) -> RunError:
    return RunError(f"A run is under way in {folder} ({owner}): wait for it, stop it, or choose another folder.")


def check_there(folder: Path) -> None:
    """Refuse to write into a run's folder that was moved or deleted since: what is written would be no run's."""
    if not any((folder / name).exists() for name in (LOCK, "recipe.json")):
        raise RunError(
            f"{folder} is no longer there as a run's folder: it was moved or deleted while the run was under way. Where"
            " it was moved, resume it there (vitlab train --resume WHERE)."
        )


def resuming(folder: Path) -> str:
    """The command that resumes a run."""
    return f"vitlab train --resume {shlex.quote(str(folder))}"


def read_json(path: Path) -> dict[str, Any]:
    """A run's JSON file, or a RunError that names it."""
    if not path.exists():
        hint = did_you_mean(near_paths(path.parent))
        raise RunError(f"{path.parent} is not a run's folder: {path.name} is missing.{hint}")
    return record.read_json(path, RunError)


def differences(
    old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "", *, free: Collection[str] = ()
) -> list[str]:
    """The fields in which two recipes differ, but for free ones, as 'optimizer.lr: 0.001, now 0.002'."""
    found: list[str] = []
    for name in {**old, **new}:
        before, after = old.get(name), new.get(name)
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            found += differences(before, after, f"{prefix}{name}.", free=free)
        elif before != after and f"{prefix}{name}" not in free:
            found.append(f"{prefix}{name}: {before!r}, now {after!r}")
    return found


class Stop:
    """SIGINT and SIGTERM, remembered so that the step under way can end; a second SIGINT ends at once."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self.to_the_end = False  # listen on after the run: a launcher's SIGTERM is not to cut off a last message

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():  # the others are not sent any
            yield
            return
        before = {number: signal.signal(number, self._take) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            if not self.to_the_end:
                for number, handler in before.items():
                    signal.signal(number, handler)

    def _take(self, number: int, frame: FrameType | None) -> None:
        del frame
        if self.signal == signal.SIGINT and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal = number

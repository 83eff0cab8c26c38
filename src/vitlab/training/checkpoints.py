"""Checkpoints that are complete or not there: written aside, synced, then renamed."""

import contextlib
import dataclasses
import errno
import json
import os
import re
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch.distributed as dist
import torch.distributed.checkpoint as dcp

from vitlab.core.config import from_dict
from vitlab.core.errors import CheckpointError, Error
from vitlab.core.files import sync
from vitlab.training.state import Progress, State

NAME = re.compile(r"step-(\d{9})")
FILES = ("progress.json", ".metadata")  # that a checkpoint has beside its tensors
FULL = (errno.ENOSPC, errno.EDQUOT)


class DiskFullError(Error):
    """There is no room for a checkpoint; the last good one is still there."""


def complete(folder: Path) -> list[tuple[int, Path]]:
    """The checkpoints of a run that are whole, oldest first."""
    return [(step, path) for step, path in _named(folder) if all((path / name).is_file() for name in FILES)]


def newest(folder: Path) -> Path | None:
    """The checkpoint to go on from; a damaged one is not passed over in silence."""
    if not (named := _named(folder)):
        return None
    path = named[-1][1]
    if missing := [name for name in FILES if not (path / name).is_file()]:
        raise _unreadable(path, f"{missing[0]} is missing")
    return path


def _unreadable(path: Path, why: str) -> CheckpointError:
    older = [str(other) for _, other in complete(path.parent) if other != path]
    remedy = f" Move it away to go on from {older[-1]}." if older else ""
    return CheckpointError(f"{path}: the checkpoint cannot be read ({why}).{remedy}")


def _named(folder: Path) -> list[tuple[int, Path]]:
    if not folder.is_dir():
        return []
    return sorted((int(match[1]), path) for path in folder.iterdir() if (match := NAME.fullmatch(path.name)))


def prune(folder: Path, best: int | None) -> None:
    """Keep the last checkpoint and the best one's; of others nothing stays, also where a kill left half of them."""
    if not (kept := complete(folder)):
        return
    for step, path in _named(folder):
        if step not in (kept[-1][0], best):
            path.replace(folder / f".{path.name}.partial")  # no longer one, whatever happens now
    for left in folder.glob(".step-*.partial"):
        shutil.rmtree(left)


def write(folder: Path, state: State) -> Path:
    """A checkpoint of the state, and no more of the older ones than the best one's."""
    tensors = state.tensors()
    target = folder / f"step-{state.progress.step:09d}"
    partial = folder / f".{target.name}.partial"
    if _first():
        folder.mkdir(parents=True, exist_ok=True)
        for left in folder.glob(".step-*.partial"):
            shutil.rmtree(left)
        _check_room(folder, tensors)
        partial.mkdir()
    _wait()
    try:
        with _quiet():
            dcp.save(tensors, storage_writer=dcp.FileSystemWriter(partial, sync_files=True), no_dist=_alone())
        if _first():
            content = json.dumps(dataclasses.asdict(state.progress), indent=2)
            (partial / "progress.json").write_text(content + "\n", encoding="utf-8")
            sync(partial / "progress.json")
            sync(partial)
            if target.exists():
                shutil.rmtree(target)
            partial.replace(target)
            sync(folder)
    except (OSError, dcp.CheckpointException) as error:
        shutil.rmtree(partial, ignore_errors=True)
        causes = [failure[0] for failure in error.failures.values()] if not isinstance(error, OSError) else [error]
        if any(isinstance(cause, KeyboardInterrupt) for cause in causes):
            raise KeyboardInterrupt from error
        raise DiskFullError(_full(folder, str(error).splitlines()[-1], sure=is_full(error))) from error
    _wait()
    if _first():
        prune(folder, state.progress.best_step)
    return target


def is_full(error: BaseException) -> bool:
    """Whether there was no room for a write, on the disk or in the user's share of it."""
    return any(os.strerror(number) in str(error) for number in FULL)


def read(path: Path, state: State) -> None:
    """The state as it was when the checkpoint was written, on any number of processes."""
    try:
        progress = progress_of(path)
        tensors = state.tensors()
        with _quiet():
            dcp.load(tensors, storage_reader=dcp.FileSystemReader(path), no_dist=_alone())
    except (Exception, dcp.CheckpointException) as error:  # the latter is a BaseException
        line = (str(error).strip().splitlines() or [type(error).__name__])[-1]
        raise _unreadable(path, line) from error
    state.restore(tensors)
    state.progress = progress


def progress_of(path: Path) -> Progress:
    """How far the run was."""
    content = json.loads((path / "progress.json").read_text(encoding="utf-8"))
    return from_dict(Progress, content, where="progress.json")


def _check_room(folder: Path, tensors: dict[str, Any]) -> None:
    needed = int(_bytes(tensors) * 1.05) + 2**20
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise DiskFullError(_full(folder, f"{needed / 2**20:.0f} MiB are needed, {free / 2**20:.0f} are free"))


def _full(folder: Path, why: str, *, sure: bool = True) -> str:
    remedy = "make room and resume" if sure else "mend that and resume"
    return f"No checkpoint could be written to {folder} ({why}): {remedy}; {last_good(folder)}."


def last_good(folder: Path) -> str:
    """Words on where a run can go on from."""
    kept = complete(folder)
    return f"the last good one is {kept[-1][1]}" if kept else "there is none yet"


def _bytes(tree: Any) -> int:
    if isinstance(tree, dict):
        return sum(_bytes(value) for value in tree.values())
    if isinstance(tree, list | tuple):
        return sum(_bytes(value) for value in tree)
    return tree.numel() * tree.element_size() if hasattr(tree, "element_size") else 0


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the warning that a single process saves as a single process."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield


def _alone() -> bool:
    return not dist.is_initialized()


def _first() -> bool:
    return _alone() or dist.get_rank() == 0


def _wait() -> None:
    if not _alone():
        dist.barrier()

"""Checkpoints that are complete or not there: written aside, synced, then renamed."""

import contextlib
import dataclasses
import json
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


class DiskFullError(Error):
    """There is no room for a checkpoint; the last good one is still there."""


def complete(folder: Path) -> list[tuple[int, Path]]:
    """The checkpoints of a run that are whole, oldest first."""
    if not folder.is_dir():
        return []
    found = [(int(match[1]), path) for path in folder.iterdir() if (match := NAME.fullmatch(path.name))]
    return sorted(found)


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
        raise DiskFullError(_full(folder, str(error).splitlines()[-1])) from error
    _wait()
    if _first():
        for step, path in complete(folder)[:-1]:
            if step != state.progress.best_step:
                shutil.rmtree(path)
    return target


def read(path: Path, state: State) -> None:
    """The state as it was when the checkpoint was written, on any number of processes."""
    try:
        content = json.loads((path / "progress.json").read_text(encoding="utf-8"))
        progress = from_dict(Progress, content, where="progress.json")
        tensors = state.tensors()
        with _quiet():
            dcp.load(tensors, storage_reader=dcp.FileSystemReader(path), no_dist=_alone())
    except (Exception, dcp.CheckpointException) as error:  # the latter is a BaseException
        line = (str(error).strip().splitlines() or [type(error).__name__])[-1]
        raise CheckpointError(f"{path}: the checkpoint cannot be read ({line}).") from error
    state.restore(tensors)
    state.progress = progress


def _check_room(folder: Path, tensors: dict[str, Any]) -> None:
    needed = int(_bytes(tensors) * 1.05) + 2**20
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise DiskFullError(_full(folder, f"{needed / 2**20:.0f} MiB are needed, {free / 2**20:.0f} are free"))


def _full(folder: Path, why: str) -> str:
    return f"No checkpoint could be written to {folder} ({why}): make room and resume; {last_good(folder)}."


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

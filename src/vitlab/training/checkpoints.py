"""Checkpoints that are complete or not there: written aside, synced, then renamed."""

import contextlib
import dataclasses
import errno
import json
import os
import re
import shutil
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn

from vitlab.core import record
from vitlab.core.checksums import NAME as CHECKSUMS
from vitlab.core.checksums import checksum, read_checksums, write_checksums
from vitlab.core.config import from_dict
from vitlab.core.errors import CheckpointError, Error
from vitlab.core.files import free_path, sync
from vitlab.training.distribution import group_device, shared
from vitlab.training.state import Progress, State
from vitlab.training.unpickling import INDEX, SafePlanner, SafeReader, read_index

NAME = re.compile(r"step-(\d{9})")
PART = re.compile(r"__(\d+)_\d+\.distcp")  # the tensors that a process wrote
UNREADABLE = "0" * 16  # in the place of a checksum
FILES = ("progress.json", INDEX)  # that a checkpoint has beside its tensors
FULL = (errno.ENOSPC, errno.EDQUOT)


class DiskFullError(Error):
    """There is no room for a checkpoint; the last good one is still there."""


def complete(folder: Path) -> list[tuple[int, Path]]:
    """The checkpoints of a run that are whole, oldest first."""
    return [(step, path) for step, path in _named(folder) if all((path / name).is_file() for name in FILES)]


def newest(folder: Path, say: Callable[[str], None]) -> Path | None:
    """The checkpoint to resume from, the same in all processes: the last one that is what was written.

    A damaged one is put aside where there is an older one, and said to be; else it is refused.
    """
    damaged: dict[Path, str] = {}
    for step in shared([step for step, _ in reversed(_named(folder))]):
        path = folder / _name(step)
        if (why := _damage(path)) is None:
            break
        damaged[path] = why
    else:
        if damaged:
            path, why = next(iter(damaged.items()))
            raise CheckpointError(f"{path}: the checkpoint cannot be read ({why}), and there is no older one that can.")
        return None
    for other, why in damaged.items() if _first() else ():
        aside = free_path(other.with_name(f"{other.name}.damaged"))
        other.replace(aside)  # else it would be kept as the last one
        say(f"{other}: the checkpoint is damaged ({why}) and is {aside.name} now; the run resumes from {path.name}.")
    _wait()
    return path


def _damage(path: Path) -> str | None:
    """What is wrong with a checkpoint's files; None also of one from before there were checksums, if it is complete."""
    why, sums = shared(_expected(path) if _first() else (None, {}))
    if why is not None or not sums:
        return why
    found = _sums(path, list(sums))
    wrong = [name for name, value in sums.items() if found[name] != value]
    return f"{wrong[0]} is not what was written" if wrong else None


def _expected(path: Path) -> tuple[str | None, dict[str, str]]:
    """What is seen to be wrong without reading the tensors, and the checksums that files should have."""
    if missing := [name for name in FILES if not (path / name).is_file()]:
        return f"{missing[0]} is missing", {}
    try:
        return None, read_checksums(path)
    except CheckpointError:
        return f"{CHECKSUMS} is not what was written", {}


def _sums(path: Path, names: Sequence[str]) -> dict[str, str]:
    """The checksums of files, a process taking those that it wrote, or would have."""
    rank, size = (0, 1) if _alone() else (dist.get_rank(), dist.get_world_size())
    found = torch.zeros(len(names), 8, dtype=torch.uint8)
    for i, name in enumerate(names):
        writer = int(match[1]) if (match := PART.fullmatch(name)) else 0
        if writer % size == rank:
            with contextlib.suppress(OSError):
                found[i] = torch.tensor(list(bytes.fromhex(checksum(path / name))))
    if not _alone():
        found = found.to(group_device())
        dist.all_reduce(found)  # of which all but one are zeros
    return {name: bytes(row).hex() for name, row in zip(names, found.tolist(), strict=True)}


def _unreadable(path: Path, why: str) -> CheckpointError:
    older = [str(other) for _, other in complete(path.parent) if other != path]
    remedy = f" Move it away to resume from {older[-1]}." if older else ""
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
    target = folder / _name(state.progress.step)
    partial = folder / f".{target.name}.partial"
    if _first():
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for left in folder.glob(".step-*.partial"):
                shutil.rmtree(left)
            _check_room(folder, tensors)
            partial.mkdir()
        except OSError as error:
            raise DiskFullError(_full(folder, error.strerror or str(error), sure=is_full(error))) from error
    _wait()
    try:
        with _quiet():
            dcp.save(tensors, storage_writer=dcp.FileSystemWriter(partial, sync_files=True), no_dist=_alone())
        if _first():
            content = json.dumps(dataclasses.asdict(state.progress), indent=2)
            (partial / "progress.json").write_text(content + "\n", encoding="utf-8")
            sync(partial / "progress.json")
        _wait()
        parts = {place.relative_path for place in read_index(partial / INDEX).storage_data.values()}
        sums = _sums(partial, [*FILES, *sorted(parts)])
        if _first():
            if lost := [name for name, value in sums.items() if value == UNREADABLE]:
                raise OSError(f"{lost[0]} cannot be read back")
            write_checksums(partial, sums)
            sync(partial / CHECKSUMS)
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
        groups = tensors["optimiser"].pop("param_groups")  # settings are the recipe's, however parameters were grouped
        with _quiet():
            dcp.load(tensors, storage_reader=SafeReader(path), planner=SafePlanner(), no_dist=_alone())
        tensors["optimiser"]["param_groups"] = groups
    except (Exception, dcp.CheckpointException) as error:  # the latter is a BaseException
        raise _unreadable(path, _reason(error)) from error
    state.restore(tensors)
    state.progress = progress


def read_objective(path: Path, objective: nn.Module) -> None:
    """The weights that a run's objective had when the checkpoint was written, into one that was built like it."""
    own = objective.state_dict()
    try:
        tensors = {"model": {f"objective.{name}": value for name, value in own.items()}}
        with _quiet():
            dcp.load(tensors, storage_reader=SafeReader(path), planner=SafePlanner(), no_dist=True)
    except (Exception, dcp.CheckpointException) as error:
        raise _unreadable(path, _reason(error)) from error
    objective.load_state_dict(own)


def _reason(error: BaseException) -> str:
    """The last line of what went wrong, without the names of modules before it."""
    if isinstance(error, dcp.CheckpointException) and error.failures:
        error = next(iter(error.failures.values()))[0]
    return (str(error).strip().splitlines() or [type(error).__name__])[-1]


def progress_of(path: Path) -> Progress:
    """How far the run was."""
    content = record.read_json(path / "progress.json")
    if odd := [name for name, value in content.items() if isinstance(value, int) and not 0 <= value < 2**53]:
        raise CheckpointError(f"{path / 'progress.json'}: {odd[0]} is {content[odd[0]]:.3g}, which no run reaches.")
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
    """Words on where a run can be resumed from."""
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


def _name(step: int) -> str:
    return f"step-{step:09d}"


def _wait() -> None:
    if not _alone():
        dist.barrier()

"""A split through a subject: outputs batch by batch, and features that are kept on disk and mapped from there.

Every image counts once, in the order of the data set, whatever the number of workers and processes. With several
processes each computes its part of every batch, and `Share.gather` gives all of them the whole.
"""

import contextlib
import hashlib
import json
import logging
import os
import shutil
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from vitlab.core.config import check_fields, to_dict
from vitlab.core.errors import Error
from vitlab.core.files import atomic_file
from vitlab.core.record import read_json, write_json
from vitlab.data.contract import Array, Split
from vitlab.data.loading.loader import evaluation_batches
from vitlab.evaluation.contract import EvaluationError, Subject
from vitlab.evaluation.labeled_features import Progress

log = logging.getLogger("vitlab")

VERSION = 1  # of what a kept entry means: with another one, all are made again
FEW_IMAGES = 1000  # below, starting workers takes longer than decoding
SMALL_SIDE = 64  # px; the same for decoded pictures that are resized to no more
CHUNK = 2**22  # values that are looked at together
SPARE = 2**26  # bytes that are left free on a disc
STALE = 24 * 3600  # seconds after which a file that a killed process left is removed


@dataclass(frozen=True)
class Share:
    """This process among those that evaluate together; `gather` gives the parts of all, in the order of ranks."""

    rank: int = 0
    world: int = 1
    gather: Callable[[Tensor], list[Tensor]] = lambda part: [part]


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How images are read and where features are kept."""

    batch_size: int = 64
    workers: int | None = None  # decoding processes; None: one per core, none where there is little to decode
    max_damaged: float = 0.01  # the fraction of images that may be unreadable; they are left out
    cache: Path | None = None  # None: nothing is kept
    share: Share = Share()

    def __post_init__(self) -> None:
        check_fields(self)


class Outputs(NamedTuple):
    """One batch of a subject's outputs."""

    values: Tensor  # float32 [b, D], on the CPU
    known: Array | None  # the labels [b] or [b, K], where the images have them
    indices: Array  # int64 [b]: which images of the split

    @property
    def labels(self) -> Array:
        """The labels; an error where the images have none."""
        if self.known is None:
            raise EvaluationError("These images have no labels, and this measures against them.")
        return self.known


@dataclass(frozen=True)
class Features:
    """The features of a split, those of damaged images left out."""

    values: Array  # float32 [N, D], perhaps mapped
    labels: Array
    damaged: tuple[int, ...] = ()  # images of the split that could not be read
    kept: bool = False  # whether they were there already


def default_cache() -> Path:
    """Where features are kept unless something else is asked for; may be deleted at any time."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "vitlab" / "features"


def outputs(
    function: Callable[[Tensor], Tensor],
    subject: Subject,
    split: Split,
    reading: Reading,
    progress: Progress | None = None,
) -> Iterator[Outputs]:
    """A function of the subject's over every readable image of a split, in its order, on all processes alike."""
    if reading.batch_size < 1:
        raise EvaluationError(f"The batch size must be at least 1, not {reading.batch_size}.")
    if not len(split):
        raise EvaluationError("There are no images to measure: the split is empty.")
    share, device = reading.share, subject.device
    on_gpu = device.type == "cuda"
    batches = evaluation_batches(
        split,
        subject.preprocess,
        batch_size=-(-reading.batch_size // share.world) * share.world,
        num_workers=_workers(reading, split, subject.preprocess.size),
        rank=share.rank,
        world=share.world,
        pin_memory=on_gpu,
        max_damaged=reading.max_damaged,
    )
    done = 0
    with contextlib.closing(batches):  # pyright: ignore[reportArgumentType]  a generator
        for batch in batches:
            images = subject.preprocess.normalize(batch.images.to(device, non_blocking=on_gpu))
            values = function(images).float()
            if values.ndim != 2 or len(values) != len(images):
                raise EvaluationError(
                    f"{subject.name} gave an array of shape {tuple(values.shape)} for {len(images)} images: one row per"
                    " image was expected."
                )
            gathered = torch.cat(share.gather(values.contiguous())).cpu()
            counts = torch.cat(share.gather(batch.counts.to(device))).cpu()
            indices = torch.cat(share.gather(batch.indices.to(device))).cpu()[counts].numpy()
            values = gathered[counts]
            bad = ~values.isfinite().all(dim=1)
            if bad.any():
                where = split.images.where(int(indices[int(bad.nonzero()[0, 0])]))
                raise EvaluationError(
                    f"{subject.name} gives numbers that are not finite for {where}: its weights are damaged, or too"
                    " large for the precision."
                )
            yield Outputs(values, split.labels[indices] if "label" in split.targets else None, indices)
            done = min(done + len(counts), len(split))
            if progress is not None:
                progress(done, len(split))


def extract(subject: Subject, split: Split, data: str, reading: Reading, progress: Progress | None = None) -> Features:
    """The features of a split, from where they are kept or computed and kept; `data` stands for the data and the split.

    They are computed into a file of their own that takes its name when it is whole: a killed extraction leaves none.
    """
    path = None
    if reading.cache is not None and subject.fingerprint is not None:
        path = reading.cache / f"{entry_key(subject, split, data)}.npy"
    found = None if path is None else _read_entry(path, split)
    everywhere = reading.share.gather(torch.tensor([found is not None], device=subject.device))
    if found is not None and bool(torch.cat(everywhere).all()):  # else all processes compute, for they do so together
        if progress is not None:
            progress(len(split), len(split))
        if found.damaged and not reading.share.rank:
            _tell_damaged(found.damaged, split)
        return found
    results = outputs(subject.features, subject, split, reading, progress)
    if path is None or reading.share.rank or not _has_room(path.parent, subject, split):
        values, seen = _collect(results, len(split), None)
        return _features(values, split, seen)
    _sweep(path.parent)
    with atomic_file(path) as partial:
        values, seen = _collect(results, len(split), partial)
        damaged = np.flatnonzero(~seen).tolist()
        checksum = _checksum(values)
        del values  # the mapping is closed before the file is synced
    about = {"version": VERSION, "rows": len(split), "damaged": damaged, "checksum": checksum, "model": subject.name}
    write_json(path.with_suffix(".json"), about)
    return _features(np.load(path, mmap_mode="r", allow_pickle=False), split, seen)


def entry_key(subject: Subject, split: Split, data: str) -> str:
    """What a kept entry is named after: weights, data and labels, and how pictures are made from it."""
    assert subject.fingerprint is not None
    labels = hashlib.blake2b(np.ascontiguousarray(split.labels).tobytes(), digest_size=16).hexdigest()
    parts = [VERSION, subject.fingerprint, data, len(split), labels, to_dict(subject.preprocess)]
    return hashlib.blake2b(json.dumps(parts, sort_keys=True).encode(), digest_size=16).hexdigest()


def _has_room(folder: Path, subject: Subject, split: Split) -> bool:
    """Whether the features fit there; a mapped file on a full disc would end the process without a word."""
    width = subject.features(torch.zeros(1, 3, *subject.preprocess.size, device=subject.device)).shape[-1]
    need = len(split) * width * 4
    try:
        folder.mkdir(parents=True, exist_ok=True)
        writable = os.access(folder, os.W_OK)
        fits = writable and shutil.disk_usage(folder).free > need + SPARE
    except OSError:
        writable = fits = False
    if not fits:
        why = f"{need / 2**20:,.0f} MB do not fit there" if writable else "it cannot be written to"
        log.warning("Features are not kept in %s: %s.", folder, why)
    return fits


def _workers(reading: Reading, split: Split, size: tuple[int, int]) -> int:
    if reading.workers is not None:
        return reading.workers
    little = len(split) < FEW_IMAGES or (max(size) <= SMALL_SIDE and isinstance(split.images.read(0), np.ndarray))
    return 0 if little else min(os.cpu_count() or 1, 16)


def _collect(results: Iterator[Outputs], num: int, file: Path | None) -> tuple[Array, Array]:
    """Rows written as they come, into memory or straight into a mapped file, and which of them were there."""
    values: Array | None = None
    seen = np.zeros(num, dtype=bool)
    for batch in results:
        if values is None:
            shape = (num, batch.values.shape[1])
            values = (
                np.zeros(shape, np.float32)
                if file is None
                else np.lib.format.open_memmap(file, mode="w+", dtype=np.float32, shape=shape)
            )
        values[batch.indices] = batch.values.numpy()
        seen[batch.indices] = True
    assert values is not None
    if isinstance(values, np.memmap):
        values.flush()
    return values, seen


def _tell_damaged(damaged: tuple[int, ...], split: Split) -> None:
    """What was said when the features were computed, in one sentence."""
    first = split.images.where(damaged[0])
    names = first if len(damaged) == 1 else f"{first} and {len(damaged) - 1:,} more"
    log.warning("Left out of the kept features, as unreadable when they were computed: %s.", names)


def _features(values: Array, split: Split, seen: Array, *, kept: bool = False) -> Features:
    damaged = tuple(np.flatnonzero(~seen).tolist())
    if not damaged:
        return Features(values, split.labels, kept=kept)
    return Features(values[seen], split.labels[seen], damaged, kept)


def _read_entry(path: Path, split: Split) -> Features | None:
    """A kept entry; None, with a warning, where it is damaged, and without one where there is none."""
    about = path.with_suffix(".json")
    if not path.exists() or not about.exists():
        return None
    try:
        facts: dict[str, Any] = read_json(about)
        values = np.load(path, mmap_mode="r", allow_pickle=False)
        whole = (
            facts["rows"] == len(split) == len(values)
            and values.ndim == 2
            and values.dtype == np.float32
            and facts["checksum"] == _checksum(values)
        )
        seen = np.ones(len(split), dtype=bool)
        seen[np.array(facts["damaged"], dtype=np.int64)] = False
    except (Error, OSError, ValueError, EOFError, KeyError, TypeError, IndexError):
        whole, values, seen = False, np.empty(0), np.empty(0)
    if not whole:
        log.warning("The kept features %s are damaged: they are computed again.", path)
        return None
    return _features(values, split, seen, kept=True)


def _checksum(values: Array) -> int:
    """CRC-32 of the rows, read in parts."""
    total, step = 0, max(CHUNK // max(values.shape[1], 1), 1)
    for start in range(0, len(values), step):
        total = zlib.crc32(np.ascontiguousarray(values[start : start + step]).tobytes(), total)
    return total


def _sweep(folder: Path) -> None:
    """Remove what processes that were killed long ago left."""
    for file in folder.glob(".*.partial.npy"):
        with contextlib.suppress(OSError):
            if time.time() - file.stat().st_mtime > STALE:
                file.unlink()

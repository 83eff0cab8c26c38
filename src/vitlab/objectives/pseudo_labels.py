"""A teacher's answers to unlabelled images as labels: which of them are kept, and how often, as Noisy Student does it.

Answers are computed once and kept in the run's folder, so that a resumed run learns from the same ones to the bit.
"""

import contextlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np
import torch
import torch.distributed as dist
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from vitlab.core.errors import CheckpointError, ConfigError
from vitlab.core.files import atomic_file
from vitlab.core.processes import first_alone
from vitlab.core.progress import stage
from vitlab.core.random import key, uniform
from vitlab.core.record import write_json
from vitlab.data.contract import Array, DataSet, Split, Values
from vitlab.data.loading.loader import evaluation_batches
from vitlab.data.sources.source import Digest
from vitlab.models.contract import Model, evaluating
from vitlab.models.fingerprint import model_fingerprint

FILE, COUNTS = "pseudo_labels.safetensors", "pseudo_labels.json"  # in a run's folder
VERSION = 1
STEPS = 100  # of the grid that thresholds lie on
BATCH = 128
FEW_IMAGES = 1000  # below, starting workers takes longer than decoding
SHOWN_FROM = 10_000  # images


@final
@dataclass(frozen=True, kw_only=True)
class Rule:
    """Which answers become labels, and how many copies of an image there are."""

    lowest: float = 0.3  # the probability below which no answer is kept
    quota: int | None = None  # images that each class is to have; None: all that are sure enough, once each
    several: bool = True  # whether there may be several copies of an image to fill a quota
    temperature: float = 1.0  # of the softmax that gives labels
    seed: int = 0


class Kept(NamedTuple):
    """The images that have a label, how many copies there are of each, and their classes' probabilities."""

    images: Array  # int64 [n], in order
    copies: Array  # int64 [n]
    probabilities: Array  # float32 [n, K]

    def split(self, unlabelled: Split, *, soft: bool) -> Split:
        """The images, as often as they are wanted, with the probabilities or the most probable class as label."""
        rows = np.repeat(np.arange(len(self.images)), self.copies)
        values = self.probabilities[rows]
        label = Values(values, "soft") if soft else Values(values.argmax(axis=1).astype(np.int64), "class")
        return Split(unlabelled.take(self.images[rows]).images, {"label": label})


def thresholds(confidence: Array, classes: Array, num_classes: int, rule: Rule) -> Array:
    """The probability from which on answers of each class are kept, float64 [K].

    The highest multiple of a hundredth at which a class has its quota; the lowest allowed where it never has.
    """
    found = np.full(num_classes, rule.lowest, np.float64)
    if rule.quota is None:
        return found
    grid = np.arange(STEPS + 1) / STEPS
    grid = grid[grid >= rule.lowest]
    for number in range(num_classes):
        ordered = np.sort(confidence[classes == number].astype(np.float64))
        counts = len(ordered) - np.searchsorted(ordered, grid)  # of answers that reach each of them
        if len(enough := grid[counts >= rule.quota]):
            found[number] = enough[-1]
    return found


def choose(confidence: Array, classes: Array, num_classes: int, rule: Rule) -> tuple[Array, Array]:
    """The images whose answers are kept, and how many copies of each: quota / count, and a coin for the fraction.

    The coin is counted from the image's number. As in the authors' code a class has its quota in the mean, not exactly.
    """
    reached = confidence.astype(np.float64) >= thresholds(confidence, classes, num_classes, rule)[classes]
    images = np.flatnonzero(reached)
    if rule.quota is None:
        return images, np.ones(len(images), np.int64)
    wanted = rule.quota / np.maximum(np.bincount(classes[images], minlength=num_classes), 1)
    each = (wanted if rule.several else np.minimum(wanted, 1))[classes[images]]
    whole = np.floor(each)
    copies = (whole + (uniform(key(rule.seed, "copies"), images) < each - whole)).astype(np.int64)
    return images[copies > 0], copies[copies > 0]


@torch.no_grad()
def answers(
    teacher: Model, unlabelled: Split, device: torch.device, order: Sequence[int] | None
) -> tuple[Array, Array]:
    """The teacher's logits of all images without noise, float32 [N, K], and which images could be read.

    It sees them as its own preprocessing has them, in evaluation mode. `order` says where our classes are in its own.
    """
    num, preprocess, first = len(unlabelled), teacher.preprocess, _is_first()
    decoded = num < FEW_IMAGES or isinstance(unlabelled.images.read(0), np.ndarray)
    batches = evaluation_batches(
        unlabelled,
        preprocess,
        batch_size=BATCH,
        num_workers=0 if decoded else min(os.cpu_count() or 1, 16),
        max_damaged=1.0,  # what cannot be read has no label, and is not trained on
    )
    logits, readable = np.zeros((num, 0), np.float32), np.zeros(num, bool)
    title = f"The teacher labels {num:,} images"
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.closing(batches))  # pyright: ignore[reportArgumentType]  a generator
        stack.enter_context(evaluating(teacher))
        progress = stack.enter_context(stage(title, shown=first and num >= SHOWN_FROM))
        done = 0
        for batch in batches:
            found = teacher(preprocess.normalize(batch.images.to(device))).float().cpu()
            found = found if order is None else found[:, list(order)]
            if not logits.shape[1]:
                logits = np.zeros((num, found.shape[1]), np.float32)
            there = batch.counts
            places = batch.indices[there].numpy()
            logits[places], readable[places] = found[there].numpy(), True
            done = min(done + len(there), num)
            progress(done, num)
    if not np.isfinite(logits).all():
        raise ConfigError("The teacher gives numbers that are not finite: its weights are damaged.")
    return logits, readable


def labelled_by(
    teacher: Model,
    dataset: DataSet,
    unlabelled: Split,
    rule: Rule,
    *,
    device: torch.device,
    order: Sequence[int] | None = None,
    folder: Path | None = None,
) -> Kept:
    """The images that a teacher labels: from the run's folder, or computed and kept there by the first process."""
    mark = _mark(teacher, dataset, rule, order)
    if folder is None:
        return _computed(teacher, unlabelled, rule, device, order)[0]
    path = folder / FILE
    with first_alone() as own:
        kept = _read(path, mark)
        if kept is None and own:
            kept, counts = _computed(teacher, unlabelled, rule, device, order)
            _write(path, mark, kept)
            write_json(folder / COUNTS, {"images": len(unlabelled), **asdict(rule), "classes": _named(counts, dataset)})
    kept = kept or _read(path, mark)
    if kept is None:
        raise ConfigError("The first process could not label the images: its own message says why.")
    return kept


def _computed(
    teacher: Model, unlabelled: Split, rule: Rule, device: torch.device, order: Sequence[int] | None
) -> tuple[Kept, list[dict[str, Any]]]:
    """What is kept, and of each class from which probability on, how many images and how many copies."""
    logits, readable = answers(teacher, unlabelled, device, order)
    places, values = np.flatnonzero(readable), torch.from_numpy(logits[readable])
    sure, classes = (found.numpy() for found in values.softmax(dim=1).max(dim=1))
    num_classes = logits.shape[1]
    rows, copies = choose(sure, classes, num_classes, rule)
    if not len(rows):
        raise ConfigError(
            f"The teacher is {rule.lowest:.0%} sure of none of the {len(unlabelled):,} unlabelled images: train it"
            " longer, or lower objective.threshold."
        )
    soft = (values[rows] / rule.temperature).softmax(dim=1).numpy()
    limits = thresholds(sure, classes, num_classes, rule).tolist()
    images = np.bincount(classes[rows], minlength=num_classes).tolist()
    total = np.bincount(classes[rows], copies, num_classes).astype(int).tolist()
    counts = [
        {"threshold": limit, "images": num, "copies": often}
        for limit, num, often in zip(limits, images, total, strict=True)
    ]
    return Kept(places[rows], copies, soft), counts


def _named(counts: list[dict[str, Any]], dataset: DataSet) -> Mapping[str, Any]:
    return dict(zip(dataset.classes, counts, strict=True))


def _mark(teacher: Model, dataset: DataSet, rule: Rule, order: Sequence[int] | None) -> str:
    """What the labels follow from: the teacher's weights, the data, and the rule."""
    text = json.dumps([VERSION, asdict(rule), None if order is None else list(order)], sort_keys=True)
    return Digest(model_fingerprint(teacher), dataset.fingerprint, text).text()


def _write(path: Path, mark: str, kept: Kept) -> None:
    arrays = {name: np.ascontiguousarray(value) for name, value in kept._asdict().items()}
    with atomic_file(path) as partial:
        save_file(arrays, partial, {"mark": mark, "checksum": _checksum(kept)})


def _read(path: Path, mark: str) -> Kept | None:
    """What was kept; None where there is nothing, or it is another teacher's or of other data."""
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="np") as file:
            about = file.metadata() or {}
            if about.get("mark") != mark:
                return None
            kept = Kept(*(file.get_tensor(name) for name in Kept._fields))
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read ({error}): delete it, and the teacher labels again.") from error
    if about.get("checksum") != _checksum(kept):
        raise CheckpointError(f"{path} is damaged, its checksum differs: delete it, and the teacher labels again.")
    return kept


def _checksum(kept: Kept) -> str:
    return Digest(kept.images, kept.copies, kept.probabilities).text()


def _is_first() -> bool:
    return not dist.is_initialized() or dist.get_rank() == 0

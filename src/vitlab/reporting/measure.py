"""A run's model over held-out pictures: the numbers with their spread, and the answers that stand out."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int

from vitlab.core.errors import Error
from vitlab.data.contract import Array, DataSet, Split
from vitlab.evaluation.accuracy import Accuracy
from vitlab.evaluation.average_precision import MultiLabelAccuracy
from vitlab.evaluation.contract import EvaluationError, Metric
from vitlab.evaluation.cost import model_cost
from vitlab.evaluation.examples import wilson
from vitlab.evaluation.features import Reading, outputs
from vitlab.evaluation.subject import subject_of
from vitlab.models.contract import Model

BUDGET = {"cpu": 2e12, "cuda": 2e15}  # FLOPs that are spent on looking: some seconds
FEWEST, MOST = 64, 10_000  # pictures that are looked at unless a number is given
SHOWN = 12  # pictures of each kind
BATCH = 64


@dataclass(frozen=True, kw_only=True)
class Number:
    """A measured value and its 95% interval, where it has one."""

    value: float
    low: float | None = None
    high: float | None = None
    percent: bool = True


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A picture, by its place in the split that was looked at; what it is, and what the model said."""

    place: int
    truth: tuple[str, ...]
    said: tuple[tuple[str, float], ...]  # with probabilities, the surest first; empty where it named nothing
    right: bool


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What was measured on `split`, which is some or all of a part of the data."""

    part: str  # 'test' or 'val'
    split: Split
    of: int  # images of the whole part
    num: int  # images that could be read
    numbers: Mapping[str, Number]
    guess: float | None  # how often one and the same answer would be right, at best
    per_class: tuple[float | None, ...]  # share that is right; average precision where images have several labels
    per_class_counts: tuple[int, ...]
    confusion: Mapping[tuple[int, int], int] = field(default_factory=dict)  # (truth, said): images; right ones too
    reliability: tuple[tuple[float, float, int], ...] = ()  # confidence, share right, images
    best: tuple[Answer, ...] = ()
    worst: tuple[Answer, ...] = ()

    @property
    def whole(self) -> bool:
        return self.num == self.of


def held_out(dataset: DataSet) -> tuple[str, Split] | None:
    """The part that training saw least of: test, or else what chose the best weights."""
    for name in ("test", "val"):
        if name in dataset.splits and len(dataset.splits[name]):
            return name, dataset.splits[name]
    return None


def evenly(amount: int, limit: int) -> Int[np.ndarray, "n"]:
    """At most so many places, evenly spread: data sets are often sorted by class."""
    return np.linspace(0, amount - 1, min(amount, limit)).round().astype(np.int64)


def affordable(model: Model, device: torch.device) -> int:
    """How many pictures some seconds suffice for; a function of the model, so that a report can be made again."""
    flops = max(model_cost(model)["flops"], 1)
    budget = BUDGET["cuda" if device.type == "cuda" else "cpu"]
    return int(min(max(budget / flops, FEWEST), MOST))


def measure(
    model: Model,
    dataset: DataSet,
    *,
    limit: int,
    device: torch.device,
    progress: Callable[[int, int], None] | None = None,
) -> Measured | None:
    """The model over at most `limit` pictures of the held-out part; None where the data has none."""
    found = held_out(dataset)
    if found is None:
        return None
    part, whole = found
    split = whole.take(evenly(len(whole), limit)) if len(whole) > limit else whole
    subject = subject_of(model, name="The run's model", device=device)
    if subject.logits is None:
        raise EvaluationError("The run's model has no classifier, so there are no answers to look at.")
    batches = outputs(subject.logits, subject, split, Reading(batch_size=BATCH), progress)
    shared: dict[str, Any] = {"part": part, "split": split, "of": len(whole)}
    if dataset.multi_label:
        return _several_labels(batches, dataset, shared)
    return _one_label(batches, dataset, shared)


def _one_label(batches: Any, dataset: DataSet, shared: dict[str, Any]) -> Measured:
    counter = Accuracy(dataset.num_classes)
    columns: list[tuple[Array, ...]] = []
    for batch in batches:
        labels = torch.from_numpy(batch.labels).long()
        counter.add(batch.values, labels)
        sure, said = batch.values.double().log_softmax(dim=1).max(dim=1)
        columns.append((batch.indices, batch.labels, said.numpy(), sure.exp().numpy()))
    places, truth, said, sure = (np.concatenate(column) for column in zip(*columns, strict=True))
    outcome = counter.outcome(dataset.classes)
    num, metrics = len(places), outcome.metrics
    right = truth == said
    low, high = wilson(int(counter.right.sum()), num)
    numbers = {"accuracy": Number(value=metrics["top-1"].value, low=low, high=high)}
    if dataset.num_classes > counter.top:
        low, high = wilson(int(counter.right_top.sum()), num)
        numbers[f"top-{counter.top}"] = Number(value=metrics[f"top-{counter.top}"].value, low=low, high=high)
    numbers |= {name: _number(metrics[name]) for name in ("balanced accuracy", "calibration error", "log loss")}
    pairs, amounts = np.unique(np.stack([truth, said], axis=1), axis=0, return_counts=True)
    confusion = {(a, b): amount for (a, b), amount in zip(pairs.tolist(), amounts.tolist(), strict=True)}

    def answer(row: int) -> Answer:
        names = dataset.classes
        told = ((names[said[row]], float(sure[row])),)
        return Answer(place=int(places[row]), truth=(names[truth[row]],), said=told, right=bool(right[row]))

    return Measured(
        **shared,
        num=num,
        numbers=numbers,
        guess=max(counter.counts.tolist()) / num,
        per_class=tuple(outcome.details["per class"]),
        per_class_counts=tuple(outcome.details["per class counts"]),
        confusion=confusion,
        reliability=tuple(
            (part["confidence"], part["accuracy"], part["count"])
            for part in outcome.details["reliability"]
            if part["count"]
        ),
        best=tuple(answer(row) for row in _surest(sure, truth, right)),
        worst=tuple(answer(row) for row in _surest(sure, truth, ~right)),
    )


def _several_labels(batches: Any, dataset: DataSet, shared: dict[str, Any]) -> Measured:
    counter = MultiLabelAccuracy(dataset.num_classes)
    columns: list[tuple[Array, ...]] = []
    for batch in batches:
        counter.add(batch.values.numpy(), batch.labels)
        columns.append((batch.indices, batch.labels, batch.values.double().numpy()))
    places, labels, scores = (np.concatenate(column) for column in zip(*columns, strict=True))
    outcome = counter.outcome(dataset.classes)
    truth = labels != 0
    shares = 1 / (1 + np.exp(-scores))
    exact = ((scores > 0) == truth).all(axis=1)
    losses = np.logaddexp(0, np.where(truth, -scores, scores)).sum(axis=1)
    numbers = {"mAP": _number(outcome.metrics["mAP"])}
    low, high = wilson(int(exact.sum()), len(exact))
    numbers["all labels right"] = Number(value=float(exact.mean()), low=low, high=high)

    def answer(row: int) -> Answer:
        names = dataset.classes
        order = np.argsort(-shares[row], kind="stable")
        told = [k for k in order if scores[row, k] > 0]
        return Answer(
            place=int(places[row]),
            truth=tuple(names[k] for k in np.flatnonzero(truth[row])),
            said=tuple((names[k], float(shares[row, k])) for k in told),
            right=bool(exact[row]),
        )

    order = np.argsort(losses, kind="stable")
    return Measured(
        **shared,
        num=len(places),
        numbers=numbers,
        guess=None,
        per_class=tuple(outcome.details["per class"]),
        per_class_counts=tuple(outcome.details["per class counts"]),
        best=tuple(answer(int(row)) for row in order[exact[order] & truth[order].any(axis=1)][:SHOWN]),
        worst=tuple(answer(int(row)) for row in order[::-1][~exact[order[::-1]]][:SHOWN]),
    )


def _number(metric: Metric) -> Number:
    """A metric whose spread is half of its interval."""
    percent, value, half = metric.unit == "fraction", metric.value, metric.spread
    if half is None:
        return Number(value=value, percent=percent)
    high = min(value + half, 1.0) if percent else value + half
    return Number(value=value, low=max(value - half, 0.0), high=high, percent=percent)


def _surest(sure: Float[np.ndarray, "n"], truth: Int[np.ndarray, "n"], chosen: Array) -> list[int]:
    """The rows that the model was surest of, not too many of one class while there are others."""
    order = np.argsort(-sure, kind="stable")
    rows = [int(row) for row in order if chosen[row]]
    share = max(math.ceil(SHOWN / max(len(np.unique(truth[rows])), 1)), 1) if rows else 1
    taken: dict[int, int] = {}
    first: list[int] = []
    for row in rows:
        if taken.get(int(truth[row]), 0) < share:
            taken[int(truth[row])] = taken.get(int(truth[row]), 0) + 1
            first.append(row)
    kept = set(first[:SHOWN])
    kept |= set([row for row in rows if row not in kept][: SHOWN - len(kept)])
    return [row for row in rows if row in kept]


def check_limit(images: int | None) -> None:
    """Refuse a number of pictures that is none."""
    if images is not None and images < 1:
        raise Error(f"The number of images must be at least 1, not {images}.")


def confused(
    confusion: Mapping[tuple[int, int], int], counts: Sequence[int], most: int
) -> list[tuple[int, int, int, float]]:
    """The largest confusions: truth, said, images, and the share of the truth's images."""
    wrong = [(a, b, amount, amount / counts[a]) for (a, b), amount in confusion.items() if a != b]
    return sorted(wrong, key=lambda row: (-row[2], -row[3], row[0], row[1]))[:most]

"""A classifier over held-out images: the numbers with their spread, and the answers that stand out."""

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import final

import numpy as np
from jaxtyping import Float, Int
from torch import Tensor

from vitlab.data.contract import Array, DataSet
from vitlab.evaluation.accuracy import Accuracy
from vitlab.evaluation.average_precision import MultiLabelAccuracy
from vitlab.evaluation.contract import Metric
from vitlab.evaluation.labeled_features import wilson
from vitlab.tasks.results import Chosen, Examiner
from vitlab.tasks.scoring import Scorer

SHOWN = 12  # pictures of each kind


@final
@dataclass(frozen=True, kw_only=True)
class Number:
    """A measured value and its 95% interval, where it has one."""

    value: float
    low: float | None = None
    high: float | None = None
    percent: bool = True


@final
@dataclass(frozen=True, kw_only=True)
class ClassesTested:
    """What was measured of a classifier's answers."""

    numbers: Mapping[str, Number]
    guess: float | None = None  # how often one and the same answer would be right, at best
    per_class: tuple[float | None, ...]  # share that is right; average precision where images have several labels
    per_class_counts: tuple[int, ...]
    confusion: Mapping[tuple[int, int], int] = field(default_factory=dict)  # (truth, said): images; right ones too
    reliability: tuple[tuple[float, float, int], ...] = ()  # confidence, share right, images


class ClassExaminer(Examiner):
    """One that tells of classes."""

    @abstractmethod
    def details(self) -> ClassesTested: ...


@final
class OneLabel(ClassExaminer):
    """One class per image: accuracy and its relatives, the confusions, and the answers that it was surest of."""

    def __init__(self, scorer: Scorer, dataset: DataSet) -> None:
        super().__init__(scorer)
        self.counter, self.classes = Accuracy(dataset.num_classes), dataset.classes
        self._columns: list[tuple[Array, ...]] = []

    def add(self, outputs: Tensor, target: Tensor, places: Sequence[int]) -> None:
        logits, truth = outputs.float().cpu(), target.argmax(dim=1).cpu()
        self.counter.add(logits, truth)
        super().add(outputs, target, places)
        sure, said = logits.double().log_softmax(dim=1).max(dim=1)
        self._columns.append((np.asarray(places), truth.numpy(), said.numpy(), sure.exp().numpy()))

    def standing_out(self) -> tuple[list[Chosen], list[Chosen]]:
        places, truth, said, sure = self._all()
        right = truth == said
        best, worst = (
            [Chosen(int(places[row]), float(sure[row])) for row in _surest(sure, truth, chosen)]
            for chosen in (right, ~right)
        )
        return best, worst

    def details(self) -> ClassesTested:
        _, truth, said, _ = self._all()
        outcome, counter, num = self.counter.outcome(self.classes), self.counter, len(truth)
        metrics = outcome.metrics
        numbers = {"accuracy": rightness(int(counter.right.sum()), num)}
        if len(self.classes) > counter.top:
            numbers[f"top-{counter.top}"] = rightness(int(counter.right_top.sum()), num)
        numbers |= {name: _number(metrics[name]) for name in ("balanced accuracy", "calibration error", "log loss")}
        pairs, amounts = np.unique(np.stack([truth, said], axis=1), axis=0, return_counts=True)
        return ClassesTested(
            numbers=numbers,
            guess=max(counter.counts.tolist()) / num,
            per_class=tuple(outcome.details["per class"]),
            per_class_counts=tuple(outcome.details["per class counts"]),
            confusion={(a, b): amount for (a, b), amount in zip(pairs.tolist(), amounts.tolist(), strict=True)},
            reliability=tuple(
                (part["confidence"], part["accuracy"], part["count"])
                for part in outcome.details["reliability"]
                if part["count"]
            ),
        )

    def _all(self) -> list[Array]:
        return [np.concatenate(column) for column in zip(*self._columns, strict=True)]


@final
class SeveralLabels(ClassExaminer):
    """Several labels per image: mean average precision, and the answers with the smallest and the largest loss."""

    def __init__(self, scorer: Scorer, dataset: DataSet) -> None:
        super().__init__(scorer)
        self.counter, self.classes = MultiLabelAccuracy(dataset.num_classes), dataset.classes
        self._columns: list[tuple[Array, ...]] = []

    def add(self, outputs: Tensor, target: Tensor, places: Sequence[int]) -> None:
        logits, labels = outputs.float().cpu(), target.cpu().numpy()
        self.counter.add(logits.numpy(), labels)
        super().add(outputs, target, places)
        scores, truth = logits.double().numpy(), labels != 0
        losses = np.logaddexp(0, np.where(truth, -scores, scores)).sum(axis=1)
        exact = ((scores > 0) == truth).all(axis=1)
        self._columns.append((np.asarray(places), losses, exact, truth.any(axis=1)))

    def standing_out(self) -> tuple[list[Chosen], list[Chosen]]:
        places, losses, exact, has_any = self._all()
        order = np.argsort(losses, kind="stable")
        best = order[exact[order] & has_any[order]][:SHOWN]
        worst = order[::-1][~exact[order[::-1]]][:SHOWN]
        chosen = [[Chosen(int(places[row]), -float(losses[row])) for row in rows] for rows in (best, worst)]
        return chosen[0], chosen[1]

    def details(self) -> ClassesTested:
        outcome, (_, _, exact, _) = self.counter.outcome(self.classes), self._all()
        return ClassesTested(
            numbers={
                "mAP": _number(outcome.metrics["mAP"]),
                "all labels right": rightness(int(exact.sum()), len(exact)),
            },
            per_class=tuple(outcome.details["per class"]),
            per_class_counts=tuple(outcome.details["per class counts"]),
        )

    def _all(self) -> list[Array]:
        return [np.concatenate(column) for column in zip(*self._columns, strict=True)]


def rightness(right: int, num: int) -> Number:
    """A share of images, with Wilson's interval."""
    low, high = wilson(right, num)
    return Number(value=right / num, low=low, high=high)


def confused(
    confusion: Mapping[tuple[int, int], int], counts: Sequence[int], most: int
) -> list[tuple[int, int, int, float]]:
    """The largest confusions: truth, said, images, and the share of the truth's images."""
    wrong = [(a, b, amount, amount / counts[a]) for (a, b), amount in confusion.items() if a != b]
    return sorted(wrong, key=lambda row: (-row[2], -row[3], row[0], row[1]))[:most]


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

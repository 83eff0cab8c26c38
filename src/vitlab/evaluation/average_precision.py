"""Several labels per image: the mean over classes of the average precision."""

from collections.abc import Sequence
from typing import final

import numpy as np
from numpy.typing import ArrayLike

from vitlab.evaluation.contract import EvaluationError, Metric, Outcome
from vitlab.evaluation.labeled_features import Z95, Array

RESAMPLES, RESAMPLED = 200, 2e7  # draws of the images for the spread of the mean, and scores in all
FEWEST_RESAMPLES = 20


def average_precision(scores: Array, labels: Array) -> Array:
    """Each class's sum over thresholds of precision times gain in recall, [K]; NaN for a class without any image.

    Images of one score pass the threshold together, so their order does not matter.
    """
    values = np.full(scores.shape[1], np.nan)
    for k in range(scores.shape[1]):
        order = np.argsort(-scores[:, k], kind="stable")
        ranked, hits = scores[order, k], np.cumsum(labels[order, k] != 0, dtype=np.int64)
        if hits[-1]:
            ends = np.append(np.flatnonzero(ranked[1:] != ranked[:-1]), len(ranked) - 1)  # the last image of each score
            gains = np.diff(hits[ends], prepend=0)
            values[k] = float((hits[ends] / (ends + 1.0) * gains).sum() / hits[-1])
    return values


def _resampled_spread(scores: Array, labels: Array) -> float | None:
    """Half of the 95% interval of the mean, by its standard deviation over images drawn again with replacement.

    The draws are not centred on the value, for an image that is drawn twice is ranked beside itself: only their
    standard deviation is used. None where there are too many scores for that.
    """
    rng = np.random.default_rng(0)
    values: list[float] = []
    for _ in range(int(min(RESAMPLES, RESAMPLED // scores.size))):
        rows = rng.integers(0, len(scores), len(scores))
        found = average_precision(scores[rows], labels[rows])
        if not np.isnan(found).all():
            values.append(float(np.nanmean(found)))
    return Z95 * float(np.std(values, ddof=1)) if len(values) >= FEWEST_RESAMPLES else None


@final
class MultiLabelAccuracy:
    """Scores [B, K] and labels [B, K] (0 or 1), kept until the end: a ranking needs them all."""

    def __init__(self, num_classes: int) -> None:
        self.num_classes = num_classes
        self._scores: list[Array] = []
        self._labels: list[Array] = []

    def add(self, scores: ArrayLike, labels: ArrayLike) -> None:
        x, y = np.asarray(scores), np.asarray(labels)
        if x.ndim != 2 or x.shape[1] != self.num_classes or x.shape != y.shape:
            raise EvaluationError(
                f"Scores and labels must both be [images, {self.num_classes}], not {list(x.shape)} and {list(y.shape)}."
            )
        if not np.isfinite(x).all():
            raise EvaluationError("The model's outputs are not finite: its weights or its preprocessing are broken.")
        if not np.isin(y, (0, 1)).all():
            raise EvaluationError("The labels of a set with several labels per image must be 0 or 1.")
        self._scores.append(x.astype(np.float32 if x.dtype.itemsize <= 4 else np.float64))
        self._labels.append(y.astype(np.uint8))

    def merge(self, other: "MultiLabelAccuracy") -> None:
        """Adds what another process has seen."""
        assert other.num_classes == self.num_classes
        self._scores += other._scores
        self._labels += other._labels

    def outcome(self, classes: Sequence[str] | None = None) -> Outcome:
        num = sum(len(part) for part in self._labels)
        if not num:
            raise EvaluationError("The split is empty: there is nothing to measure.")
        scores, labels = np.concatenate(self._scores), np.concatenate(self._labels)
        values = average_precision(scores, labels)
        present = ~np.isnan(values)
        if not present.any():
            raise EvaluationError(f"None of the {num} images has a label: there is nothing to measure.")
        names = list(classes) if classes is not None else [str(k) for k in range(self.num_classes)]
        return Outcome(
            metrics={
                "mAP": Metric(
                    value=float(values[present].mean()),
                    count=num,
                    spread=(spread := _resampled_spread(scores, labels)),
                    spread_of="" if spread is None else "half of the 95% interval, by bootstrap",
                )
            },
            counts={"images": num, "classes": self.num_classes, "classes with images": int(present.sum())},
            details={
                "per class": [None if np.isnan(value) else float(value) for value in values],
                "per class counts": labels.sum(axis=0, dtype=np.int64).tolist(),
                "classes": names,
                "absent classes": [name for name, there in zip(names, present, strict=True) if not there],
            },
        )

"""Figures of answers to pictures unlike those that a model learned from, as the authors of the sets define them."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor

from vitlab.core.imagenet import imagenet_classes, places_of, wordnet_ids
from vitlab.data.contract import Array, Split
from vitlab.evaluation.accuracy import TOP, ranks
from vitlab.evaluation.contract import EvaluationError, Metric, Subject
from vitlab.evaluation.features import Progress, Reading, outputs
from vitlab.evaluation.labeled_features import Z95, share
from vitlab.evaluation.subject import for_classes, num_logits

BIN = 100  # images of like confidence whose accuracy is compared with it
DRAWS = 200  # of the images, for spreads
BOOTSTRAP = "half of the 95% interval, by bootstrap"


class Answers(NamedTuple):
    """What a model says to the images of a split that could be read."""

    indices: Array  # which images
    ranks: Array  # how many classes come before the right one
    confidences: Array  # the probability of the predicted class

    @property
    def right(self) -> Array:
        return self.ranks == 0

    def wrong_of(self, num: int) -> Array:
        """For each of `num` images 1 where the answer is wrong, 0 where it is right, NaN where there is none."""
        found = np.full(num, np.nan)
        found[self.indices] = ~self.right
        return found


def matched(subject: Subject, classes: Sequence[str]) -> tuple[Subject, str]:
    """The subject with one logit per class of the data; a thousand without names are ImageNet's."""
    return for_classes(named(subject) if all(map(wordnet_ids, classes)) else subject, classes)


def named(subject: Subject) -> Subject:
    """The subject with ImageNet's names, where it has a thousand logits and no names."""
    thousand = tuple(wordnet for wordnet, _ in imagenet_classes())
    unnamed = subject.labels is None and subject.logits is not None and num_logits(subject) == len(thousand)
    return dataclasses.replace(subject, labels=thousand) if unnamed else subject


def answers(subject: Subject, split: Split, reading: Reading, progress: Progress | None = None) -> Answers:
    """The answers of a subject that was matched with the data's classes."""
    assert subject.logits is not None
    parts: list[Answers] = []
    for batch in outputs(subject.logits, subject, split, reading, progress):
        before = ranks(batch.values, torch.from_numpy(batch.labels)).numpy()
        sure = batch.values.double().softmax(dim=1).amax(dim=1).numpy()
        parts.append(Answers(batch.indices, before, sure))
    return Answers(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def accuracy_metrics(found: Answers, num_classes: int) -> dict[str, Metric]:
    """Accuracy, and whether confidence tells how far an answer can be trusted."""
    num = len(found.ranks)
    metrics = {"top-1": share(int(found.right.sum()), num)}
    if num_classes > TOP:
        metrics[f"top-{TOP}"] = share(int((found.ranks < TOP).sum()), num)
    for name, function in (("RMS calibration error", rms_calibration_error), ("AURRA", aurra)):
        value = function(found.confidences, found.right)
        spread = _bootstrapped(function, found.confidences, found.right)
        metrics[name] = Metric(value=value, count=num, spread=spread, spread_of=BOOTSTRAP)
    return metrics


def rms_calibration_error(confidences: Array, right: Array, size: int = BIN) -> float:
    """The root of the mean square of accuracy less confidence, over bins of `size` images of like confidence.

    The last bin has what is left too. (The authors' program leaves the last bin, the surest, out.)
    """
    order = np.argsort(confidences, kind="stable")
    starts = np.arange(max(len(order) // size, 1)) * size
    sums = np.add.reduceat(confidences[order] - right[order], starts)
    counts = np.diff(starts, append=len(order))
    return float(np.sqrt((sums**2 / counts).sum() / len(order)))


def aurra(confidences: Array, right: Array) -> float:
    """The area under the response rate accuracy curve: the accuracy of the surest k answers, averaged over k."""
    surest = np.argsort(-confidences, kind="stable")
    return float((np.cumsum(right[surest]) / np.arange(1, len(surest) + 1)).mean())


def _bootstrapped(function: Callable[[Array, Array], float], confidences: Array, right: Array) -> float:
    rng, num = np.random.default_rng(0), len(right)
    drawn = (rng.integers(0, num, num) for _ in range(DRAWS))
    return Z95 * float(np.std([function(confidences[rows], right[rows]) for rows in drawn], ddof=1))


def grouped_metrics(
    subject: Subject, classes: Sequence[str], split: Split, reading: Reading, progress: Progress | None = None
) -> dict[str, Metric]:
    """As ObjectNet is scored: a class of the data may be several of the model's, any of which is right.

    The model answers with all of its classes, and one that the data does not have is wrong. Beside that, the accuracy
    among the model's classes that the data has.
    """
    groups = _groups(subject, classes)
    assert subject.logits is not None
    right = {"top-1": 0, f"top-{TOP}": 0, f"top-1 of {len(classes)} classes": 0}
    num = 0
    for batch in outputs(subject.logits, subject, split, reading, progress):
        own = batch.values.masked_fill(~groups[torch.from_numpy(batch.labels)], -torch.inf).amax(dim=1, keepdim=True)
        better = batch.values > own
        counts = better.sum(dim=1), better.sum(dim=1), (better & groups.any(dim=0)).sum(dim=1)
        for name, before, most in zip(right, counts, (1, TOP, 1), strict=True):
            right[name] += int((before < most).sum())
        num += len(own)
    return {name: share(count, num) for name, count in right.items()}


def _groups(subject: Subject, classes: Sequence[str]) -> Bool[Tensor, "data model"]:
    """Which of the model's classes each of the data's is."""
    labels = named(subject).labels
    ids = [(number, wordnet) for number, name in enumerate(classes) for wordnet in wordnet_ids(name)]
    places = None if labels is None or subject.logits is None else places_of(labels, [wordnet for _, wordnet in ids])
    if places is None:
        raise EvaluationError(
            f"{subject.name} does not tell the classes of ImageNet that the data's are: measure a model of ImageNet's."
        )
    found = torch.zeros(len(classes), num_logits(subject), dtype=torch.bool)
    found[[number for number, _ in ids], places] = True
    return found

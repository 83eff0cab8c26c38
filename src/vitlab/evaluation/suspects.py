"""Labels that are likely wrong, by confident learning over held-out probabilities.

Northcutt, Jiang and Chuang (2021), "Confident Learning: Estimating Uncertainty in Dataset Labels", arXiv 1911.00068. A
class's threshold is the mean probability of that class over the images that have its label; how many labels are wrong
is the number of images that reach the threshold of another class than their label's, which is not the most probable
one. So many are suspected, those with the lowest margin, as cleanlab's filter `low_normalized_margin` does: the margin
orders better than thresholds choose (docs/results/data.md). Probabilities are of a logistic regression that did not see
the image.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vitlab.core.random import key, permutation
from vitlab.evaluation.labeled_features import Array, Examples, Progress, Rows, moments
from vitlab.evaluation.logistic import Fit, Probe, Standardized, fit

FOLDS: Final = 5
L2S: Final = (1.0, 0.1, 0.01, 0.001)  # from small weights to large: each fit is the next one's start
SLACK: Final = 1e-6  # within which probabilities are equal
PROBE: Final = Probe(tolerance=1e-4, iterations=100)  # a ranking needs no more digits


@dataclass(frozen=True)
class Suspicion:
    """A row whose label is likely wrong, the class that it seems to belong to, and the probabilities of both."""

    row: int
    predicted: int
    given_probability: float
    predicted_probability: float
    margin: float  # the label's probability less the largest other one, -1 to 1: the lower, the surer


class HeldOut(NamedTuple):
    """Probabilities of classes for each row, by a fit without it, and the l2 that they are of."""

    probabilities: Float[Array, "n k"]
    l2: float


def suspicions(
    probabilities: Float[Array, "n k"], labels: Int[Array, "n"], judged: Bool[Array, "n"] | None = None
) -> list[Suspicion]:
    """The rows whose labels are suspected, surest first; only those that are `judged` set thresholds and are suspected.

    A class without any judged row has no threshold.
    """
    rows = np.arange(len(labels)) if judged is None else np.flatnonzero(judged)
    given, each = labels[rows], np.arange(len(rows))
    chosen = probabilities[rows]
    own = chosen[each, given]
    thresholds = np.full(chosen.shape[1], np.inf)
    for k in np.unique(given):
        thresholds[k] = own[given == k].mean()
    others = chosen.copy()
    others[each, given] = -1.0
    predicted = others.argmax(axis=1)
    margins = own - others[each, predicted]
    num = int(((others >= thresholds - SLACK).any(axis=1) & (margins < -SLACK)).sum())
    return [
        Suspicion(
            int(rows[i]), int(predicted[i]), float(own[i]), float(others[i, predicted[i]]), margin=float(margins[i])
        )
        for i in np.argsort(margins, kind="stable")[:num]
    ]


def held_out_probabilities(
    features: Float[Array, "n d"],
    labels: Int[Array, "n"],
    num_classes: int,
    groups: Sequence[int] | None = None,
    *,
    folds: int = FOLDS,
    l2s: Sequence[float] = L2S,
    seed: int = 0,
    device: torch.device | str = "cpu",
    progress: Progress | None = None,
) -> HeldOut:
    """Each row's classes by logistic regression on the features of the other folds.

    Rows of one group (copies of one picture) are in one fold, so that none vouches for another. The l2 is the one with
    the lowest log loss on the first fold.
    """
    examples, total = Examples.of(features, labels, "train"), len(l2s) + folds - 1
    fold = assign_folds(examples.labels, groups, folds, seed)
    found = np.zeros((len(examples), num_classes))
    chosen, done, start = l2s[0], 0, None
    lowest = np.inf
    for place in range(folds):
        held = np.flatnonzero(fold == place)
        rest = examples.take(np.flatnonzero(fold != place))
        if not len(held) or not len(rest):
            continue
        mean, std = moments(rest, device)
        data = Standardized([rest], num_classes, mean, std, device)
        tried = start
        for l2 in l2s if place == 0 else (chosen,):
            tried = fit(data, l2, PROBE, tried)
            given = _probabilities(tried, examples.take(held), mean, std, device)
            own = given[np.arange(len(held)), labels[held]]
            loss = float(-np.log(own.clip(1e-12)).mean())
            if place or loss < lowest:
                lowest, chosen, start, found[held] = loss, l2, tried, given
            done += 1
            if progress is not None:
                progress(done, total)
    return HeldOut(found, chosen)


def assign_folds(labels: Int[Array, "n"], groups: Sequence[int] | None, folds: int, seed: int = 0) -> Int[Array, "n"]:
    """A fold for each row: those of a class are dealt out in a counted order, and a group goes where its first does."""
    order = permutation(key(seed, "folds"), len(labels)).numpy()
    leaders = np.arange(len(labels)) if groups is None else _leaders(groups)
    fold = np.full(len(labels), -1)
    dealt: dict[int, int] = {}
    for row in order[leaders[order] == order]:
        label = int(labels[row])
        dealt[label] = dealt.get(label, label - 1) + 1  # classes begin with different folds: small ones even out
        fold[row] = dealt[label] % folds
    return fold[leaders]


def _leaders(groups: Sequence[int]) -> Int[Array, "n"]:
    _, first, inverse = np.unique(np.asarray(groups), return_index=True, return_inverse=True)
    return first[inverse]


def _probabilities(
    fitted: Fit, rows: Examples | Rows, mean: Tensor, std: Tensor, device: torch.device | str
) -> Float[Array, "m k"]:
    data = Standardized([rows], fitted.weights.shape[1], mean, std, device)
    parts = [torch.addmm(fitted.bias, x.double(), fitted.weights).softmax(dim=1).cpu() for x, _ in data.blocks()]
    return torch.cat(parts).numpy()

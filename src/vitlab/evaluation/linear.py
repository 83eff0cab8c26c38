"""A linear probe: logistic regression on frozen features, its penalty chosen on held-out images."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from vitlab.evaluation.accuracy import Accuracy
from vitlab.evaluation.contract import EvaluationError, Outcome
from vitlab.evaluation.labeled_features import Examples, Progress, Rows, count_classes, held_out, moments
from vitlab.evaluation.logistic import MOMENTUM, Fit, Probe, Standardized, fit

L2S = tuple(10.0**i for i in range(-6, 2))


def linear(
    train_x: ArrayLike,
    train_y: ArrayLike,
    test_x: ArrayLike,
    test_y: ArrayLike,
    *,
    val_x: ArrayLike | None = None,
    val_y: ArrayLike | None = None,
    l2s: Sequence[float] = L2S,
    probe: Probe | None = None,
    holdout: float = 0.1,
    num_classes: int | None = None,
    classes: Sequence[str] | None = None,
    device: torch.device | str = "cpu",
    progress: Progress | None = None,
) -> Outcome:
    """The probe on the test split, with the l2 that does best on `val`, or else on a part held out of train.

    Best is the highest accuracy, then the lowest loss. The final fit is on everything but the test split, and starts
    from the best one. `progress` is told of each fit.
    """
    probe = probe or Probe()
    if not l2s or min(l2s) < 0 or not all(map(math.isfinite, l2s)):
        raise EvaluationError(f"The l2 values to choose from must not be negative: {list(l2s)}.")
    if (val_x is None) != (val_y is None):
        raise EvaluationError("A validation split needs both features and labels.")
    train, test = Examples.of(train_x, train_y, "train"), Examples.of(test_x, test_y, "test")
    val = None if val_x is None or val_y is None else Examples.of(val_x, val_y, "val")
    num = count_classes(train, [test] if val is None else [test, val], num_classes)
    everything = [train] if val is None else [train, val]
    chosen, selected, start = l2s[0], {}, None
    if len(l2s) > 1:
        if val is not None:
            parts, on = (train, val), f"val ({len(val)} images)"
        else:
            held = held_out(train.labels, holdout, probe.seed)
            parts = (train.take(np.flatnonzero(~held)), train.take(np.flatnonzero(held), "held out"))
            on = f"{len(parts[1])} images held out of train"
        fits = _choose(parts[0], parts[1], l2s, num, probe, device, progress)
        chosen = max(fits, key=lambda l2: (fits[l2].accuracy, -fits[l2].loss))
        start, scores = fits[chosen].fit, {str(l2): fits[l2].accuracy for l2 in l2s}
        selected["l2"] = {"value": chosen, "on": on, "scores": scores}
    mean, std = _moments(everything, device)
    fitted = fit(Standardized(everything, num, mean, std, device), chosen, probe, start)
    if progress is not None:
        progress(len(l2s) + 1, len(l2s) + 1)
    measured = evaluate(fitted, Standardized([test], num, mean, std, device)).outcome(classes)
    counts = {part.split: len(part) for part in (*everything, test)}
    return Outcome(
        metrics=measured.metrics,
        counts={**counts, "classes": num},
        seeds=(probe.seed,),
        settings={"solver": probe.solver, "l2s": list(l2s), "width": train.width, **_settings(probe)},
        selected=selected,
        details={
            **measured.details,
            "fit": {"l2": chosen, "loss": fitted.loss, "steps": fitted.steps, "converged": fitted.converged},
        },
    )


def evaluate(fitted: Fit, data: Standardized) -> Accuracy:
    """The probe's accuracy on features that were standardised as those it was fitted to."""
    accuracy = Accuracy(data.num_classes)
    for x, labels in data.blocks():
        accuracy.add(torch.addmm(fitted.bias.to(x.dtype), x, fitted.weights.to(x.dtype)), labels)
    return accuracy


class Tried(NamedTuple):
    """A fit with one l2, and what it does on held-out images."""

    fit: Fit
    accuracy: float
    loss: float


def _choose(
    train: Examples | Rows,
    val: Examples | Rows,
    l2s: Sequence[float],
    num_classes: int,
    probe: Probe,
    device: torch.device | str,
    progress: Progress | None,
) -> dict[float, "Tried"]:
    mean, std = moments(train, device)
    data = Standardized([train], num_classes, mean, std, device)
    held = Standardized([val], num_classes, mean, std, device)
    found: Fit | None = None
    tried: dict[float, Tried] = {}
    for l2 in sorted(l2s, reverse=True):  # from the smallest weights to the largest: each fit is the next one's start
        found = fit(data, l2, probe, found)
        metrics = evaluate(found, held).outcome().metrics
        tried[l2] = Tried(found, metrics["top-1"].value, metrics["log loss"].value)
        if progress is not None:
            progress(len(tried), len(l2s) + 1)
    return tried


def _moments(parts: Sequence[Examples], device: torch.device | str) -> tuple[Tensor, Tensor]:
    """Those of several splits together."""
    num = sum(len(part) for part in parts)
    each = [(len(part) / num, *moments(part, device)) for part in parts]
    mean = torch.stack([share * m for share, m, _ in each]).sum(dim=0)
    variance = torch.stack([share * (s.square() + (m - mean).square()) for share, m, s in each]).sum(dim=0)
    return mean, variance.sqrt()


def _settings(probe: Probe) -> dict[str, Any]:
    if probe.solver == "lbfgs":
        return {"tolerance": probe.tolerance, "iterations": probe.iterations}
    return {"epochs": probe.epochs, "batch_size": probe.batch_size, "momentum": MOMENTUM}

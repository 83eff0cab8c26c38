"""Multinomial logistic regression on standardised features, by L-BFGS or by SGD.

What is minimised is the mean cross-entropy plus l2 / 2 times the squared weights (not the bias); scikit-learn's C is
1 / (l2 N). L-BFGS passes over everything at each step; SGD takes mini-batches in a counted order, for sets that are too
large for that. Products are in the features' own precision (float32 at least), sums over images in float64.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, final, get_args

import numpy as np
import scipy.optimize
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from vitlab.core.random import key, permutation
from vitlab.evaluation.contract import EvaluationError
from vitlab.evaluation.labeled_features import Array, Examples, Rows

Solver: TypeAlias = Literal["lbfgs", "sgd"]

KEPT_BYTES = 2**30  # standardised features up to this size stay in memory; larger ones are read again at each pass
MOMENTUM = 0.9


@final
@dataclass(frozen=True, kw_only=True)
class Probe:
    """How to fit: L-BFGS until the gradient's largest entry is below `tolerance`, or SGD for some epochs."""

    solver: Solver = "lbfgs"
    tolerance: float = 1e-6
    iterations: int = 1000
    epochs: int = 50
    batch_size: int = 512
    seed: int = 0

    def __post_init__(self) -> None:
        if self.solver not in get_args(Solver):
            raise EvaluationError(f"A linear probe is fitted by {' or '.join(get_args(Solver))}, not '{self.solver}'.")
        if min(self.iterations, self.epochs, self.batch_size) < 1 or not self.tolerance > 0:
            raise EvaluationError("A probe's iterations, epochs, batch size and tolerance must be above 0.")


@final
@dataclass(frozen=True)
class Fit:
    """Weights [D, K] and bias [K] on standardised features, and how the fit ended."""

    weights: Float[Tensor, "d k"]
    bias: Float[Tensor, "k"]
    loss: float
    steps: int
    converged: bool


@final
class Standardized:
    """The features of some examples by given moments, in blocks; a feature that never changes becomes 0."""

    def __init__(
        self,
        parts: Sequence[Examples | Rows],
        num_classes: int,
        mean: Float[Tensor, "d"],
        std: Float[Tensor, "d"],
        device: torch.device | str = "cpu",
    ) -> None:
        self.parts, self.num_classes, self.device = parts, num_classes, torch.device(device)
        self.dtype = np.float64 if any(part.dtype is np.float64 for part in parts) else np.float32
        kind = torch.float64 if self.dtype is np.float64 else torch.float32
        constant = std <= 1e-12 * mean.abs()  # what is left of a constant after rounding
        self.mean, self.scale = mean.to(kind), torch.where(constant, torch.inf, std).to(kind)
        self.labels = torch.from_numpy(np.concatenate([part.labels for part in parts])).to(device)
        size = len(self) * self.width * np.dtype(self.dtype).itemsize
        self._kept = list(self._read()) if size <= KEPT_BYTES else None

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def width(self) -> int:
        return len(self.mean)

    def blocks(self) -> Iterator[tuple[Tensor, Tensor]]:
        """(features, labels), a block at a time; the order is always the same."""
        start = 0
        for x in self._kept if self._kept is not None else self._read():
            yield x, self.labels[start : start + len(x)]
            start += len(x)

    def gather(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The rows of a mini-batch, in ascending order."""
        rows = rows.sort().values
        found, start = [], 0
        for x in self._kept if self._kept is not None else ():
            inside = rows[(rows >= start) & (rows < start + len(x))] - start
            found.append(x[inside.to(x.device)])
            start += len(x)
        for part in self.parts if self._kept is None else ():
            inside = rows[(rows >= start) & (rows < start + len(part))] - start
            blocks = part.take(inside.numpy()).blocks(self.dtype, device=self.device)
            found += [self._standardize(x) for _, x in blocks]
            start += len(part)
        return torch.cat(found), self.labels[rows.to(self.device)]

    def _read(self) -> Iterator[Tensor]:
        for part in self.parts:
            for _, x in part.blocks(self.dtype, width=self.num_classes, device=self.device):
                yield self._standardize(x)

    def _standardize(self, x: Tensor) -> Tensor:
        return x.sub_(self.mean).div_(self.scale)


def fit(data: Standardized, l2: float, probe: Probe, start: Fit | None = None) -> Fit:
    """The probe's weights for one l2; L-BFGS needs fewer steps from the fit for a near l2, if given."""
    return _lbfgs(data, l2, probe, start) if probe.solver == "lbfgs" else _sgd(data, l2, probe)


def _lbfgs(data: Standardized, l2: float, probe: Probe, start: Fit | None) -> Fit:
    shape = (data.width + 1, data.num_classes)  # the last row is the bias

    def loss_and_gradient(flat: Array) -> tuple[float, Array]:
        both = torch.from_numpy(flat.reshape(shape)).to(data.device)
        weights, bias = both[:-1], both[-1]
        total, gradient = 0.0, torch.zeros_like(both)
        for x, labels in data.blocks():
            logits = torch.addmm(bias.to(x.dtype), x, weights.to(x.dtype))
            log_probabilities = F.log_softmax(logits, dim=1)
            total -= float(log_probabilities.gather(1, labels[:, None]).double().sum())
            errors = _errors(log_probabilities, labels)
            gradient[:-1] += x.T @ errors
            gradient[-1] += errors.double().sum(dim=0)
        gradient /= len(data)
        gradient[:-1] += l2 * weights
        loss = total / len(data) + l2 / 2 * float(weights.square().sum())
        return loss, gradient.flatten().cpu().numpy()

    first = np.zeros(shape[0] * shape[1])
    if start is not None:
        first = torch.cat([start.weights, start.bias[None]]).flatten().cpu().numpy()
    limits = {"maxiter": probe.iterations, "maxfun": 2 * probe.iterations, "gtol": probe.tolerance, "ftol": 0.0}
    end: Any = scipy.optimize.minimize(loss_and_gradient, first, jac=True, method="L-BFGS-B", options=limits)
    both = torch.from_numpy(end.x.reshape(shape)).to(data.device)
    # The gradients of float32 features are about as noisy as the tolerance: the search may stop a little above it.
    converged = float(np.abs(end.jac).max()) <= 10 * probe.tolerance
    return Fit(both[:-1], both[-1], float(end.fun), int(end.nit), converged)


def _sgd(data: Standardized, l2: float, probe: Probe) -> Fit:
    """Nesterov momentum with a cosine to 0, from a rate of one over the curvature."""
    weights = torch.zeros(data.width + 1, data.num_classes, dtype=data.mean.dtype, device=data.device)
    velocity = torch.zeros_like(weights)
    batch = min(probe.batch_size, len(data))
    per_epoch = len(data) // batch
    steps, rate = per_epoch * probe.epochs, 1 / (_curvature(data, probe.seed) / 2 + l2)
    losses = torch.zeros(per_epoch, dtype=torch.float64, device=data.device)
    for epoch in range(probe.epochs):
        order = permutation(key(probe.seed, "linear probe", epoch), len(data))
        for place in range(per_epoch):
            x, labels = data.gather(order[place * batch : (place + 1) * batch])
            log_probabilities = F.log_softmax(torch.addmm(weights[-1], x, weights[:-1]), dim=1)
            losses[place] = F.nll_loss(log_probabilities, labels)
            errors = _errors(log_probabilities, labels)
            gradient = torch.cat([x.T @ errors, errors.sum(dim=0, keepdim=True)]) / len(x)
            gradient[:-1] += l2 * weights[:-1]
            velocity = MOMENTUM * velocity + gradient
            progress = (epoch * per_epoch + place) / steps
            weights -= rate * (1 + math.cos(math.pi * progress)) / 2 * (gradient + MOMENTUM * velocity)
    loss = float(losses.mean()) + l2 / 2 * float(weights[:-1].double().square().sum())
    return Fit(weights[:-1].double(), weights[-1].double(), loss, steps, math.isfinite(loss))


def _errors(log_probabilities: Float[Tensor, "b k"], labels: Int[Tensor, "b"]) -> Float[Tensor, "b k"]:
    """Probabilities less targets, the gradient to the logits; overwrites its input."""
    errors = log_probabilities.exp_()
    errors[torch.arange(len(labels), device=labels.device), labels] -= 1
    return errors


def _curvature(data: Standardized, seed: int, rounds: int = 20) -> float:
    """The largest eigenvalue of the features' second moments, of a few thousand rows; the loss curves half as much."""
    x, _ = data.gather(permutation(key(seed, "curvature"), len(data))[:4096])
    vector, value = torch.ones(data.width, dtype=x.dtype, device=x.device), 0.0
    for _ in range(rounds):
        vector = x.T @ (x @ vector) / len(x)
        value = float(vector.norm())
        vector /= max(value, 1e-30)
    return max(value, 1.0)  # 1: the bias, whose feature is constant

"""Few-shot accuracy of frozen features: regularised least squares to targets in {-1, 1}^K, in closed form.

With X the whitened features of the drawn examples, Y their targets and λ the l2, the weights are

    (XᵀX + λI)⁻¹ XᵀY = Xᵀ (XXᵀ + λI)⁻¹ Y,

the left form where examples outnumber features, the right one otherwise. All in float64, a block of rows at a time:
what is held is no larger than the drawn examples are.
"""

from collections.abc import Iterator, Sequence
from typing import final

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import ArrayLike
from torch import Tensor

from vitlab.evaluation.contract import EvaluationError, Metric, Outcome
from vitlab.evaluation.labeled_features import Array, Examples, Progress, Rows, count_classes, moments

SHOTS, SEEDS, L2 = (1, 5, 10, 25), (0, 1, 2), 2.0**10
SWEEP = tuple(2.0**i for i in range(-10, 20))
STD_EPS = 1e-5
BIAS = 100.0  # the constant feature: so large that its weight is nearly free of the penalty


def fewshot_accuracy(
    train_x: ArrayLike,
    train_y: ArrayLike,
    test_x: ArrayLike,
    test_y: ArrayLike,
    *,
    shots: Sequence[int] = SHOTS,
    seeds: Sequence[int] = SEEDS,
    l2: float = L2,
    num_classes: int | None = None,
    device: torch.device | str = "cpu",
) -> Float[Array, "seed shot"]:
    """Top-1 accuracy on the whole test split, [seed, shot], as the official evaluation measures it."""
    shots, seeds = tuple(shots), tuple(seeds)
    train, test, num = _checked(train_x, train_y, test_x, test_y, shots, seeds, (l2,), num_classes)
    return _accuracies(train, test, num, shots, seeds, (l2,), device)[:, :, 0]


def best_l2(accuracies: Float[Array, "task l2"]) -> int:
    """Which l2 does best over all tasks: the highest mean rank, as the public sweep chooses it.

    Of equal accuracies within a task the larger l2 ranks higher; of equal mean ranks the smaller l2 is taken.
    """
    places = np.argsort(np.argsort(accuracies, axis=1, kind="stable"), axis=1, kind="stable")
    return int(places.mean(axis=0).argmax())


def fewshot(
    train_x: ArrayLike,
    train_y: ArrayLike,
    test_x: ArrayLike,
    test_y: ArrayLike,
    *,
    shots: Sequence[int] = SHOTS,
    seeds: Sequence[int] = SEEDS,
    l2: float | Sequence[float] = L2,
    num_classes: int | None = None,
    device: torch.device | str = "cpu",
    progress: Progress | None = None,
) -> Outcome:
    """Mean and spread over the seeds for each number of shots; of several l2 one per number of shots is kept.

    That choice is made on the test split itself, as the public sweep makes it, and is recorded as such.
    """
    shots, seeds = tuple(shots), tuple(seeds)
    l2s = (float(l2),) if isinstance(l2, int | float) else tuple(float(value) for value in l2)
    train, test, num = _checked(train_x, train_y, test_x, test_y, shots, seeds, l2s, num_classes)
    accuracies = _accuracies(train, test, num, shots, seeds, l2s, device, progress)
    chosen = {k: best_l2(accuracies[:, i]) for i, k in enumerate(shots)}
    order = sorted(range(len(shots)), key=lambda i: shots[i])
    metrics = {f"{shots[i]}-shot": _metric(accuracies[:, i, chosen[shots[i]]], len(test)) for i in order}
    selected = {
        f"l2 for {k} shots": {
            "value": l2s[chosen[k]],
            "on": "test, by the mean rank over the seeds",
            "scores": dict(zip(map(str, l2s), accuracies[:, i].mean(axis=0).tolist(), strict=True)),
        }
        for i, k in enumerate(shots)
    }
    return Outcome(
        metrics=metrics,
        counts={"train": len(train), "test": len(test), "classes": num},
        seeds=tuple(seeds),
        settings={"shots": list(shots), "l2": l2s[0] if len(l2s) == 1 else list(l2s), "width": train.width},
        selected=selected if len(l2s) > 1 else {},
        details={
            "by seed": {f"{k}-shot": accuracies[:, i, chosen[k]].tolist() for i, k in enumerate(shots)},
        },
    )


def draw_shots(labels: Array, num_classes: int, seed: int) -> list[Array]:
    """The rows of each class in the order in which shots are taken: the first k are the k shots."""
    generator = np.random.default_rng(seed)
    by_class = np.split(np.argsort(labels, kind="stable"), np.cumsum(np.bincount(labels, minlength=num_classes))[:-1])
    return [generator.permutation(rows) for rows in by_class]


@final
class LeastSquares:
    """The problem of one draw: its whitening, and what any l2 is solved from."""

    def __init__(self, rows: Rows, num_classes: int, device: torch.device | str = "cpu") -> None:
        self.rows, self.num_classes, self.device = rows, num_classes, torch.device(device)
        self.mean, std = moments(rows, device)
        self.scale = std + STD_EPS
        self.labels = torch.from_numpy(rows.labels).to(device)
        self.primal = len(rows) >= rows.width
        if self.primal:
            self.gram = self._zeros(rows.width, rows.width)
            sums = self._zeros(num_classes, rows.width)
            for start, x in self._blocks():
                self.gram.addmm_(x.T, x)
                sums.index_add_(0, self.labels[start : start + len(x)], x)
            self.targets = 2 * sums.T - sums.sum(dim=0)[:, None]  # XᵀY without forming Y
        else:
            self.gram = self._zeros(len(rows), len(rows))
            for start, x in self._blocks():
                for other, z in self._blocks():
                    self.gram[start : start + len(x), other : other + len(z)] = x @ z.T
            self.targets = self._zeros(len(rows), num_classes).fill_(-1)
            self.targets.scatter_(1, self.labels[:, None], 1.0)

    def solve(self, l2s: Sequence[float]) -> Iterator[tuple[Float[Tensor, "d k"], Float[Tensor, "k"]]]:
        """Weights and bias on the raw features for each l2: scores are x @ weights + bias."""
        # The whitened examples sum to 0, so the constant feature is orthogonal to all others and is solved for alone.
        num, counts = len(self.rows), torch.bincount(self.labels, minlength=self.num_classes).double()
        for l2, solution in zip(l2s, self._solutions(l2s), strict=True):
            weights = solution if self.primal else self._combine(solution)
            constant = BIAS * (2 * counts - num) / (BIAS**2 * num + l2)
            weights = weights / self.scale[:, None]
            yield weights, BIAS * constant - self.mean @ weights

    def _solutions(self, l2s: Sequence[float]) -> Iterator[Tensor]:
        if len(l2s) == 1:
            shifted = self.gram.clone()
            shifted.diagonal().add_(l2s[0])
            yield torch.cholesky_solve(self.targets, torch.linalg.cholesky(shifted))
            return
        values, vectors = torch.linalg.eigh(self.gram)
        rotated = vectors.T @ self.targets
        for l2 in l2s:
            yield vectors @ (rotated / (values.clamp(min=0) + l2)[:, None])

    def _combine(self, solution: Float[Tensor, "n k"]) -> Float[Tensor, "d k"]:
        weights = self._zeros(self.rows.width, self.num_classes)
        for start, x in self._blocks():
            weights.addmm_(x.T, solution[start : start + len(x)])
        return weights

    def _blocks(self) -> Iterator[tuple[int, Tensor]]:
        for start, block in self.rows.blocks(np.float64, device=self.device):
            yield start, block.sub_(self.mean).div_(self.scale)

    def _zeros(self, *shape: int) -> Tensor:
        return torch.zeros(*shape, dtype=torch.float64, device=self.device)


def _accuracies(
    train: Examples,
    test: Examples,
    num_classes: int,
    shots: Sequence[int],
    seeds: Sequence[int],
    l2s: Sequence[float],
    device: torch.device | str,
    progress: Progress | None = None,
) -> Array:
    accuracies = np.empty((len(seeds), len(shots), len(l2s)))
    for i, seed in enumerate(seeds):
        by_class = draw_shots(train.labels, num_classes, seed)
        for j, k in enumerate(shots):
            drawn = train.take(np.sort(np.concatenate([rows[:k] for rows in by_class])))
            problem = LeastSquares(drawn, num_classes, device)
            for m, (weights, bias) in enumerate(problem.solve(l2s)):
                accuracies[i, j, m] = _right(test, weights, bias) / len(test)
            if progress is not None:
                progress(i * len(shots) + j + 1, len(seeds) * len(shots))
    return accuracies


def _right(test: Examples, weights: Float[Tensor, "d k"], bias: Float[Tensor, "k"]) -> int:
    right, labels = 0, torch.from_numpy(test.labels)
    for start, x in test.blocks(np.float64, width=len(bias), device=weights.device):
        predicted = torch.addmm(bias, x, weights).argmax(dim=1).cpu()
        right += int((predicted == labels[start : start + len(x)]).sum())
    return right


def _checked(
    train_x: ArrayLike,
    train_y: ArrayLike,
    test_x: ArrayLike,
    test_y: ArrayLike,
    shots: Sequence[int],
    seeds: Sequence[int],
    l2s: Sequence[float],
    num_classes: int | None,
) -> tuple[Examples, Examples, int]:
    if not shots or min(shots) < 1 or not seeds or min(seeds) < 0 or not l2s or not all(0 < l2 < np.inf for l2 in l2s):
        raise EvaluationError(
            "Few-shot evaluation needs shots of 1 or more, a seed of 0 or more, and an l2 above 0 and finite."
        )
    train, test = Examples.of(train_x, train_y, "train"), Examples.of(test_x, test_y, "test")
    num = count_classes(train, (test,), num_classes)
    counts = np.bincount(train.labels, minlength=num)
    scarce = int(counts.argmin())
    if counts[scarce] == 0:
        raise EvaluationError(f"Class {scarce} has no image in the train split, so no shots can be drawn of it.")
    if counts[scarce] < max(shots):
        raise EvaluationError(
            f"Class {scarce} has {counts[scarce]} images in the train split, fewer than the {max(shots)} shots that"
            " were asked for: ask for fewer."
        )
    return train, test, num


def _metric(accuracies: Array, count: int) -> Metric:
    several = len(accuracies) > 1
    return Metric(
        value=float(accuracies.mean()),
        count=count,
        spread=float(accuracies.std(ddof=1)) if several else None,
        spread_of=f"{len(accuracies)} seeds, standard deviation" if several else "",
    )

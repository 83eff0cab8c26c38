"""Weighted k-nearest neighbours by cosine similarity, in blocks of queries and of the bank.

The weights are exp(similarity / T), as Wu et al. (arXiv 1805.01978) and DINO have them, or one, or one over the cosine
distance. Ties are settled: of equal similarities the earlier training image is nearer, of equal votes the lower class
number wins.
"""

from collections.abc import Sequence
from typing import Literal, TypeAlias, get_args

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from numpy.typing import ArrayLike
from torch import Tensor

from vitlab.evaluation.contract import EvaluationError, Outcome
from vitlab.evaluation.labeled_features import Array, Examples, Progress, Rows, count_classes, held_out, share

Weights: TypeAlias = Literal["similarity", "uniform", "distance"]

KS = (1, 5, 10, 20, 100, 200)
TEMPERATURE = 0.07
QUERIES = BANK = 4096  # rows at a time: their similarities are what is held


def knn_accuracy(
    train_x: ArrayLike,
    train_y: ArrayLike,
    test_x: ArrayLike,
    test_y: ArrayLike,
    *,
    ks: Sequence[int],
    weights: Weights = "similarity",
    temperature: float = TEMPERATURE,
    num_classes: int | None = None,
    device: torch.device | str = "cpu",
) -> Float[Array, "k"]:
    """Top-1 accuracy for each k; the neighbours are looked for once."""
    train, test = Examples.of(train_x, train_y, "train"), Examples.of(test_x, test_y, "test")
    num = count_classes(train, (test,), num_classes)
    _check(ks, weights, temperature, len(train))
    return _right(train, test, num, ks, weights, temperature, device) / len(test)


def knn(
    train_x: ArrayLike,
    train_y: ArrayLike,
    test_x: ArrayLike,
    test_y: ArrayLike,
    *,
    ks: Sequence[int] | None = None,
    weights: Weights = "similarity",
    temperature: float = TEMPERATURE,
    holdout: float = 0.1,
    num_classes: int | None = None,
    device: torch.device | str = "cpu",
    progress: Progress | None = None,
) -> Outcome:
    """Accuracy for each k, and first for the k that does best on held-out training images.

    Without `ks`: those of 1, 5, 10, 20, 100 and 200 that the training images allow. As many are held out as `holdout`
    says, or as test has if that is fewer; the bank is then all of train again.
    """
    train, test = Examples.of(train_x, train_y, "train"), Examples.of(test_x, test_y, "test")
    num = count_classes(train, (test,), num_classes)
    if ks is None:
        ks = [k for k in KS if k <= max(1, len(train) // 2)]
    _check(ks, weights, temperature, len(train))
    chosen, selected = ks[0], {}
    if len(ks) > 1:
        held = held_out(train.labels, min(holdout, len(test) / len(train)))
        queries, bank = train.take(np.flatnonzero(held), "held out"), train.take(np.flatnonzero(~held))
        possible = [k for k in ks if k <= len(bank)]
        scores = _right(bank, queries, num, possible, weights, temperature, device, progress) / len(queries)
        chosen = possible[int(scores.argmax())]
        selected["k"] = {
            "value": chosen,
            "on": f"{len(queries)} images held out of train",
            "scores": dict(zip(map(str, possible), scores.tolist(), strict=True)),
        }
    counts = _right(train, test, num, ks, weights, temperature, device, progress).tolist()
    right = dict(zip(ks, counts, strict=True))
    return Outcome(
        metrics={"top-1": share(right[chosen], len(test))}
        | {f"top-1, k = {k}": share(count, len(test)) for k, count in right.items() if len(ks) > 1},
        counts={"train": len(train), "test": len(test), "classes": num},
        settings={"ks": list(ks), "weights": weights, "temperature": temperature, "width": train.width},
        selected=selected,
    )


def neighbours(
    bank: Examples | Rows, queries: Float[Tensor, "q d"], k: int
) -> tuple[Float[Tensor, "q k"], Int[Tensor, "q k"]]:
    """Similarities and rows of the k nearest, nearest first; the queries have unit length."""
    dtype = np.float64 if queries.dtype == torch.float64 else np.float32
    best = queries.new_empty(len(queries), 0)
    rows = torch.empty(len(queries), 0, dtype=torch.int64, device=queries.device)
    for first, block in bank.blocks(dtype, device=queries.device):
        for start in range(0, len(block), BANK):
            part = F.normalize(block[start : start + BANK], dim=1)
            similarities, places = top_k(queries @ part.T, k)
            best, order = top_k(torch.cat([best, similarities], dim=1), k)  # earlier rows stay ahead of equal ones
            rows = torch.cat([rows, places + first + start], dim=1).gather(1, order)
    return best, rows


def top_k(values: Float[Tensor, "q n"], k: int) -> tuple[Float[Tensor, "q k"], Int[Tensor, "q k"]]:
    """The k largest of each row, largest first and of equal ones the earlier; torch.topk leaves ties open."""
    k = min(k, values.shape[1])
    found = torch.topk(values, min(k + 1, values.shape[1]), dim=1)
    if found.values.shape[1] > k:
        split = found.values[:, k - 1] == found.values[:, k]  # a tie that the limit cuts: which ones, topk does not say
    else:
        split = torch.zeros(len(values), dtype=torch.bool, device=values.device)
    places = found.indices[:, :k].sort(dim=1).values
    order = torch.sort(values.gather(1, places), dim=1, descending=True, stable=True).indices
    places = places.gather(1, order)
    if split.any():
        places[split] = torch.sort(values[split], dim=1, descending=True, stable=True).indices[:, :k]
    return values.gather(1, places), places


def vote(
    similarities: Float[Tensor, "q k"],
    labels: Int[Tensor, "q k"],
    num_classes: int,
    ks: Sequence[int],
    weights: Weights,
    temperature: float,
) -> list[Int[Tensor, "q"]]:
    """The class with the most weight among the first k neighbours, for each k."""
    near = similarities.double()
    if weights == "similarity":
        shares = ((near - near[:, :1]) / temperature).exp()  # against the nearest: no overflow, the same order
    elif weights == "distance":
        distance = (1 - near).clamp(min=0)
        exact = distance == 0  # then these alone count
        shares = torch.where(exact.any(dim=1, keepdim=True), exact.double(), 1 / distance.clamp(min=1e-300))
    else:
        shares = torch.ones_like(near)
    votes = shares.new_zeros(len(near), num_classes)
    predictions: dict[int, Tensor] = {}
    done = 0
    for k in sorted(set(ks)):
        votes.scatter_add_(1, labels[:, done:k], shares[:, done:k])
        predictions[k], done = votes.argmax(dim=1), k
    return [predictions[k] for k in ks]


def _right(
    bank: Examples | Rows,
    queries: Examples | Rows,
    num_classes: int,
    ks: Sequence[int],
    weights: Weights,
    temperature: float,
    device: torch.device | str,
    progress: Progress | None = None,
) -> Array:
    """How many queries are right for each k."""
    right = np.zeros(len(ks), np.int64)
    dtype = np.float64 if np.float64 in (bank.dtype, queries.dtype) else np.float32
    known, truth = torch.from_numpy(bank.labels), torch.from_numpy(queries.labels)
    for first, block in queries.blocks(dtype, width=num_classes, device=device):
        for start in range(0, len(block), QUERIES):
            part = F.normalize(block[start : start + QUERIES], dim=1)
            similarities, rows = neighbours(bank, part, max(ks))
            predictions = vote(similarities.cpu(), known[rows.cpu()], num_classes, ks, weights, temperature)
            labels = truth[first + start : first + start + len(part)]
            right += np.array([int((predicted == labels).sum()) for predicted in predictions])
            if progress is not None:
                progress(first + start + len(part), len(queries))
    return right


def _check(ks: Sequence[int], weights: str, temperature: float, num: int) -> None:
    if weights not in get_args(Weights):
        raise EvaluationError(f"The weights of neighbours are {', '.join(get_args(Weights))}; not '{weights}'.")
    if not temperature > 0:
        raise EvaluationError(f"The temperature must be above 0, not {temperature}.")
    if not ks or min(ks) < 1:
        raise EvaluationError(f"The numbers of neighbours must be 1 or more, not {list(ks)}.")
    if max(ks) > num:
        raise EvaluationError(f"{max(ks)} neighbours were asked for, but the train split has {num} images.")

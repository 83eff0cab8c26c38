"""Kinds of patches: those of several pictures that a model's last layer holds to be alike, found by k-means."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from vitlab.core.random import uniform_at

Array: TypeAlias = np.ndarray[Any, Any]

MOST = 6  # kinds: as many colours as are told apart at a glance
TRIES = 4  # starts, of which the best counts
ROUNDS = 100


class Clustered(NamedTuple):
    """Which centre each row is nearest to, the centres, and the sum of squares to them."""

    labels: Int[Tensor, " n"]
    centers: Float[Tensor, "k d"]
    inertia: float


@dataclass(frozen=True)
class Kinds:
    """The kind of every patch, the most frequent first; `maps` [pictures, rows, columns] number them from 0."""

    maps: Array
    explained: float  # share of how patches differ that is between kinds

    @property
    def num(self) -> int:
        return int(self.maps.max()) + 1

    @property
    def beside(self) -> float:
        """How often patches beside each other are of one kind."""
        pairs = ((self.maps[:, 1:], self.maps[:, :-1]), (self.maps[:, :, 1:], self.maps[:, :, :-1]))
        return float(np.concatenate([(one == other).ravel() for one, other in pairs]).mean())

    @property
    def anywhere(self) -> float:
        """How often any two patches of a picture are."""
        return float(np.square(self.shares).sum(axis=1).mean())

    @property
    def same_place(self) -> float | None:
        """How often the patches at one place of two pictures are; None for one picture."""
        num = len(self.maps)
        found = [(self.maps[i] == self.maps[j]).mean() for i in range(num) for j in range(i)]
        return float(np.mean(found)) if found else None

    @property
    def other_place(self) -> float | None:
        """How often any two patches of two pictures are; None for one picture."""
        shares = self.shares
        found = [shares[i] @ shares[j] for i in range(len(shares)) for j in range(i)]
        return float(np.mean(found)) if found else None

    @property
    def shares(self) -> Array:
        """Of each picture's patches, [pictures, kinds]."""
        return np.stack([np.bincount(one.ravel(), minlength=self.num) / one.size for one in self.maps])


def kinds_of(pictures: Sequence[Float[Tensor, "h w d"]], num: int = MOST) -> Kinds | None:
    """The kinds of the pictures' patches by the direction of what a layer holds of them.

    None where there are fewer patches than kinds, or all are alike.
    """
    values = torch.stack(list(pictures)).detach().cpu().double()
    rows = F.normalize(values.flatten(0, 2), dim=1)
    if len(rows) <= num or not rows.isfinite().all() or not (rows - rows[0]).any():
        return None
    found = min((k_means(rows, starts(rows, num, seed)) for seed in range(TRIES)), key=lambda each: each.inertia)
    spread = (rows - rows.mean(dim=0)).square().sum()
    order = torch.bincount(found.labels, minlength=num).argsort(descending=True, stable=True)
    maps = order.argsort()[found.labels].view(values.shape[:3])
    return Kinds(maps.numpy(), 1 - found.inertia / float(spread))


def starts(rows: Float[Tensor, "n d"], num: int, seed: int) -> Float[Tensor, "k d"]:
    """Rows to start from, each drawn by its square distance to those before (k-means++); draws are counted."""
    chosen = [int(uniform_at(seed, 0) * len(rows))]
    near = (rows - rows[chosen[0]]).square().sum(dim=1)
    for draw in range(1, num):
        ends = near.cumsum(dim=0)
        place = torch.searchsorted(ends, uniform_at(seed, 0, draw) * ends[-1], right=True)
        chosen.append(min(int(place), len(rows) - 1))
        near = torch.minimum(near, (rows - rows[chosen[-1]]).square().sum(dim=1))
    return rows[chosen]


def k_means(rows: Float[Tensor, "n d"], centers: Float[Tensor, "k d"]) -> Clustered:
    """Lloyd's rounds until no row changes its centre; one that nobody is nearest to stays where it is."""
    labels = torch.full((len(rows),), -1)
    for _ in range(ROUNDS):
        nearest = _distances(rows, centers).argmin(dim=1)
        if torch.equal(nearest, labels):
            break
        labels = nearest
        member = F.one_hot(labels, len(centers)).to(rows.dtype)
        counts = member.sum(dim=0)[:, None]
        centers = torch.where(counts > 0, member.T @ rows / counts.clamp(min=1), centers)
    inertia = _distances(rows, centers).gather(1, labels[:, None]).sum()
    return Clustered(labels, centers, float(inertia))


def _distances(rows: Float[Tensor, "n d"], centers: Float[Tensor, "k d"]) -> Float[Tensor, "n k"]:
    """Squares of them."""
    squares = rows.square().sum(dim=1, keepdim=True) + centers.square().sum(dim=1)
    return (squares - 2 * rows @ centers.T).clamp(min=0)

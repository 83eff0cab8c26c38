"""How alike two layers' tokens are: linear centred kernel alignment (CKA).

Kornblith et al., arXiv 1905.00414; over minibatches with the unbiased estimate of Nguyen et al., arXiv 2010.15327.
1 for tokens that differ by a rotation and a scale, about 0 for unrelated ones.
"""

from collections.abc import Sequence
from typing import final

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from vitlab.core.errors import Error
from vitlab.inspection.rollout import Values
from vitlab.models.contract import Tokens

FEWEST = 4  # rows that the unbiased estimate needs


@final
class StreamingCka:
    """CKA between each of some layers and each of others, over minibatches: none is kept.

    The estimate does not depend on how large the minibatches are, but for its noise; each needs at least 4 rows.
    """

    def __init__(self) -> None:
        self._between = self._first = self._second = torch.zeros((), dtype=torch.float64)

    def add(self, first: Sequence[Values], second: Sequence[Values] | None = None) -> None:
        """Features [n, p] of the same n examples in each layer; None compares the first layers with themselves."""
        grams = _grams(first)
        others = grams if second is None else _grams(second)
        if grams.shape[1:] != others.shape[1:]:
            raise Error(f"CKA compares features of the same examples, not of {len(grams[0])} and {len(others[0])}.")
        self._between = self._between + _hsic(grams, others)
        self._first = self._first + _hsic(grams, grams).diagonal()
        self._second = self._second + _hsic(others, others).diagonal()

    def result(self) -> Float[Tensor, "first second"]:
        """The alignment of each first layer with each second one; not a number where a layer's tokens are all alike."""
        if not self._between.ndim:
            raise Error("CKA needs at least one minibatch.")
        return self._between / (self._first[:, None] * self._second[None]).clamp(min=0).sqrt()


def aligned_rows(
    layers: Sequence[Tokens], grid: tuple[int, int], most: int | None = None
) -> list[Float[Tensor, "n d"]]:
    """Each layer's patches as rows that mean the same places: averaged to one grid; at most so many, evenly chosen."""
    rows: list[Tensor] = []
    for tokens in layers:
        maps = rearrange(tokens.patches.float(), "b (h w) d -> b d h w", h=tokens.grid[0])
        if tokens.grid != grid:
            maps = F.adaptive_avg_pool2d(maps, grid)
        flat = rearrange(maps, "b d h w -> (b h w) d")
        if most is not None and len(flat) > most:
            flat = flat[torch.linspace(0, len(flat) - 1, most, device=flat.device).round().long()]
        rows.append(flat)
    return rows


def coarsest(layers: Sequence[Tokens]) -> tuple[int, int]:
    """The grid to which all layers' patches can be averaged."""
    return min(tokens.grid[0] for tokens in layers), min(tokens.grid[1] for tokens in layers)


def _centered(features: Values) -> Tensor:
    values = torch.as_tensor(features).detach().double()
    if values.ndim != 2:
        raise Error(f"CKA takes features [n, p], not {tuple(values.shape)}.")
    return values - values.mean(dim=0)


def _grams(layers: Sequence[Values]) -> Float[Tensor, "l n n"]:
    """Inner products between examples, the diagonal zero; centred before, which changes nothing but the rounding."""
    centred = [_centered(layer) for layer in layers]
    if len({len(layer) for layer in centred}) != 1:
        raise Error("CKA compares features of the same examples in every layer.")
    if len(centred[0]) < FEWEST:
        raise Error(f"The unbiased estimate of CKA needs at least {FEWEST} examples, not {len(centred[0])}.")
    grams = torch.stack([layer @ layer.T for layer in centred])
    return grams * (1 - torch.eye(grams.shape[-1], dtype=grams.dtype, device=grams.device))


def _hsic(k: Float[Tensor, "l n n"], m: Float[Tensor, "o n n"]) -> Float[Tensor, "l o"]:
    """HSIC_1 of Song et al. 2012 between every two Gram matrices, on the CPU."""
    n = k.shape[-1]
    traces = k.flatten(1) @ m.flatten(1).T
    k_sums, m_sums = k.sum(dim=2), m.sum(dim=2)
    totals = k_sums.sum(dim=1)[:, None] * m_sums.sum(dim=1)[None]
    value = traces + totals / ((n - 1) * (n - 2)) - 2 / (n - 2) * (k_sums @ m_sums.T)
    return (value / (n * (n - 3))).cpu()

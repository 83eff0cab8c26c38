"""Attention rollout: how much of each input token flows into each output token, over all layers.

Abnar and Zuidema, arXiv 2005.00928, as the paper uses it: heads averaged, half of each layer for its residual
connection, rows normalised, layers multiplied. The gradient-weighted form is that of Chefer, Gur and Wolf,
arXiv 2103.15679, equations 5 and 6.
"""

from collections.abc import Iterable
from typing import Any, TypeAlias, final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from vitlab.core.errors import Error

Values: TypeAlias = Tensor | np.ndarray[Any, Any]


@final
class Rollout:
    """A running product: layers are added from the first to the last, and none is kept."""

    def __init__(self) -> None:
        self.flow: Tensor | None = None  # [B, N, N], an output token per row

    def add(self, attention: Values) -> None:
        """One layer's attention [B, heads, N, N]."""
        mixed = _averaged(attention)
        mixed = (mixed + _identity(mixed)) / 2
        self._multiply(mixed / mixed.sum(dim=-1, keepdim=True))

    def add_weighted(self, attention: Values, gradient: Values) -> None:
        """One layer's attention, each head's weighted by how much more of it would raise the score: R + A R."""
        product = torch.as_tensor(attention) * torch.as_tensor(gradient)
        raising = _averaged(product.clamp(min=0))
        self._multiply(raising + _identity(raising))

    def _multiply(self, layer: Tensor) -> None:
        if self.flow is not None and self.flow.shape != layer.shape:
            raise Error(
                f"Rollout multiplies layers of one size: one has {tuple(layer.shape)} after {tuple(self.flow.shape)}."
            )
        self.flow = layer if self.flow is None else layer @ self.flow


def attention_rollout(attentions: Values | Iterable[Values]) -> Float[Tensor, "b n n"]:
    """From [layers, B, heads, N, N], or one [B, heads, N, N] at a time, to [B, N, N], an output token per row."""
    rollout = Rollout()
    for attention in attentions:
        rollout.add(attention)
    return _result(rollout)


def coherence(values: Values) -> float | None:
    """The correlation of a map [rows, columns] with itself a patch further, 0 for noise; None where all are alike."""
    centred = torch.as_tensor(values).detach().cpu().double()
    centred = centred - centred.mean()
    pairs = [(centred[1:], centred[:-1]), (centred[:, 1:], centred[:, :-1])]
    variance = centred.square().mean()
    found = [(one * other).mean() / variance for one, other in pairs if one.numel()]
    return float(torch.stack(found).mean()) if found and variance > 0 else None


def _averaged(attention: Values) -> Float[Tensor, "b n n"]:
    values = torch.as_tensor(attention)
    if values.ndim != 4 or values.shape[-1] != values.shape[-2]:
        raise Error(
            f"Rollout takes attention [B, heads, N, N] of the same tokens on both sides, not {tuple(values.shape)}."
        )
    return _wide(values).mean(dim=1)


def _wide(values: Tensor) -> Tensor:
    """At least single precision: products of many small shares would vanish in half."""
    return values if values.dtype in (torch.float32, torch.float64) else values.float()


def _identity(like: Tensor) -> Tensor:
    return torch.eye(like.shape[-1], dtype=like.dtype, device=like.device)


def _result(rollout: Rollout) -> Tensor:
    if rollout.flow is None:
        raise Error("Rollout needs the attention of at least one layer.")
    return rollout.flow

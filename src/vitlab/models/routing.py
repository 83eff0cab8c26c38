"""Routing tokens to experts as V-MoE does (arXiv 2106.05974): who goes where, the buffers, the losses that balance.

Letters of shapes: g groups that are routed independently, s tokens per group, e experts, k experts per token, c places
in an expert's buffer per group. An expert's work is one grouped product over its buffer, [e, g c, d].
"""

import contextlib
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol, final

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn


@dataclass(frozen=True)
class Routes:
    """Where every token goes: for each of its k experts a place in [e c], whether it got one, and a weight."""

    places: Int[Tensor, "g s k"]  # where there was no room: any place, its weight 0
    kept: Bool[Tensor, "g s k"]
    weights: Float[Tensor, "g s k"]
    num_experts: int
    capacity: int

    def dispatch(self, values: Float[Tensor, "g s d"]) -> Float[Tensor, "e gc d"]:
        """The buffers; a place that nobody has holds some token, whose result nobody reads."""
        groups, size, _ = values.shape
        total, chosen = self.num_experts * self.capacity, self.places.shape[-1]
        tokens = torch.arange(size, device=values.device)[None, :, None].expand(groups, size, chosen)
        held = torch.arange(total + 1, device=values.device) % size  # spread, so that no token is read by all
        held = held[None].expand(groups, -1).clone()
        held.scatter_(1, torch.where(self.kept, self.places, total).flatten(1), tokens.flatten(1))
        buffers = values.gather(1, held[:, :total, None].expand(-1, -1, values.shape[-1]))
        return rearrange(buffers, "g (e c) d -> e (g c) d", e=self.num_experts)

    def combine(self, buffers: Float[Tensor, "e gc d"]) -> Float[Tensor, "g s d"]:
        """Each token's weighted sum of what its experts made of it; nothing where all its experts were full."""
        groups = self.places.shape[0]
        by_place = rearrange(buffers, "e (g c) d -> g (e c) d", g=groups)
        index = self.places.flatten(1)[:, :, None].expand(-1, -1, by_place.shape[-1])
        made = rearrange(by_place.gather(1, index), "g (s k) d -> g s k d", k=self.places.shape[-1])
        return (made * self.weights[..., None].to(made.dtype)).sum(dim=2)


def buffer_size(tokens: int, num_experts: int, num_selected: int, ratio: float) -> int:
    """C = round(k s ratio / e), at least 1, and no more than there are tokens.

    In whole numbers, since an exported program knows `tokens` as a symbol only.
    """
    if num_selected * ratio >= num_experts:
        return tokens
    part = Fraction(ratio).limit_denominator(10_000) * num_selected / num_experts
    rounded = (2 * tokens * part.numerator + part.denominator) // (2 * part.denominator)
    return torch.sym_max(rounded, 1)  # pyright: ignore[reportReturnType] (of two whole numbers a whole one)


def route(
    gates: Float[Tensor, "g s e"], *, num_selected: int, capacity: int, batch_priority: bool, normalized: bool = False
) -> Routes:
    """Every token to the experts of its largest gates, as long as these have room.

    All first choices come before all second ones. Among equals the earlier token comes first or, with batch priority,
    the one whose largest gate is larger, whichever image it belongs to. Weights are the gates themselves, or with
    `normalised` divided by the sum of the chosen ones.
    """
    num_experts, size = gates.shape[-1], gates.shape[1]
    weights, experts = gates.topk(num_selected, dim=-1)
    if normalized:
        weights = weights / weights.sum(dim=-1, keepdim=True)
    queue = experts
    order = gates.detach().amax(dim=-1).argsort(dim=-1, descending=True, stable=True) if batch_priority else None
    if order is not None:
        queue = queue.gather(1, order[..., None].expand(-1, -1, num_selected))
    queue = rearrange(queue, "g s k -> g (k s)")
    wants = queue[..., None] == torch.arange(num_experts, device=gates.device)
    ahead = wants.cumsum(dim=1, dtype=torch.int32).gather(-1, queue[..., None]) - 1
    ahead = rearrange(ahead, "g (k s) 1 -> g s k", k=num_selected)
    if order is not None:  # back from the order of the queue to that of the tokens
        ahead = torch.empty_like(ahead).scatter_(1, order[..., None].expand(-1, -1, num_selected), ahead)
    kept = ahead < capacity
    anywhere = torch.arange(size, device=gates.device)[:, None] % (num_experts * capacity)
    places = torch.where(kept, experts * capacity + ahead, anywhere)
    return Routes(places, kept, weights * kept, num_experts, capacity)


def importance_loss(gates: Float[Tensor, "g s e"]) -> Float[Tensor, ""]:
    """The squared coefficient of variation of the experts' summed gates, mean over groups."""
    return _variation(gates.sum(dim=1)).mean()


def load_loss(
    logits: Float[Tensor, "g s e"], noisy: Float[Tensor, "g s e"], *, num_selected: int, noise: float
) -> Float[Tensor, ""]:
    """The same of the experts' expected loads.

    An expert's load is the sum over tokens of the probability that it would be among the k chosen if the noise of its
    logit were drawn again: P(logit + noise > threshold), the threshold being the k-th largest noisy logit.
    """
    threshold = noisy.topk(num_selected, dim=-1).values[..., -1:]
    chance = torch.special.ndtr((logits - threshold) / noise)
    return _variation(chance.mean(dim=1)).mean()


def _variation(values: Float[Tensor, "g e"]) -> Float[Tensor, "g"]:
    return values.var(dim=-1, correction=0) / values.mean(dim=-1).square()


class Exchange(Protocol):
    """How buffers reach experts that live in other processes: [e, n, d] to [e of this process, all n, d], and back."""

    def to_experts(self, buffers: Tensor) -> Tensor: ...

    def from_experts(self, buffers: Tensor) -> Tensor: ...


@final
class Router(nn.Module):
    """A linear layer to a logit an expert, computed in float32: a rounded logit sends tokens elsewhere."""

    def __init__(self, width: int, num_experts: int, *, noise: float) -> None:
        super().__init__()
        self.dense = nn.Linear(width, num_experts, bias=False)
        self.noise = noise / num_experts

    def forward(self, z: Float[Tensor, "g s d"]) -> tuple[Float[Tensor, "g s e"], Float[Tensor, "g s e"]]:
        """Logits without noise and, in training, with it."""
        precise = contextlib.nullcontext() if z.is_meta else torch.autocast(z.device.type, enabled=False)
        with precise:
            logits = F.linear(z.float(), self.dense.weight.float())
        noisy = logits + self.noise * torch.randn_like(logits) if self.training and self.noise else logits
        return logits, noisy


@final
class ExpertLinear(nn.Module):
    """A linear layer an expert, all of them one batched product."""

    sharded: bool = False  # set from outside: the parameters are sharded, and the products are those of the part here

    def __init__(self, num_experts: int, in_features: int, out_features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_experts, out_features, in_features))
        self.bias = nn.Parameter(torch.empty(num_experts, out_features))

    def forward(self, x: Float[Tensor, "e n i"]) -> Float[Tensor, "e n o"]:
        weight, bias = self.weight, self.bias
        if self.sharded:
            weight, bias = weight.to_local(), bias.to_local()  # pyright: ignore[reportAttributeAccessIssue]
        return torch.baddbmm(bias[:, None], x, weight.mT)

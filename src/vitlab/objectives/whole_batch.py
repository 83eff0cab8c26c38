"""What a loss over a whole batch takes from all processes: sums and rows that gradients pass through.

A process computes its own images' part of the loss, and the loop averages gradients over processes. Then the gradient
of a sum over processes is the sum of what they all ask of it, and two processes train as one does.
"""

import itertools
from typing import Any, final

import torch
import torch.distributed as dist
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn


@final
class _Total(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        del ctx
        summed = values.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(summed)
        return summed

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        del ctx
        summed = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(summed)
        return summed


def num_processes() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def total(values: Tensor) -> Tensor:
    """The sum over all processes; each gets all of it."""
    if num_processes() == 1:
        return values
    summed = _Total.apply(values)
    assert isinstance(summed, Tensor)
    return summed


def gathered(rows: Float[Tensor, "b *rest"]) -> tuple[Float[Tensor, "n *rest"], int]:
    """The rows of all processes in their order, and where this one's begin."""
    if num_processes() == 1:
        return rows, 0
    first = dist.get_rank() * len(rows)
    after = (num_processes() - 1) * len(rows) - first
    others = (0, 0) * (rows.ndim - 1)
    return total(F.pad(rows, (*others, first, after))), first


@final
class WholeBatchNorm(nn.Module):
    """Batch norm by the statistics of the batch over all processes, in evaluation too: it keeps none."""

    def __init__(self, width: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight, self.bias, self.eps = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width)), eps

    def forward(self, x: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
        x = x.float()
        num = len(x) * num_processes()
        centred = x - total(x.sum(dim=0)) / num
        var = total(centred.square().sum(dim=0)) / num
        return centred * (var + self.eps).rsqrt() * self.weight + self.bias


class Projector(nn.Sequential):
    """Layers from features to what a loss compares, batch norm and ReLU between them."""

    def __init__(self, width: int, hidden: int, out: int, *, num_layers: int) -> None:
        widths = [width, *[hidden] * (num_layers - 1)]
        layers: list[nn.Module] = []
        for inner, outer in itertools.pairwise(widths):
            layers += [nn.Linear(inner, outer, bias=False), WholeBatchNorm(outer), nn.ReLU()]
        super().__init__(*layers, nn.Linear(widths[-1], out))

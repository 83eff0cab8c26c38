"""Players whose weights are a moving average of others'."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor


@torch.no_grad()
def move_average(averages: Iterable[nn.Module | None], towards: Iterable[nn.Module | None], weight: Tensor) -> None:
    """a <- a + weight (w - a) for every parameter and statistic; `weight` lies on the device, and may be 0 there.

    Experts that are spread over processes are gathered: an average has all of them.
    """
    for theirs, ours in zip(_values(averages), _values(towards), strict=True):
        if ours:
            alike = [_as(theirs[i], own) for i, own in enumerate(ours)]
            moves = torch._foreach_sub(alike, theirs)
            torch._foreach_mul_(moves, weight)
            torch._foreach_add_(theirs, moves)


def _values(modules: Iterable[nn.Module | None]) -> tuple[list[Tensor], list[Tensor]]:
    """Parameters, which may be sharded, and batch norms' statistics, which are not."""
    there = [module for module in modules if module is not None]
    statistics = [value for module in there for value in module.buffers() if value.is_floating_point()]
    return [value.detach() for module in there for value in module.parameters()], statistics


def _as(average: Tensor, own: Tensor) -> Tensor:
    """A player's values, whole where those of its average are."""
    return own.full_tensor() if isinstance(own, DTensor) and not isinstance(average, DTensor) else own

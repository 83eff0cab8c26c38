"""Batch norms whose statistics are those of the whole batch, not of one process's share of it.

torch.nn.SyncBatchNorm takes no CPU tensors, is no BatchNorm2d to the models that ask, and counts a batch again when a
layer is recomputed. This one has none of these limits, and the parameters and buffers of a plain norm under the same
names: what is saved from it is a plain model's.
"""

from collections.abc import Callable
from typing import Any, TypeGuard, cast, final

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor, nn

from vitlab.models.stages import BATCH_NORMS
from vitlab.training.distribution import World

TIMMS = {"drop", "act"}  # what timm's norms do besides: dropout and an activation


@final
class SyncedBatchNorm(nn.BatchNorm2d):
    """A batch norm over all processes in training; in evaluation the plain one."""

    def __init__(self, norm: nn.BatchNorm2d) -> None:
        """In the place of `norm`, with its parameters and buffers themselves."""
        super().__init__(norm.num_features, norm.eps, norm.momentum, norm.affine, device="meta")
        self.weight, self.bias = norm.weight, norm.bias
        self.running_mean, self.running_var = norm.running_mean, norm.running_var
        self.num_batches_tracked = norm.num_batches_tracked
        self.training = norm.training
        self.drop, self.act = (getattr(norm, name, nn.Identity()) for name in ("drop", "act"))

    def forward(self, x: Float[Tensor, "b d h w"]) -> Float[Tensor, "b d h w"]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self.act(self.drop(self.normed(x) if self.training else super().forward(x)))

    def normed(self, x: Float[Tensor, "b d h w"]) -> Float[Tensor, "b d h w"]:
        """x by the mean and variance of the batch of all processes, which the running ones follow."""
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        var, mean = torch.var_mean(wide, dim=(0, 2, 3), correction=0)
        count = torch.full_like(mean, wide.numel() / wide.shape[1])
        means, variances, counts = _of_all(torch.stack([mean, var, count])).unbind(1)
        total = counts.sum(dim=0)
        mean = (counts * means).sum(dim=0) / total
        var = (counts * (variances + (means - mean) ** 2)).sum(dim=0) / total
        self._follow(mean.detach(), var.detach() * total / (total - 1).clamp(min=1))
        scale = (var + self.eps).rsqrt()
        shift = -mean * scale
        if self.affine:
            scale, shift = scale * self.weight, shift * self.weight + self.bias
        return torch.addcmul(shift[:, None, None], wide, scale[:, None, None]).to(x.dtype)

    @torch.no_grad()
    def _follow(self, mean: Float[Tensor, " d"], var: Float[Tensor, " d"]) -> None:
        if self.running_mean is None or self.running_var is None:
            return
        weight = self.momentum
        if self.num_batches_tracked is not None:  # None: a batch that is computed again
            self.num_batches_tracked.add_(1)
            weight = 1 / self.num_batches_tracked if weight is None else weight
        if weight is not None:
            self.running_mean.lerp_(mean.to(self.running_mean.dtype), weight)
            self.running_var.lerp_(var.to(self.running_var.dtype), weight)


class _Sum(torch.autograd.Function):
    """The sum over processes; what each answers for is the sum of what all were told."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        del ctx
        return _summed(values)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        del ctx
        return _summed(gradient)


def _summed(values: Tensor) -> Tensor:
    total = values.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total)
    return total


def _gather(own: Float[Tensor, "three d"]) -> Float[Tensor, "world three d"]:
    """What every process gives, in one sum: each fills a row of its own."""
    rows = torch.arange(dist.get_world_size(), device=own.device) == dist.get_rank()
    return _Sum.apply(rows[:, None, None] * own)


# A compiled graph ends here: collectives with gradients are not part of one.
_of_all = cast("Callable[[Tensor], Tensor]", torch.compiler.disable(_gather))


def synchronize(model: nn.Module, world: World) -> str | None:
    """Have the model's batch norms see the whole batch where several processes share it; what there is to say of it."""
    if world.size == 1:
        return None
    norms = [module for module in model.modules() if isinstance(module, BATCH_NORMS)]
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if _replaceable(child):
                setattr(parent, name, SyncedBatchNorm(child))
    left = [module for module in model.modules() if isinstance(module, BATCH_NORMS)]
    left = [module for module in left if not isinstance(module, SyncedBatchNorm)]
    if not norms:
        return None
    if left:
        return (
            f"{len(left)} of the model's {len(norms)} batch norms are of a kind ({type(left[0]).__name__}) that sees"
            " each process's share of a batch alone; the running statistics that are kept are the first process's."
        )
    return f"Batch norms take their statistics over the batches of all {world.size} processes."


def _replaceable(module: nn.Module) -> TypeGuard[nn.BatchNorm2d]:
    """torch's own norm, or timm's with an activation; another subclass may do what this one does not."""
    if not isinstance(module, nn.BatchNorm2d) or isinstance(module, SyncedBatchNorm):
        return False
    return type(module) is nn.BatchNorm2d or {name for name, _ in module.named_children()} == TIMMS

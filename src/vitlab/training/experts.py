"""Experts spread over processes: each process keeps some experts of every layer, and tokens travel to them.

Applied from outside the model. Tokens are routed where their images are; an all-to-all brings every buffer to the
process that has its expert, and another brings the results back. All processes must have batches of one shape.
"""

from typing import Any, final

import torch
import torch.distributed as dist
from einops import rearrange
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

from vitlab.models.contract import Model
from vitlab.models.routing import ExpertLinear
from vitlab.models.vmoe import ExpertMlp


@final
class _Swap(torch.autograd.Function):
    """Part i of the first axis to process i, in place of it what process i had for this one; backwards likewise."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, group: dist.ProcessGroup, scale: float) -> Tensor:
        ctx.group, ctx.scale = group, scale
        return _swapped(values, group)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return _swapped(gradients[0] * ctx.scale, ctx.group), None, None


def _swapped(values: Tensor, group: dist.ProcessGroup) -> Tensor:
    received = torch.empty_like(values, memory_format=torch.contiguous_format)
    dist.all_to_all_single(received, values.contiguous(), group=group)
    return received


@final
class ProcessExchange:
    """The way of buffers to experts in other processes.

    A process's loss is the mean over its own images, and the loss of all is the mean of those. Between the two swaps
    gradients are therefore divided by the number of processes: an expert's gradients end as those of the whole loss,
    without any reduction, while everything else has its process's own, to be averaged as always.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group, self.size = group, dist.get_world_size(group)

    def to_experts(self, buffers: Tensor) -> Tensor:
        swapped: Tensor = _Swap.apply(buffers, self.group, float(self.size))
        return rearrange(swapped, "(w e) n d -> e (w n) d", w=self.size)

    def from_experts(self, buffers: Tensor) -> Tensor:
        by_process = rearrange(buffers, "e (w n) d -> (w e) n d", w=self.size)
        return _Swap.apply(by_process, self.group, 1 / self.size)


def expert_layers(model: Model) -> dict[str, ExpertMlp]:
    """The layers of experts by their names."""
    return {name: module for name, module in model.named_modules() if isinstance(module, ExpertMlp)}


def shard_experts(model: Model, mesh: DeviceMesh) -> list[str]:
    """Leave each process its share of every layer's experts; the names of the parameters that are spread now.

    They become sharded tensors along the axis of experts, so that norms, optimizers and checkpoints know all of each.
    To be called before optimizers are built.
    """
    size, rank, names = mesh.size(), mesh.get_local_rank(), list[str]()
    for name, module in expert_layers(model).items():
        num = module.config.num_experts
        assert num % size == 0
        share = slice(rank * num // size, (rank + 1) * num // size)
        for part, layer in (("up", module.experts.up), ("down", module.experts.down)):
            assert isinstance(layer, ExpertLinear)
            layer.sharded = True
            for kind, whole in (("weight", layer.weight), ("bias", layer.bias)):
                own = DTensor.from_local(whole.detach()[share].clone(), mesh, [Shard(0)])
                setattr(layer, kind, nn.Parameter(own, requires_grad=whole.requires_grad))
                names.append(f"{name}.experts.{part}.{kind}")
        module.exchange = ProcessExchange(mesh.get_group())
    return names

"""Experts spread over processes: each process keeps some experts of every layer, and tokens travel to them.

Applied from outside the model. Tokens are routed where their images are; an all-to-all brings every buffer to the
process that has its expert, and another brings the results back. All processes must have batches of one shape.
"""

from typing import Any, final

import torch
import torch.distributed as dist
from einops import rearrange
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from vitlab.core.errors import ConfigError
from vitlab.models.contract import Model
from vitlab.models.routing import ExpertLinear
from vitlab.models.vmoe import ExpertMlp


@final
class _Swap(torch.autograd.Function):
    """Part i of the first axis to process i, in place of it what process i had for this one; backwards likewise."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, group: dist.ProcessGroup | None, scale: float) -> Tensor:
        ctx.group, ctx.scale = group, scale
        return _swapped(values, group)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return _swapped(gradients[0] * ctx.scale, ctx.group), None, None


def _swapped(values: Tensor, group: dist.ProcessGroup | None) -> Tensor:
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

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        self.group, self.size = group, dist.get_world_size(group)

    def to_experts(self, buffers: Tensor) -> Tensor:
        swapped: Tensor = _Swap.apply(buffers, self.group, float(self.size))
        return rearrange(swapped, "(w e) n d -> e (w n) d", w=self.size)

    def from_experts(self, buffers: Tensor) -> Tensor:
        by_process = rearrange(buffers, "e (w n) d -> (w e) n d", w=self.size)
        return _Swap.apply(by_process, self.group, 1 / self.size)


def spread_experts(model: Model, group: dist.ProcessGroup | None = None) -> set[str]:
    """Leave each process its share of every layer's experts; the names of the parameters that are now its own.

    To be called before optimisers are built. The names are what `replicate_rest` must not reduce.
    """
    size, rank, own = dist.get_world_size(group), dist.get_rank(group), set[str]()
    for name, module in model.named_modules():
        if not isinstance(module, ExpertMlp):
            continue
        num = module.config.num_experts
        if num % size:
            raise ConfigError(f"{num} experts cannot be spread evenly over {size} processes.")
        share = slice(rank * num // size, (rank + 1) * num // size)
        for part, layer in (("up", module.experts.up), ("down", module.experts.down)):
            assert isinstance(layer, ExpertLinear)
            layer.weight = nn.Parameter(layer.weight.detach()[share].clone())
            layer.bias = nn.Parameter(layer.bias.detach()[share].clone())
            own |= {f"{name}.experts.{part}.weight", f"{name}.experts.{part}.bias"}
        module.exchange = ProcessExchange(group)
    return own


def replicate_rest(model: Model, own: set[str], device: torch.device) -> DistributedDataParallel:
    """The wrapper that averages the gradients of all but each process's own parameters."""
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, sorted(own))
    return DistributedDataParallel(model, device_ids=[device] if device.type == "cuda" else None)


def whole_state(model: Model, own: set[str], group: dist.ProcessGroup | None = None) -> dict[str, Tensor]:
    """The state dict of the model with all experts, gathered by all processes together."""
    state: dict[str, Tensor] = {}
    for name, value in model.state_dict().items():
        if name in own:
            parts = [torch.empty_like(value) for _ in range(dist.get_world_size(group))]
            dist.all_gather(parts, value.detach().contiguous(), group=group)
            state[name] = torch.cat(parts)
        else:
            state[name] = value.detach()
    return state

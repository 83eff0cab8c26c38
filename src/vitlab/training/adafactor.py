"""The Adafactor of "Scaling Vision Transformers" (arXiv 2106.04560, section 3.4): about half of Adam's memory.

The second moment is factored into a row and a column as in Adafactor (arXiv 1804.04235), its decay 1 - t^-.8 but never
above .999; the first moment is kept, in bfloat16; the rate is a schedule's and not relative to the weights.
"""

from typing import Any, final

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate

DECAY_POWER, LARGEST_DECAY = 0.8, 0.999
SMALLEST = 1e-30  # added to squared gradients
FACTORED_FROM = 32  # the shorter side of a matrix; below it the second moment is kept whole


@final
class Adafactor(torch.optim.Optimizer):
    """Factored second moments, a half-precision first moment, updates of limited size; weight decay decoupled.

    A tensor of more than two axes is a stack of matrices, its last two axes (the layers of experts). `update_clip` is
    the largest root mean square of a tensor's update before momentum; None: unlimited, as in the authors' code. As
    with torch's fused optimizers the rate may lie on the device, gradients are divided by `grad_scale` where it is set,
    and nothing moves where `found_inf` is set and not 0.
    """

    found_inf: Tensor | None = None
    grad_scale: Tensor | None = None

    def __init__(self, params: Any, lr: float, momentum: float = 0.9, update_clip: float | None = 1.0) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "update_clip": update_clip, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        assert closure is None
        made = None if self.found_inf is None else self.found_inf <= 0
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    gradient = p.grad if self.grad_scale is None else p.grad / self.grad_scale
                    self._move(p, gradient, group, made)

    def _move(self, p: Tensor, gradient: Tensor, group: dict[str, Any], made: Tensor | None) -> None:
        state, lr = self.state[p], group["lr"]
        if not state:
            _begin(state, p, on_device=isinstance(lr, Tensor))
        if made is not None:
            gradient = torch.where(made, gradient, 0.0)
        state["step"] += 1 if made is None else made
        weight = _weight(state["step"])
        squares = gradient.square() + SMALLEST
        if "row" in state:
            row = _keep(state["row"], _everywhere(squares.mean(dim=-1)), weight, made)
            column = _keep(state["column"], _everywhere(squares.mean(dim=-2)), weight, made)
            share = row / row.mean(dim=-1, keepdim=True)
            update = gradient * share.rsqrt()[..., None] * column.rsqrt()[..., None, :]
        else:
            update = gradient * _keep(state["square"], squares, weight, made).rsqrt()
        if group["update_clip"] is not None:
            size = update.square().mean().sqrt()
            update = update / (size / group["update_clip"]).clamp(min=1)
        update = _keep(state["momentum"], update, 1 - group["momentum"], made)
        step, decay = update * lr, 1 - lr * group["weight_decay"]
        p.copy_(p * decay - step if made is None else torch.where(made, p * decay - step, p))

    def __setstate__(self, state: dict[str, Any]) -> None:
        """After reading, for which torch gives every tensor the parameter's precision."""
        super().__setstate__(state)
        for kept in self.state.values():
            kept["momentum"] = kept["momentum"].to(torch.bfloat16)


def _begin(state: dict[str, Any], p: Tensor, *, on_device: bool) -> None:
    state["step"] = torch.zeros((), device=p.device if on_device else "cpu")
    state["momentum"] = torch.zeros_like(p, dtype=torch.bfloat16)
    if p.ndim >= 2 and min(p.shape[-2:]) >= FACTORED_FROM:
        zeros = torch.zeros_like(p)
        state["row"], state["column"] = _everywhere(zeros.mean(dim=-1)), _everywhere(zeros.mean(dim=-2))
    else:
        state["square"] = torch.zeros_like(p)


def _weight(step: Tensor) -> float | Tensor:
    """What a step's squares weigh: 1 - decay, on the device where the step is counted there."""
    if step.is_cuda:
        return (step.clamp(min=1) ** -DECAY_POWER).clamp(min=1 - LARGEST_DECAY)
    return max(max(step.item(), 1) ** -DECAY_POWER, 1 - LARGEST_DECAY)


def _keep(state: Tensor, value: Tensor, weight: float | Tensor, made: Tensor | None) -> Tensor:
    """The moving average with one more value, in the value's precision; the state keeps it in its own."""
    old = state.to(value.dtype)
    new = old + (value - old) * weight
    state.copy_(new if made is None else torch.where(made, new, old))
    return new


def _everywhere(value: Tensor) -> Tensor:
    """A row or a column whole in every process: small beside its matrix, of which each has a part."""
    if isinstance(value, DTensor):
        return value.redistribute(placements=[Replicate()] * value.device_mesh.ndim)
    return value

"""Norms of residual networks with backward passes of their own, where autograd or torch's kernel takes far longer.

Both are the plain formulas with their sums taken in another order; a compiler gets the formulas themselves.
"""

from typing import Any, Final

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

TINY: Final = 1e-20  # not 0, for a constant row
FEW: Final = 4  # channels a group; with eight and more torch's kernel fills the processor's vectors


def by_deviation(w: Float[Tensor, "o k"], eps: float) -> Float[Tensor, "o k"]:
    """(w - mean) / (std + eps) of each row."""
    if torch.compiler.is_compiling():
        centred = w - w.mean(dim=1, keepdim=True)
        rstd = torch.rsqrt(centred.square().mean(dim=1, keepdim=True) + TINY)
        return centred * (rstd / (1 + eps * rstd))  # as below; std's own gradient takes more passes
    return _ByDeviation.apply(w, eps)


class _ByDeviation(torch.autograd.Function):
    """A fused layer norm and a factor a row, in both directions.

    With n = (w - mean) / std and c = std / (std + eps) the answer is c n, and a gradient g by it is
    c / std (g - mean(g) - c n mean(g n)) by w: sqrt(c) times what a layer norm of deviation std / sqrt(c) gives.
    """

    @staticmethod
    def forward(ctx: Any, w: Tensor, eps: float) -> Tensor:
        n, mean, rstd = torch.native_layer_norm(w, w.shape[1:], None, None, TINY)
        ctx.save_for_backward(w, mean, rstd)
        ctx.eps = eps
        return n.mul_(1 / (1 + eps * rstd))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        w, mean, rstd = ctx.saved_tensors
        root = (1 + ctx.eps * rstd) ** -0.5
        by_w, _, _ = torch.ops.aten.native_layer_norm_backward(
            g.contiguous(), w, w.shape[1:], mean, rstd * root, None, None, [True, False, False]
        )
        return by_w.mul_(root), None


def group_norm(norm: nn.GroupNorm, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c h w"]:
    """The norm of x, with a quicker gradient on a CPU where channels are last and few to a group."""
    slow = (
        x.requires_grad
        and x.device.type == "cpu"
        and x.dtype == norm.weight.dtype
        and norm.num_channels <= FEW * norm.num_groups
        and x.is_contiguous(memory_format=torch.channels_last)
        and not torch.compiler.is_compiling()
    )
    if not slow:
        return norm(x)
    return _FewChannels.apply(x, norm.weight, norm.bias, norm.num_groups, norm.eps)


class _FewChannels(torch.autograd.Function):
    """torch's group norm, whose backward kernel takes each place group by group: two numbers at a time for 64 channels.

    The gradient by x is a g + b x + c, with an a for each channel, a b and a c for each group. Here whole rows of
    channels are taken at a time, in five passes over the map.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float) -> Tensor:
        count, channels, height, width = x.shape
        y, mean, rstd = torch.native_group_norm(x, weight, bias, count, channels, height * width, groups, eps)
        ctx.save_for_backward(x, weight, mean, rstd)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        x, weight, mean, rstd = ctx.saved_tensors
        maps, gradients = (rearrange(values, "b c h w -> b (h w) c") for values in (x, g))
        places, each = maps.shape[1], x.shape[1] // rstd.shape[1]
        mean, rstd = (values.repeat_interleave(each, dim=1) for values in (mean, rstd))  # of channels

        def shared(values: Float[Tensor, "b c"]) -> Float[Tensor, "b c"]:
            """The mean over a group's channels and places, given sums over places."""
            return (values.unflatten(1, (-1, each)).sum(dim=2) / (each * places)).repeat_interleave(each, dim=1)

        products = gradients * maps
        by_bias = gradients.sum(dim=1)  # of each image, as the next
        by_weight = (products.sum(dim=1) - by_bias * mean) * rstd
        b = -rstd.square() * shared(weight * by_weight)
        c = -b * mean - rstd * shared(weight * by_bias)
        by_x = torch.addcmul(c[:, None], maps, b[:, None], out=products).addcmul_(gradients, (rstd * weight)[:, None])
        by_x = rearrange(by_x, "b (h w) c -> b c h w", h=x.shape[2])
        return by_x, by_weight.sum(dim=0), by_bias.sum(dim=0), None, None

"""Layer norms before linear layers, compiled for training on a GPU: scale and shift move into the layers' weights.

By the tokens their gradients are long sums, of which a layer has four; a narrow model's step spends a twentieth on
them. By the weights, W (s n + t) + b = (W s) n + (W t + b), they are sums over the layer's outputs. Weights are small:
those of all layers are made, and their gradients taken apart, in one kernel each.
"""

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call

from vitlab.core.compiling import TRITON

WIDEST: Final = 512  # measured at 384 (a gain) and 768 (none): docs/log.md

Reader: TypeAlias = tuple[nn.LayerNorm, nn.Module, str]  # a norm, and the part that reads it by this linear layer alone
Weights: TypeAlias = dict[str, Tensor]  # of a part, in the place of its own


def taken_in(readers: Sequence[Reader], z: Float[Tensor, "b n d"]) -> list[Weights | None]:
    """For each part the weights with its norm's scale and shift in them; None: it reads the norm as it is."""
    found: list[Weights | None] = [None] * len(readers)
    places: list[int] = []
    norms: list[nn.LayerNorm] = []
    layers: list[nn.Linear] = []
    for i, (norm, part, name) in enumerate(readers):
        layer = getattr(part, name, None)
        if type(layer) is nn.Linear and worth_it(norm, layer, z):
            places.append(i)
            norms.append(norm)
            layers.append(layer)
    if layers:
        made = fold(
            [layer.weight for layer in layers],
            [layer.bias for layer in layers],
            [norm.weight for norm in norms],
            [norm.bias for norm in norms],
            torch.get_autocast_dtype("cuda") if z.is_cuda and torch.is_autocast_enabled("cuda") else z.dtype,
        )
        for i, weight, bias in zip(places, made[: len(layers)], made[len(layers) :], strict=True):
            name = readers[i][2]
            found[i] = {f"{name}.weight": weight, f"{name}.bias": bias}
    return found


def after(reader: Reader, weights: Weights | None, z: Float[Tensor, "b n d"], *others: Any) -> Any:
    """part(norm(z), *others)."""
    norm, part, _ = reader
    if weights is None:
        return part(norm(z), *others)
    return functional_call(part, weights, (F.layer_norm(z, norm.normalized_shape, eps=norm.eps), *others))


def worth_it(norm: nn.LayerNorm, layer: nn.Linear, z: Tensor) -> bool:
    learnt = (norm.weight, norm.bias, layer.weight, layer.bias)
    return (
        torch.compiler.is_compiling()
        and TRITON
        and z.is_cuda
        and z.shape[-1] <= WIDEST
        and norm.training
        and torch.is_grad_enabled()
        and all(type(value) is nn.Parameter and value.requires_grad for value in learnt)  # none is missing or sharded
        and all(value.dtype == torch.float32 for value in learnt)
    )


@torch.library.custom_op("vitlab::fold", mutates_args=())
def fold(
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    scales: Sequence[Tensor],
    shifts: Sequence[Tensor],
    to: torch.dtype,
) -> list[Tensor]:
    """W s of every layer, and behind them W t + b of every layer."""
    if weights[0].is_cuda:
        from vitlab.core import folding_kernels as kernels

        scaled, moved = kernels.forward(weights, biases, scales, shifts, to)
    else:
        scaled = [(w * s).to(to) for w, s in zip(weights, scales, strict=True)]
        moved = [(b + w @ t).to(to) for w, b, t in zip(weights, biases, shifts, strict=True)]
    return [*scaled, *moved]


@torch.library.custom_op("vitlab::fold_backward", mutates_args=())
def fold_backward(
    by_scaled: Sequence[Tensor],
    by_moved: Sequence[Tensor],
    weights: Sequence[Tensor],
    scales: Sequence[Tensor],
    shifts: Sequence[Tensor],
) -> list[Tensor]:
    """The gradients by every layer's weights, behind them by the biases, by the scales, by the shifts."""
    if weights[0].is_cuda:
        from vitlab.core import folding_kernels as kernels

        made = kernels.backward(by_scaled, by_moved, weights, scales, shifts)
    else:
        g, h = ([t.to(weights[0].dtype, copy=True) for t in given] for given in (by_scaled, by_moved))
        by_weights = [x * s + y[:, None] * t for x, y, s, t in zip(g, h, scales, shifts, strict=True)]
        by_scales = [(x * w).sum(dim=0) for x, w in zip(g, weights, strict=True)]
        made = [by_weights, h, by_scales, [y @ w for y, w in zip(h, weights, strict=True)]]
    return [value for values in made for value in values]


@fold.register_fake
def _(weights: Sequence[Tensor], biases: Sequence[Tensor], *others: Any) -> list[Tensor]:
    return [_like(value, others[-1]) for value in (*weights, *biases)]


@fold_backward.register_fake
def _(by_scaled: Sequence[Tensor], by_moved: Sequence[Tensor], weights: Sequence[Tensor], *others: Any) -> list[Tensor]:
    del by_scaled
    scales, shifts = others
    return [_like(value, weights[0].dtype) for value in (*weights, *by_moved, *scales, *shifts)]


def _like(value: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.empty_like(value, dtype=dtype, memory_format=torch.contiguous_format)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    del output
    weights, _, scales, shifts, _ = inputs
    ctx.save_for_backward(*weights, *scales, *shifts)


def _backward(ctx: Any, gradients: list[Tensor]) -> tuple[list[Tensor] | None, ...]:
    num = len(gradients) // 2
    kept = [list(ctx.saved_tensors[i * num : (i + 1) * num]) for i in range(3)]
    made = fold_backward(gradients[:num], gradients[num:], *kept)
    return *(made[i * num : (i + 1) * num] for i in range(4)), None


fold.register_autograd(_backward, setup_context=_keep)

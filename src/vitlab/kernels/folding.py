"""Layer norms before linear layers, compiled for training on a GPU: scale and shift move into the layers' weights.

By the tokens their gradients are long sums, of which a layer has four; a narrow model's step spends a twentieth on
them. By the weights, W (s n + t) + b = (W s) n + (W t + b), they are sums over the layer's outputs. Weights are small:
those of all layers are made, and their gradients taken apart, in one kernel each.

Layers differ in their outputs, not in their inputs. Where their tensors lie is in the kernels' arguments: a table
on the device would have to be sent, and in a captured step a copy costs more than the kernel.
"""

# Triton's language:
# pyright: reportMissingParameterType=false, reportIndexIssue=false

from collections.abc import Iterable, Sequence
from typing import Any, Final

import torch
from torch import Tensor, nn

from vitlab.kernels.language import TRITON, tl, triton

WIDEST: Final = 512  # measured at 384 (a gain) and 768 (none): docs/log.md

MOST = 48  # layers per launch: all addresses fit into a kernel's arguments, which are 4 KB at most
ROWS = 8  # that a program of the forward pass makes, all columns of them
COLUMNS, STEP = 32, 256  # that a program of the backward pass makes, all rows of them, so many rows at a time


def folded(module: nn.Module, pairs: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """What to call a module with (`torch.func.functional_call`) so that norms are in the layers behind them.

    A pair names a norm and the linear layer that alone reads it. Nothing where nothing is gained, so that a call with
    what this gives finds nothing more to fold.
    """
    chosen = [
        (norm, layer)
        for norm, layer in pairs
        if can_fold(module.get_submodule(norm), module.get_submodule(layer)) and worth_it(module.get_submodule(layer))
    ]
    if not chosen:
        return {}
    weights, biases, scales, shifts = (
        [module.get_parameter(f"{pair[i]}.{name}") for pair in chosen]
        for i, name in ((1, "weight"), (1, "bias"), (0, "weight"), (0, "bias"))
    )
    half = weights[0].is_cuda and torch.is_autocast_enabled("cuda")
    made = fold(weights, biases, scales, shifts, torch.get_autocast_dtype("cuda") if half else weights[0].dtype)
    found: dict[str, Any] = {}
    for i, (norm, layer) in enumerate(chosen):
        found |= {f"{norm}.weight": None, f"{norm}.bias": None}  # no scale, no shift: not even a pass over the tokens
        found |= {f"{layer}.weight": made[i], f"{layer}.bias": made[len(chosen) + i]}
    return found


def can_fold(norm: nn.Module, layer: nn.Module) -> bool:
    """Whether all four tensors are trained here, and are not missing, sharded, adapted or folded already."""
    if not (type(norm) is nn.LayerNorm and type(layer) is nn.Linear and norm.training and torch.is_grad_enabled()):
        return False
    learnt = (norm.weight, norm.bias, layer.weight, layer.bias)
    return all(type(value) is nn.Parameter and value.requires_grad for value in learnt)


def worth_it(layer: nn.Module) -> bool:
    """Whether it makes a step faster."""
    weight = layer.weight
    assert isinstance(weight, Tensor)
    narrow = weight.shape[1] <= WIDEST and weight.dtype == torch.float32
    return torch.compiler.is_compiling() and TRITON and weight.is_cuda and narrow


@torch.library.custom_op("vitlab::fold", mutates_args=())
def fold(
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    scales: Sequence[Tensor],
    shifts: Sequence[Tensor],
    to: torch.dtype,
) -> list[Tensor]:
    """W s of every layer, and behind them W t + b of every layer."""
    if not weights[0].is_cuda:
        scaled = [(w * s).to(to) for w, s in zip(weights, scales, strict=True)]
        return scaled + [(b + w @ t).to(to) for w, b, t in zip(weights, biases, shifts, strict=True)]
    scaled, moved = [_like(w, to) for w in weights], [_like(b, to) for b in biases]
    for tensors in _parts(weights, biases, scales, shifts, scaled, moved):
        rows, width = tuple(len(w) for w in tensors[0]), tensors[0][0].shape[1]
        firsts = tuple(sum(triton.cdiv(n, ROWS) for n in rows[:i]) for i in range(len(rows)))
        programs = firsts[-1] + triton.cdiv(rows[-1], ROWS)
        padded = triton.next_power_of_2(width)
        with torch.cuda.device(weights[0].device):
            _forward_kernel[(programs,)](
                *map(_addresses, tensors),
                rows,
                firsts,
                width,
                _element(to),
                padded,
                ROWS,
                _aligned(tensors),
                num_warps=8,
            )
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
    if not weights[0].is_cuda:
        g, h = ([t.to(weights[0].dtype, copy=True) for t in given] for given in (by_scaled, by_moved))
        by_weights = [x * s + y[:, None] * t for x, y, s, t in zip(g, h, scales, shifts, strict=True)]
        by_scales = [(x * w).sum(dim=0) for x, w in zip(g, weights, strict=True)]
        return by_weights + h + by_scales + [y @ w for y, w in zip(h, weights, strict=True)]
    made = [[_like(t, torch.float32) for t in like] for like in (weights, by_moved, scales, shifts)]
    for tensors in _parts(by_scaled, by_moved, weights, scales, shifts, *made):
        rows, width = tuple(len(w) for w in tensors[2]), tensors[2][0].shape[1]
        with torch.cuda.device(weights[0].device):
            _backward_kernel[(triton.cdiv(width, COLUMNS), len(rows))](
                *map(_addresses, tensors),
                rows,
                width,
                _element(by_scaled[0].dtype),
                max(rows),
                COLUMNS,
                STEP,
                _aligned(tensors),
                num_warps=8,
            )
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


def _parts(*lists: Sequence[Tensor]) -> list[list[list[Tensor]]]:
    """As many layers of each list as a launch takes."""
    starts = range(0, len(lists[0]), MOST)
    return [[[t.contiguous() for t in tensors[start : start + MOST]] for tensors in lists] for start in starts]


def _addresses(tensors: list[Tensor]) -> tuple[int, ...]:
    return tuple(t.data_ptr() for t in tensors)


def _aligned(lists: list[list[Tensor]]) -> int:
    """Bytes that every matrix's address is a multiple of: with 16 a thread reads several numbers at once."""
    return 16 if all(t.data_ptr() % 16 == 0 for tensors in lists for t in tensors if t.ndim == 2) else 1


def _element(dtype: torch.dtype) -> Any:
    return {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16, torch.float32: tl.float32}[dtype]


@triton.jit
def _at(address, KIND: tl.constexpr):
    return address.to(tl.pointer_type(KIND))


@triton.jit
def _matrix(address, KIND: tl.constexpr, ALIGNED: tl.constexpr):
    return tl.multiple_of(address.to(tl.pointer_type(KIND)), ALIGNED)


@triton.jit
def _forward_kernel(
    weights,
    biases,
    scales,
    shifts,
    scaled,
    moved,
    rows,
    firsts,
    width,
    KIND: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    w, b, s, t, to, to_bias = weights[0], biases[0], scales[0], shifts[0], scaled[0], moved[0]
    num, first = rows[0], firsts[0]
    for i in tl.static_range(1, len(weights)):
        here = tl.program_id(0) >= firsts[i]
        w, b = tl.where(here, weights[i], w), tl.where(here, biases[i], b)
        s, t = tl.where(here, scales[i], s), tl.where(here, shifts[i], t)
        to, to_bias = tl.where(here, scaled[i], to), tl.where(here, moved[i], to_bias)
        num, first = tl.where(here, rows[i], num), tl.where(here, firsts[i], first)
    row, column = (tl.program_id(0) - first) * ROWS + tl.arange(0, ROWS), tl.arange(0, WIDTH)
    places, there = row[:, None] * width + column[None, :], (row < num)[:, None] & (column < width)[None, :]
    weight = tl.load(_matrix(w, tl.float32, ALIGNED) + places, there, 0.0)
    scale = tl.load(_at(s, tl.float32) + column, column < width, 0.0)
    shift = tl.load(_at(t, tl.float32) + column, column < width, 0.0)
    bias = tl.load(_at(b, tl.float32) + row, row < num, 0.0) + tl.sum(weight * shift[None, :], 1)
    tl.store(_matrix(to, KIND, ALIGNED) + places, (weight * scale[None, :]).to(KIND), there)
    tl.store(_at(to_bias, KIND) + row, bias.to(KIND), row < num)


@triton.jit
def _backward_kernel(
    by_scaled,
    by_moved,
    weights,
    scales,
    shifts,
    by_weights,
    by_biases,
    by_scales,
    by_shifts,
    rows,
    width,
    KIND: tl.constexpr,
    MOST_ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    STEP: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    g, h, w, s, t, num = by_scaled[0], by_moved[0], weights[0], scales[0], shifts[0], rows[0]
    to_weight, to_bias, to_scale, to_shift = by_weights[0], by_biases[0], by_scales[0], by_shifts[0]
    for i in tl.static_range(1, len(weights)):
        here = tl.program_id(1) == i
        g, h, w = tl.where(here, by_scaled[i], g), tl.where(here, by_moved[i], h), tl.where(here, weights[i], w)
        s, t, num = tl.where(here, scales[i], s), tl.where(here, shifts[i], t), tl.where(here, rows[i], num)
        to_weight, to_bias = tl.where(here, by_weights[i], to_weight), tl.where(here, by_biases[i], to_bias)
        to_scale, to_shift = tl.where(here, by_scales[i], to_scale), tl.where(here, by_shifts[i], to_shift)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < width
    scale, shift = tl.load(_at(s, tl.float32) + column, inside, 0.0), tl.load(_at(t, tl.float32) + column, inside, 0.0)
    by_scale, by_shift = tl.zeros((COLUMNS,), tl.float32), tl.zeros((COLUMNS,), tl.float32)
    for start in range(0, MOST_ROWS, STEP):
        row = start + tl.arange(0, STEP)
        places, there = row[:, None] * width + column[None, :], (row < num)[:, None] & inside[None, :]
        weight = tl.load(_matrix(w, tl.float32, ALIGNED) + places, there, 0.0)
        gradient = tl.load(_matrix(g, KIND, ALIGNED) + places, there, 0.0).to(tl.float32)
        of_bias = tl.load(_at(h, KIND) + row, row < num, 0.0).to(tl.float32)
        by_scale += tl.sum(gradient * weight, 0)
        by_shift += tl.sum(of_bias[:, None] * weight, 0)
        by_weight = gradient * scale[None, :] + of_bias[:, None] * shift[None, :]
        tl.store(_matrix(to_weight, tl.float32, ALIGNED) + places, by_weight, there)
        if tl.program_id(0) == 0:
            tl.store(_at(to_bias, tl.float32) + row, of_bias, row < num)
    tl.store(_at(to_scale, tl.float32) + column, by_scale, inside)
    tl.store(_at(to_shift, tl.float32) + column, by_shift, inside)

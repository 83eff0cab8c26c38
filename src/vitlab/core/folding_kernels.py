"""Triton kernels that fold norms into the layers behind them (`models.folding`); imported where there is a GPU only.

Layers differ in their outputs, not in their inputs. Where their tensors lie is told by the kernels' arguments: a table
on the device would have to be sent, and in a captured step a copy costs more than the kernel.
"""

# pyright: reportMissingImports=false, reportMissingParameterType=false, reportIndexIssue=false

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

MOST = 48  # layers per launch: all addresses fit into a kernel's arguments, which are 4 KB at most
ROWS = 8  # that a program of the forward pass makes, all columns of them
COLUMNS, STEP = 32, 256  # that a program of the backward pass makes, all rows of them, so many rows at a time


def forward(
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    scales: Sequence[Tensor],
    shifts: Sequence[Tensor],
    to: torch.dtype,
) -> tuple[list[Tensor], list[Tensor]]:
    """W s and W t + b of every layer."""
    scaled = [torch.empty_like(w, dtype=to, memory_format=torch.contiguous_format) for w in weights]
    moved = [torch.empty_like(b, dtype=to, memory_format=torch.contiguous_format) for b in biases]
    for tensors in _parts(weights, biases, scales, shifts, scaled, moved):
        rows, width = tuple(len(w) for w in tensors[0]), tensors[0][0].shape[1]
        firsts = tuple(sum(triton.cdiv(n, ROWS) for n in rows[:i]) for i in range(len(rows)))
        programs = firsts[-1] + triton.cdiv(rows[-1], ROWS)
        padded = triton.next_power_of_2(width)
        with torch.cuda.device(weights[0].device):
            _forward[(programs,)](
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
    return scaled, moved


def backward(
    by_scaled: Sequence[Tensor],
    by_moved: Sequence[Tensor],
    weights: Sequence[Tensor],
    scales: Sequence[Tensor],
    shifts: Sequence[Tensor],
) -> list[list[Tensor]]:
    """The gradients by weights, biases, scales and shifts."""
    made = [[torch.empty_like(t, dtype=torch.float32) for t in like] for like in (weights, by_moved, scales, shifts)]
    for tensors in _parts(by_scaled, by_moved, weights, scales, shifts, *made):
        rows, width = tuple(len(w) for w in tensors[2]), tensors[2][0].shape[1]
        with torch.cuda.device(weights[0].device):
            _backward[(triton.cdiv(width, COLUMNS), len(rows))](
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
    return made


def _parts(*lists: Sequence[Tensor]) -> list[list[list[Tensor]]]:
    """As many layers of each list as a launch takes."""
    starts = range(0, len(lists[0]), MOST)
    return [[[t.contiguous() for t in tensors[start : start + MOST]] for tensors in lists] for start in starts]


def _addresses(tensors: list[Tensor]) -> tuple[int, ...]:
    return tuple(t.data_ptr() for t in tensors)


def _aligned(lists: list[list[Tensor]]) -> int:
    """Bytes that every matrix's address is a multiple of: with 16 a thread reads several numbers at once."""
    return 16 if all(t.data_ptr() % 16 == 0 for tensors in lists for t in tensors if t.ndim == 2) else 1


def _element(dtype: torch.dtype) -> tl.dtype:
    return {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16, torch.float32: tl.float32}[dtype]


@triton.jit
def _at(address, KIND: tl.constexpr):
    return address.to(tl.pointer_type(KIND))


@triton.jit
def _matrix(address, KIND: tl.constexpr, ALIGNED: tl.constexpr):
    return tl.multiple_of(address.to(tl.pointer_type(KIND)), ALIGNED)


@triton.jit
def _forward(
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
def _backward(
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

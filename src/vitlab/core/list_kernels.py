"""Triton kernels that go over a list of tensors at once (`training.passes`); imported where there is a GPU only.

A list is given by a table of addresses, and cut into chunks of BLOCK numbers: (tensor, start, numbers of the tensor).
"""

# pyright: reportMissingImports=false, reportMissingParameterType=false, reportIndexIssue=false

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 2048
ALIGNED = 16  # bytes that every address is a multiple of
WARPS = 8
FACTORS = 6  # of a tensor in AdamW's step


def squares(addresses: Tensor, chunks: Tensor) -> Tensor:
    """The sum of the squares of each chunk; addresses [tensors, 1]."""
    out = torch.empty(len(chunks), device=chunks.device)
    with torch.cuda.device(chunks.device):
        _squares[(len(chunks),)](addresses, chunks, out, BLOCK, ALIGNED, num_warps=WARPS)
    return out


def adamw(addresses: Tensor, chunks: Tensor, numbers: Tensor, bad: Tensor | None, scale: Tensor | None) -> None:
    """A step of every chunk, with gradients divided by `scale`, or none where `bad` is not 0.

    addresses [tensors, 6]: weights, gradients, means, squares, the rate, and the count of steps, to which this one is
    added; numbers [tensors, 4] in float64: the decay, both betas, eps.
    """
    factors = torch.empty(len(numbers), FACTORS, device=chunks.device)
    with torch.cuda.device(chunks.device):
        _factors[(len(numbers),)](addresses, numbers, bad, factors, FACTORS, num_warps=1)
        _adamw[(len(chunks),)](addresses, chunks, factors, bad, scale, BLOCK, ALIGNED, FACTORS, num_warps=WARPS)


@triton.jit
def _at(address, ALIGNED: tl.constexpr):
    """The numbers at an address."""
    return tl.multiple_of(tl.load(address).to(tl.pointer_type(tl.float32)), ALIGNED)


@triton.jit
def _squares(addresses, chunks, out, BLOCK: tl.constexpr, ALIGNED: tl.constexpr):
    chunk = chunks + 3 * tl.program_id(0)
    which, start, size = tl.load(chunk), tl.multiple_of(tl.load(chunk + 1), BLOCK), tl.load(chunk + 2)
    places = start + tl.arange(0, BLOCK)
    g = _at(addresses + which, ALIGNED)
    if start + BLOCK <= size:  # noqa: SIM108 - one of the loads is made
        values = tl.load(g + places)
    else:
        values = tl.load(g + places, places < size, 0.0)
    tl.store(out + tl.program_id(0), tl.sum(values * values))


@triton.jit
def _factors(addresses, numbers, bad, factors, FACTORS: tl.constexpr):
    """Count the step, and find what it multiplies by: powers in float64, once a tensor instead of once a chunk."""
    which = tl.program_id(0)
    row, own, out = addresses + 6 * which, numbers + 4 * which, factors + FACTORS * which
    rate = tl.load(tl.load(row + 4).to(tl.pointer_type(tl.float32))).to(tl.float64)
    steps = tl.load(row + 5).to(tl.pointer_type(tl.float32))
    count = tl.load(steps) + 1
    if bad is not None:
        count -= tl.load(bad)
    tl.store(steps, count)
    count = count.to(tl.float64)
    decay, first, second, eps = tl.load(own), tl.load(own + 1), tl.load(own + 2), tl.load(own + 3)
    tl.store(out, (1 - rate * decay).to(tl.float32))
    tl.store(out + 1, (1 - first).to(tl.float32))
    tl.store(out + 2, (1 - second).to(tl.float32))
    tl.store(out + 3, (rate / (1 - tl.exp2(count * tl.log2(first)))).to(tl.float32))
    tl.store(out + 4, tl.sqrt(1 - tl.exp2(count * tl.log2(second))).to(tl.float32))
    tl.store(out + 5, eps.to(tl.float32))


@triton.jit
def _adamw(addresses, chunks, factors, bad, scale, BLOCK: tl.constexpr, ALIGNED: tl.constexpr, FACTORS: tl.constexpr):
    chunk = chunks + 3 * tl.program_id(0)
    which, start, size = tl.load(chunk), tl.multiple_of(tl.load(chunk + 1), BLOCK), tl.load(chunk + 2)
    row, own = addresses + 6 * which, factors + FACTORS * which
    p, g, m, v = _at(row, ALIGNED), _at(row + 1, ALIGNED), _at(row + 2, ALIGNED), _at(row + 3, ALIGNED)
    shrink, new, newer = tl.load(own), tl.load(own + 1), tl.load(own + 2)
    size_of_step, root, eps = tl.load(own + 3), tl.load(own + 4), tl.load(own + 5)
    places = start + tl.arange(0, BLOCK)
    factor = 1.0
    if scale is not None:
        factor = 1.0 / tl.load(scale)
    good = True
    if bad is not None:
        good = tl.load(bad) == 0
    if good:
        if start + BLOCK <= size:
            _move(p, g, m, v, places, None, factor, shrink, new, newer, size_of_step, root, eps)
        else:
            _move(p, g, m, v, places, places < size, factor, shrink, new, newer, size_of_step, root, eps)


@triton.jit
def _move(p, g, m, v, places, there, factor, shrink, new, newer, size_of_step, root, eps):
    weight = tl.load(p + places, there)
    gradient = tl.load(g + places, there) * factor
    mean = tl.load(m + places, there)
    square = tl.load(v + places, there)
    mean += new * (gradient - mean)
    square += newer * (gradient * gradient - square)
    weight = weight * shrink - size_of_step * mean / (tl.sqrt(square) / root + eps)
    tl.store(p + places, weight, there)
    tl.store(m + places, mean, there)
    tl.store(v + places, square, there)

"""The Triton kernels of attention over few tokens (`models.short_attention`); imported where there is a GPU only."""

# pyright: reportMissingImports=false, reportMissingParameterType=false, reportIndexIssue=false

import torch
import triton
import triton.language as tl
from torch import Tensor

LOG2_E = tl.constexpr(1.4426950408889634)


def forward(qkv: Tensor, heads: int) -> Tensor:
    batch, tokens, three = qkv.shape
    out = qkv.new_empty(batch, tokens, three // 3)
    width, block, warps = _tiles(three // (3 * heads), tokens)
    with torch.cuda.device(qkv.device):
        _forward[(batch * heads,)](qkv, out, tokens, heads, width**-0.5, width, block, num_warps=warps)
    return out


def backward(gradient: Tensor, qkv: Tensor, heads: int) -> Tensor:
    batch, tokens, three = qkv.shape
    out = torch.empty_like(qkv)
    width, block, warps = _tiles(three // (3 * heads), tokens)
    with torch.cuda.device(qkv.device):
        _backward[(batch * heads,)](qkv, gradient, out, tokens, heads, width**-0.5, width, block, num_warps=warps)
    return out


def _tiles(width: int, tokens: int) -> tuple[int, int, int]:
    block = max(16, triton.next_power_of_2(tokens))
    return width, block, 4 if block <= 64 else 8


@triton.jit
def _probabilities(q, k, tokens, scale, BLOCK: tl.constexpr):
    scores = tl.dot(q, tl.trans(k)) * (scale * LOG2_E)
    scores = tl.where(tl.arange(0, BLOCK)[None, :] < tokens, scores, float("-inf"))
    powers = tl.exp2(scores - tl.max(scores, 1)[:, None])
    return powers / tl.sum(powers, 1)[:, None]


@triton.jit
def _places(tokens, stride, image, head, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """The places of a head's rows in [B, N, stride], and which of them are there."""
    rows = tl.arange(0, BLOCK)
    start = image.to(tl.int64) * tokens * stride + head * WIDTH
    return start + rows[:, None] * stride + tl.arange(0, WIDTH)[None, :], (rows < tokens)[:, None]


@triton.jit
def _forward(qkv, out, tokens, heads, scale, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    image, head = tl.program_id(0) // heads, tl.program_id(0) % heads
    places, there = _places(tokens, 3 * heads * WIDTH, image, head, WIDTH, BLOCK)
    q = tl.load(qkv + places, there, 0.0)
    k = tl.load(qkv + places + heads * WIDTH, there, 0.0)
    v = tl.load(qkv + places + 2 * heads * WIDTH, there, 0.0)
    made = tl.dot(_probabilities(q, k, tokens, scale, BLOCK).to(v.dtype), v)
    places, there = _places(tokens, heads * WIDTH, image, head, WIDTH, BLOCK)
    tl.store(out + places, made.to(v.dtype), there)


@triton.jit
def _backward(qkv, gradient, out, tokens, heads, scale, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    image, head = tl.program_id(0) // heads, tl.program_id(0) % heads
    places, there = _places(tokens, heads * WIDTH, image, head, WIDTH, BLOCK)
    by_out = tl.load(gradient + places, there, 0.0)
    places, there = _places(tokens, 3 * heads * WIDTH, image, head, WIDTH, BLOCK)
    q = tl.load(qkv + places, there, 0.0)
    k = tl.load(qkv + places + heads * WIDTH, there, 0.0)
    v = tl.load(qkv + places + 2 * heads * WIDTH, there, 0.0)
    weights = _probabilities(q, k, tokens, scale, BLOCK)
    by_v = tl.dot(tl.trans(weights.to(v.dtype)), by_out)
    tl.store(out + places + 2 * heads * WIDTH, by_v.to(v.dtype), there)
    by_weights = tl.dot(by_out, tl.trans(v))
    by_scores = weights * (by_weights - tl.sum(weights * by_weights, 1)[:, None]) * scale
    by_scores = by_scores.to(v.dtype)
    tl.store(out + places, tl.dot(by_scores, k).to(v.dtype), there)
    tl.store(out + places + heads * WIDTH, tl.dot(tl.trans(by_scores), q).to(v.dtype), there)

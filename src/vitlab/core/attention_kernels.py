"""The Triton kernels of attention over few tokens (`models.short_attention`); imported where there is a GPU only."""

# pyright: reportMissingImports=false, reportMissingParameterType=false, reportIndexIssue=false
# Two branches on one constant are one to Triton:
# pyright: reportPossiblyUnboundVariable=false, reportOperatorIssue=false

import torch
import triton
import triton.language as tl
from torch import Tensor

LOG2_E = tl.constexpr(1.4426950408889634)


def forward(qkv: Tensor, heads: int, angles: Tensor | None) -> Tensor:
    batch, tokens, three = qkv.shape
    out = qkv.new_empty(batch, tokens, three // 3)
    _launch(_forward, (qkv, out), heads, angles)
    return out


def backward(gradient: Tensor, qkv: Tensor, heads: int, angles: Tensor | None) -> Tensor:
    out = torch.empty_like(qkv)
    _launch(_backward, (qkv, gradient, out), heads, angles)
    return out


def _launch(kernel, tensors: tuple[Tensor, ...], heads: int, angles: Tensor | None) -> None:
    """`angles` are cosines and sines [2, B or 1, N, D_h / 2]."""
    qkv = tensors[0]
    batch, tokens, three = qkv.shape
    width, block = three // (3 * heads), max(16, triton.next_power_of_2(tokens))
    cos, sin = (qkv, qkv) if angles is None else angles  # not read where there are none
    own = int(angles is not None and angles.shape[1] > 1)  # whether each image has angles of its own
    with torch.cuda.device(qkv.device):
        kernel[(batch * heads,)](
            *tensors,
            cos,
            sin,
            own,
            tokens,
            heads,
            width**-0.5,
            width,
            block,
            angles is not None,
            num_warps=4 if block <= 64 else 8,
        )


@triton.jit
def _probabilities(scores, tokens, scale, BLOCK: tl.constexpr):
    scores = scores * (scale * LOG2_E)
    scores = tl.where(tl.arange(0, BLOCK)[None, :] < tokens, scores, float("-inf"))
    powers = tl.exp2(scores - tl.max(scores, 1)[:, None])
    return powers / tl.sum(powers, 1)[:, None]


@triton.jit
def _places(tokens, stride, image, start, COLUMNS: tl.constexpr, BLOCK: tl.constexpr):
    """The places of an image's rows in [B, N, stride], from column `start` on, and which of them are there."""
    rows = tl.arange(0, BLOCK)
    first = image.to(tl.int64) * tokens * stride + start
    return first + rows[:, None] * stride + tl.arange(0, COLUMNS)[None, :], (rows < tokens)[:, None]


@triton.jit
def _turn(a, b, cos, sin):
    """Pairs (a, b) by their angles."""
    return a * cos - b * sin, b * cos + a * sin


@triton.jit
def _angles(cos, sin, own, tokens, image, HALF: tl.constexpr, BLOCK: tl.constexpr):
    places, there = _places(tokens, HALF, image * own, 0, HALF, BLOCK)
    return tl.load(cos + places, there, 1.0), tl.load(sin + places, there, 0.0)


@triton.jit
def _halves(qkv, cos, sin, tokens, stride, image, start, HALF: tl.constexpr, BLOCK: tl.constexpr):
    """The first and the second values of the pairs of q or k, turned."""
    places, there = _places(tokens, stride, image, start, HALF, BLOCK)
    a, b = tl.load(qkv + places, there, 0.0), tl.load(qkv + places + HALF, there, 0.0)
    x, y = _turn(a.to(tl.float32), b.to(tl.float32), cos, sin)
    return x.to(a.dtype), y.to(a.dtype)


@triton.jit
def _forward(
    qkv,
    out,
    cos,
    sin,
    own,
    tokens,
    heads,
    scale,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    ROTARY: tl.constexpr,
):
    image, head, stride = tl.program_id(0) // heads, tl.program_id(0) % heads, 3 * heads * WIDTH
    places, there = _places(tokens, stride, image, head * WIDTH, WIDTH, BLOCK)
    v = tl.load(qkv + places + 2 * heads * WIDTH, there, 0.0)
    HALF: tl.constexpr = WIDTH // 2
    if ROTARY:
        c, s = _angles(cos, sin, own, tokens, image, HALF, BLOCK)
        q, r = _halves(qkv, c, s, tokens, stride, image, head * WIDTH, HALF, BLOCK)
        k, m = _halves(qkv, c, s, tokens, stride, image, (heads + head) * WIDTH, HALF, BLOCK)
        scores = tl.dot(r, tl.trans(m), tl.dot(q, tl.trans(k)))
    else:
        q = tl.load(qkv + places, there, 0.0)
        k = tl.load(qkv + places + heads * WIDTH, there, 0.0)
        scores = tl.dot(q, tl.trans(k))
    made = tl.dot(_probabilities(scores, tokens, scale, BLOCK).to(v.dtype), v)
    places, there = _places(tokens, heads * WIDTH, image, head * WIDTH, WIDTH, BLOCK)
    tl.store(out + places, made.to(v.dtype), there)


@triton.jit
def _backward(
    qkv,
    gradient,
    out,
    cos,
    sin,
    own,
    tokens,
    heads,
    scale,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    ROTARY: tl.constexpr,
):
    image, head, stride = tl.program_id(0) // heads, tl.program_id(0) % heads, 3 * heads * WIDTH
    places, there = _places(tokens, heads * WIDTH, image, head * WIDTH, WIDTH, BLOCK)
    by_out = tl.load(gradient + places, there, 0.0)
    places, there = _places(tokens, stride, image, head * WIDTH, WIDTH, BLOCK)
    v = tl.load(qkv + places + 2 * heads * WIDTH, there, 0.0)
    HALF: tl.constexpr = WIDTH // 2
    if ROTARY:
        c, s = _angles(cos, sin, own, tokens, image, HALF, BLOCK)
        q, r = _halves(qkv, c, s, tokens, stride, image, head * WIDTH, HALF, BLOCK)
        k, m = _halves(qkv, c, s, tokens, stride, image, (heads + head) * WIDTH, HALF, BLOCK)
        scores = tl.dot(r, tl.trans(m), tl.dot(q, tl.trans(k)))
    else:
        q = tl.load(qkv + places, there, 0.0)
        k = tl.load(qkv + places + heads * WIDTH, there, 0.0)
        scores = tl.dot(q, tl.trans(k))
    weights = _probabilities(scores, tokens, scale, BLOCK)
    by_v = tl.dot(tl.trans(weights.to(v.dtype)), by_out)
    tl.store(out + places + 2 * heads * WIDTH, by_v.to(v.dtype), there)
    by_weights = tl.dot(by_out, tl.trans(v))
    by_scores = weights * (by_weights - tl.sum(weights * by_weights, 1)[:, None]) * scale
    by_scores = by_scores.to(v.dtype)
    if ROTARY:  # and back by the same angles
        places, there = _places(tokens, stride, image, head * WIDTH, HALF, BLOCK)
        by_q, by_r = _turn(tl.dot(by_scores, k), tl.dot(by_scores, m), c, -s)
        tl.store(out + places, by_q.to(v.dtype), there)
        tl.store(out + places + HALF, by_r.to(v.dtype), there)
        by_k, by_m = _turn(tl.dot(tl.trans(by_scores), q), tl.dot(tl.trans(by_scores), r), c, -s)
        tl.store(out + places + heads * WIDTH, by_k.to(v.dtype), there)
        tl.store(out + places + heads * WIDTH + HALF, by_m.to(v.dtype), there)
    else:
        tl.store(out + places, tl.dot(by_scores, k).to(v.dtype), there)
        tl.store(out + places + heads * WIDTH, tl.dot(tl.trans(by_scores), q).to(v.dtype), there)

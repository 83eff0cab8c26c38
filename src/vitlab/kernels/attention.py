"""Attention over few tokens on a GPU: one program per image and head, which holds the whole of A.

Kernels for long sequences walk over A in blocks and keep what they need to form it again; with 64 tokens that walk is
most of their time. Here q, k and v are read where the projection left them, A never leaves the chip, and the backward
pass writes the projection's gradient in its own layout. Rotary positions are a few products more on the way.

Figures: docs/decisions/0007.
"""

# Triton's language, whose two branches on one constant are one:
# pyright: reportMissingParameterType=false, reportPossiblyUnboundVariable=false, reportOperatorIssue=false

from typing import Any, Final

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from vitlab.kernels.language import TRITON, tl, triton

MOST_TOKENS: Final = 128
HEAD_WIDTHS: Final = (16, 32, 64)  # powers of two whose tiles fit the registers
ROTARY_WIDTHS: Final = (32, 64)  # a product of halves has to be 16 wide


def attention(
    qkv: Float[Tensor, "b n ddd"],
    heads: int,
    angles: Float[Tensor, "two b n half"] | None = None,
    dropout: float = 0.0,
) -> Float[Tensor, "b n d"]:
    """softmax(q k^T / sqrt(D_h)) v of q, k and v in one, heads side by side: in one kernel where there is one.

    `angles` are those of rotary positions (`models.positions.rotary_angles`), by which q and k are turned first.
    """
    if not dropout and takes(qkv, heads, rotary=angles is not None):
        return short_attention(qkv, heads, angles)
    q, k, v = unpacked(qkv, heads, angles)
    return rearrange(F.scaled_dot_product_attention(q, k, v, dropout_p=dropout), "b h n d -> b n (h d)")


def takes(qkv: Float[Tensor, "b n ddd"], heads: int, *, rotary: bool = False) -> bool:
    """Whether the kernels can be used, and are worth it."""
    widths = ROTARY_WIDTHS if rotary else HEAD_WIDTHS
    fits = qkv.shape[1] <= MOST_TOKENS and qkv.shape[2] // (3 * heads) in widths
    return TRITON and qkv.is_cuda and fits and qkv.dtype in (torch.bfloat16, torch.float16)


def project(layer: nn.Linear, z: Float[Tensor, "b n d"], heads: int, outputs: int | None = None) -> list[Tensor]:
    """q, k and v as [B, heads, N, D_h] by one layer; q of the first `outputs` tokens alone, where there are so many."""
    if outputs is None or outputs == z.shape[1]:
        return unpacked(layer(z), heads)
    width, (weight, bias) = z.shape[-1], (layer.weight, layer.bias)
    q_bias, kv_bias = (None, None) if bias is None else (bias[:width], bias[width:])
    q = rearrange(F.linear(z[:, :outputs], weight[:width], q_bias), "b n (h d) -> b h n d", h=heads)
    kv = F.linear(z, weight[width:], kv_bias)
    return [q, *rearrange(kv, "b n (two h d) -> two b h n d", two=2, h=heads)]


def unpacked(qkv: Float[Tensor, "b n ddd"], heads: int, angles: Tensor | None = None) -> list[Tensor]:
    """q, k and v as [B, heads, N, D_h]."""
    q, k, v = rearrange(qkv, "b n (three h d) -> three b h n d", three=3, h=heads)
    if angles is not None:
        q, k = (turned(part.transpose(1, 2), angles).transpose(1, 2) for part in (q, k))
    return [q, k, v]


def turned(x: Float[Tensor, "b n h d"], angles: Float[Tensor, "two c n half"]) -> Float[Tensor, "b n h d"]:
    """Values i and i + D_h / 2 of a head as a pair, turned by its angle, of which there are cosine and sine."""
    cos, sin = angles[:, :, :, None]
    a, b = x.float().chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1).to(x.dtype)


@torch.library.custom_op("vitlab::short_attention", mutates_args=())
def short_attention(qkv: Tensor, heads: int, angles: Tensor | None = None) -> Tensor:
    """softmax(q k^T / sqrt(D_h)) v of [B, N, 3 D], heads side by side: [B, N, D]."""
    if not qkv.is_cuda:
        q, k, v = unpacked(qkv, heads, angles)
        return rearrange(_plain_probabilities(q, k) @ v, "b h n d -> b n (h d)").contiguous()
    out = qkv.new_empty(*qkv.shape[:2], qkv.shape[2] // 3)
    _launch(_forward_kernel, (qkv.contiguous(), out), heads, angles)
    return out


@torch.library.custom_op("vitlab::short_attention_backward", mutates_args=())
def short_attention_backward(gradient: Tensor, qkv: Tensor, heads: int, angles: Tensor | None) -> Tensor:
    """The gradient by [B, N, 3 D]."""
    if not qkv.is_cuda:
        return _plain_backward(gradient, qkv, heads, angles)
    out = torch.empty_like(qkv, memory_format=torch.contiguous_format)
    _launch(_backward_kernel, (qkv.contiguous(), gradient.contiguous(), out), heads, angles)
    return out


@short_attention.register_fake
def _(qkv: Tensor, heads: int, angles: Tensor | None = None) -> Tensor:
    del heads, angles
    return qkv.new_empty(*qkv.shape[:2], qkv.shape[2] // 3)


@short_attention_backward.register_fake
def _(gradient: Tensor, qkv: Tensor, heads: int, angles: Tensor | None) -> Tensor:
    del gradient, heads, angles
    return torch.empty_like(qkv, memory_format=torch.contiguous_format)


def _keep(ctx: Any, inputs: tuple[Tensor, int, Tensor | None], output: Tensor) -> None:
    del output
    qkv, ctx.heads, angles = inputs
    ctx.save_for_backward(qkv, angles)


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
    qkv, angles = ctx.saved_tensors
    return short_attention_backward(gradient, qkv, ctx.heads, angles), None, None


short_attention.register_autograd(_backward, setup_context=_keep)


def _plain_probabilities(q: Tensor, k: Tensor) -> Tensor:
    return (q @ k.mT * q.shape[-1] ** -0.5).softmax(dim=-1)


def _plain_backward(gradient: Tensor, qkv: Tensor, heads: int, angles: Tensor | None) -> Tensor:
    q, k, v = unpacked(qkv, heads, angles)
    A, by_out = _plain_probabilities(q, k), rearrange(gradient, "b n (h d) -> b h n d", h=heads)
    by_A = by_out @ v.mT
    by_scores = A * (by_A - (A * by_A).sum(dim=-1, keepdim=True)) * q.shape[-1] ** -0.5
    by_q, by_k = by_scores @ k, by_scores.mT @ q
    if angles is not None:  # back by the same angles
        back = torch.stack([angles[0], -angles[1]])
        by_q, by_k = (turned(part.transpose(1, 2), back).transpose(1, 2) for part in (by_q, by_k))
    return rearrange([by_q, by_k, A.mT @ by_out], "three b h n d -> b n (three h d)").contiguous()


def _launch(kernel, tensors: tuple[Tensor, ...], heads: int, angles: Tensor | None) -> None:
    """`angles` are cosines and sines [2, B or 1, N, D_h / 2]."""
    qkv = tensors[0]
    batch, tokens, three = qkv.shape
    width, block = three // (3 * heads), max(16, triton.next_power_of_2(tokens))
    cos, sin = (qkv, qkv) if angles is None else angles.contiguous()  # not read where there are none
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


LOG2_E = tl.constexpr(1.4426950408889634)


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
def _forward_kernel(
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
def _backward_kernel(
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

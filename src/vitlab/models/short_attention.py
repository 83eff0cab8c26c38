"""Attention over few tokens on a GPU: one program per image and head, which holds the whole of A.

Kernels for long sequences walk over A in blocks and keep what they need to form it again; with 64 tokens that walk is
most of their time. Here q, k and v are read where the projection left them, A never leaves the chip, and the backward
pass writes the projection's gradient in its own layout. Rotary positions are a few products more on the way.
"""

from typing import Any, Final

import torch
from jaxtyping import Float
from torch import Tensor

from vitlab.core.compiling import TRITON

MOST_TOKENS: Final = 128
HEAD_WIDTHS: Final = (16, 32, 64)  # powers of two whose tiles fit the registers
ROTARY_WIDTHS: Final = (32, 64)  # a product of halves has to be 16 wide


def takes(z: Float[Tensor, "b n d"], heads: int, *, rotary: bool = False) -> bool:
    """Whether the kernels can be used for what is projected from z, and are worth it."""
    widths = ROTARY_WIDTHS if rotary else HEAD_WIDTHS
    if not (TRITON and z.is_cuda and z.shape[1] <= MOST_TOKENS and z.shape[2] // heads in widths):
        return False
    dtype = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else z.dtype
    return dtype in (torch.bfloat16, torch.float16)


@torch.library.custom_op("vitlab::short_attention", mutates_args=())
def short_attention(qkv: Tensor, heads: int, angles: Tensor | None = None) -> Tensor:
    """softmax(q k^T / sqrt(D_h)) v of [B, N, 3 D], heads side by side: [B, N, D].

    `angles` are those of rotary positions (`positions.rotary_angles`), by which q and k are turned first.
    """
    from vitlab.core import attention_kernels as kernels

    return kernels.forward(qkv.contiguous(), heads, None if angles is None else angles.contiguous())


@torch.library.custom_op("vitlab::short_attention_backward", mutates_args=())
def short_attention_backward(gradient: Tensor, qkv: Tensor, heads: int, angles: Tensor | None) -> Tensor:
    """The gradient by [B, N, 3 D]."""
    from vitlab.core import attention_kernels as kernels

    return kernels.backward(
        gradient.contiguous(), qkv.contiguous(), heads, None if angles is None else angles.contiguous()
    )


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

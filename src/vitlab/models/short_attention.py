"""Attention over few tokens on a GPU: one program an image and head, which holds the whole of A.

Kernels for long sequences walk over A in blocks and keep what they need to form it again; with 64 tokens that walk is
most of their time. Here q, k and v are read where the projection left them, A never leaves the chip, and the backward
pass writes the projection's gradient in its own layout.
"""

from typing import Any, Final

import torch
from jaxtyping import Float
from torch import Tensor

from vitlab.core.compiling import TRITON

MOST_TOKENS: Final = 128
HEAD_WIDTHS: Final = (16, 32, 64)  # powers of two whose tiles fit the registers


def takes(z: Float[Tensor, "b n d"], heads: int) -> bool:
    """Whether the kernels can be used for what is projected from z, and are worth it."""
    if not (TRITON and z.is_cuda and z.shape[1] <= MOST_TOKENS and z.shape[2] // heads in HEAD_WIDTHS):
        return False
    dtype = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else z.dtype
    return dtype in (torch.bfloat16, torch.float16)


@torch.library.custom_op("vitlab::short_attention", mutates_args=())
def short_attention(qkv: Tensor, heads: int) -> Tensor:
    """softmax(q k^T / sqrt(D_h)) v of [B, N, 3 D], heads side by side: [B, N, D]."""
    from vitlab.core import attention_kernels as kernels

    return kernels.forward(qkv.contiguous(), heads)


@torch.library.custom_op("vitlab::short_attention_backward", mutates_args=())
def short_attention_backward(gradient: Tensor, qkv: Tensor, heads: int) -> Tensor:
    """The gradient by [B, N, 3 D]."""
    from vitlab.core import attention_kernels as kernels

    return kernels.backward(gradient.contiguous(), qkv.contiguous(), heads)


@short_attention.register_fake
def _(qkv: Tensor, heads: int) -> Tensor:
    del heads
    return qkv.new_empty(*qkv.shape[:2], qkv.shape[2] // 3)


@short_attention_backward.register_fake
def _(gradient: Tensor, qkv: Tensor, heads: int) -> Tensor:
    del gradient, heads
    return torch.empty_like(qkv, memory_format=torch.contiguous_format)


def _keep(ctx: Any, inputs: tuple[Tensor, int], output: Tensor) -> None:
    del output
    ctx.save_for_backward(inputs[0])
    ctx.heads = inputs[1]


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
    return short_attention_backward(gradient, *ctx.saved_tensors, ctx.heads), None


short_attention.register_autograd(_backward, setup_context=_keep)

"""Attention of timm's plain attention layers, computed beside their fused product."""

import functools
from typing import Any

from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from vitlab.core.peers import import_timm
from vitlab.models.contract import AttentionTap


def attention_taps(net: nn.Module) -> tuple[AttentionTap, ...]:
    """A tap for each of timm's plain attention layers; those with windows, rotations or biases have none."""
    plain = import_timm().layers.Attention
    found = [module for module in net.modules() if type(module) is plain]
    return tuple(
        AttentionTap(each, functools.partial(_probabilities, each), functools.partial(_attend, each)) for each in found
    )


def _project(layer: Any, x: Float[Tensor, "b n d"]) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = rearrange(layer.qkv(x), "b n (three h d) -> three b h n d", three=3, h=layer.num_heads)
    return layer.q_norm(q), layer.k_norm(k), v


def _probabilities(
    layer: Any, x: Float[Tensor, "b n d"], attn_mask: Tensor | None = None, is_causal: bool = False
) -> Float[Tensor, "b h n n"]:
    q, k, _ = _project(layer, x)
    logits = q @ k.transpose(-2, -1) * layer.scale
    bias = import_timm().layers.resolve_self_attn_mask(x.shape[1], logits, attn_mask, is_causal)
    return (logits if bias is None else logits + bias).softmax(dim=-1)


def _attend(
    layer: Any,
    A: Float[Tensor, "b h n n"],
    x: Float[Tensor, "b n d"],
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
) -> Float[Tensor, "b n d"]:
    """What a given A makes of x: the values, timm's norm and gate where it has them, the output projection."""
    del attn_mask, is_causal
    _, _, v = _project(layer, x)
    y = layer.norm(rearrange(A @ v, "b h n d -> b n (h d)"))
    if layer.gate is not None:
        y = y * layer.gate(x).sigmoid()
    return layer.proj_drop(layer.proj(y))

"""Layer norm before a linear layer, compiled for training on a GPU: scale and shift move into the layer's weights.

By the tokens their gradients are long sums, of which a layer has four; a narrow model's step spends a twentieth on
them. By the weights, W (s n + t) + b = (W s) n + (W t + b), they are sums over the layer's outputs.
"""

from typing import Any, Final

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call

WIDEST: Final = 512  # measured at 384 (a gain) and 768 (none): docs/log.md


def after(norm: nn.LayerNorm, part: nn.Module, first: str, z: Float[Tensor, "b n d"], *others: Any) -> Any:
    """part(norm(z), *others), where the part reads its input by its linear layer `first` alone."""
    layer = getattr(part, first, None)
    if type(layer) is not nn.Linear or not worth_it(norm, layer, z):
        return part(norm(z), *others)
    scaled = {
        f"{first}.weight": layer.weight * norm.weight,
        f"{first}.bias": layer.bias + (layer.weight * norm.bias).sum(dim=1),
    }
    return functional_call(part, scaled, (F.layer_norm(z, norm.normalized_shape, eps=norm.eps), *others))


def worth_it(norm: nn.LayerNorm, layer: nn.Linear, z: Tensor) -> bool:
    learnt = (norm.weight, norm.bias, layer.weight, layer.bias)
    return (
        torch.compiler.is_compiling()
        and z.is_cuda
        and z.shape[-1] <= WIDEST
        and norm.training
        and torch.is_grad_enabled()
        and all(value is not None and value.requires_grad for value in learnt)
    )

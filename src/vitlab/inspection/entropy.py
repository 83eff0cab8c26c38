"""Attention entropy: whether a head looks at a few tokens or at all of them."""

import torch
from jaxtyping import Float
from torch import Tensor

from vitlab.core.errors import Error
from vitlab.inspection.rollout import Values


def attention_entropy(attention: Values) -> Float[Tensor, " heads"]:
    """From [B, heads, M, N] to [heads], in bits: the mean over queries and images.

    0 for attention to one token, log2 N for equal attention to all; prefix tokens count as any other.
    """
    values = torch.as_tensor(attention)
    if values.ndim != 4:
        raise Error(f"Entropy takes attention [B, heads, M, N], not {tuple(values.shape)}.")
    values = values if values.dtype == torch.float64 else values.float()
    bits = -torch.special.xlogy(values, values).sum(dim=-1) / torch.log(torch.tensor(2.0, dtype=values.dtype))
    return bits.mean(dim=(0, 2))

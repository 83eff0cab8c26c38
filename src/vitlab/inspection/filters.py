"""Principal components of the patch projection, as pictures; figure 7 of the paper, on the left."""

from typing import NamedTuple

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from vitlab.core.errors import Error
from vitlab.inspection.rollout import Values


class Components(NamedTuple):
    """Directions of unit length, the strongest first, and the share of the variance that each explains."""

    pictures: Float[Tensor, "k c p q"]
    explained: Float[Tensor, " k"]


def filter_components(filters: Values, count: int = 28) -> Components:
    """The first `count` principal components (28 in the paper) of D filters [D, C, P, P], fewer where there are fewer.

    A component's sign is arbitrary: here its largest value is positive.
    """
    values = torch.as_tensor(filters).detach().cpu()
    if values.ndim != 4 or values.shape[0] < 2:
        raise Error(f"Principal components need at least two filters [D, C, P, P], not {tuple(values.shape)}.")
    rows = rearrange(values.double(), "d c p q -> d (c p q)")
    _, strengths, directions = torch.linalg.svd(rows - rows.mean(dim=0), full_matrices=False)
    variance = strengths.square()
    explained = variance / variance.sum().clamp(min=torch.finfo(torch.float64).tiny)
    largest = directions.gather(1, directions.abs().argmax(dim=1, keepdim=True))
    directions = directions * torch.where(largest < 0, -1.0, 1.0)
    _, c, p, q = values.shape
    pictures = rearrange(directions[:count], "k (c p q) -> k c p q", c=c, p=p, q=q)
    return Components(pictures.to(torch.float32), explained[:count].to(torch.float32))


def smoothness(pictures: Float[Tensor, "k c p q"]) -> Float[Tensor, " k"] | None:
    """How far pixels next to each other correlate in each picture, 0 for noise; None where there are no two."""
    values = pictures.double()
    pairs = [(values[..., 1:], values[..., :-1]), (values[..., 1:, :], values[..., :-1, :])]
    found = [
        (one * other).sum(dim=(1, 2, 3)) / (_power(one) * _power(other)).sqrt().clamp(min=1e-12)
        for one, other in pairs
        if one.numel()
    ]
    return torch.stack(found).mean(dim=0) if found else None


def _power(values: Tensor) -> Tensor:
    return values.square().sum(dim=(1, 2, 3))


def as_pixels(pictures: Float[Tensor, "k c p q"]) -> Float[Tensor, "k p q 3"]:
    """Each picture with grey for 0 and its strongest value at full; one channel is repeated, of many three are kept."""
    scaled = pictures / pictures.abs().amax(dim=(1, 2, 3), keepdim=True).clamp(min=1e-12)
    if scaled.shape[1] < 3:
        scaled = scaled[:, :1].expand(-1, 3, -1, -1)
    return rearrange(scaled[:, :3] / 2 + 0.5, "k c p q -> k p q c")

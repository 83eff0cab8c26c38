"""Mean attention distance: how far a head looks, in pixels; figure 7 of the paper, on the right."""

import torch
from jaxtyping import Float
from torch import Tensor

from vitlab.core.errors import Error
from vitlab.inspection.rollout import Values


def attention_distance(
    attention: Values,
    *,
    grid: tuple[int, int],
    patch_size: float | tuple[float, float],
    num_prefix: int = 1,
) -> Float[Tensor, " heads"]:
    """From [B, heads, N, N] to [heads]: the distance between patches, weighted by attention.

    Distances are between the centres of patches. Prefix tokens have no place: they are left out as queries and as keys,
    and each row is divided by what it gives to the patches, itself included; then the mean over queries and images. A
    row that gives the patches nothing has no distance and does not count.
    """
    values = torch.as_tensor(attention)
    tokens = num_prefix + grid[0] * grid[1]
    if values.ndim != 4 or values.shape[2:] != (tokens, tokens):
        raise Error(
            f"Attention of shape {tuple(values.shape)} is not between {num_prefix} prefix tokens and the patches of a"
            f" {grid[0]} x {grid[1]} grid: that would be [B, heads, {tokens}, {tokens}]."
        )
    among = values[:, :, num_prefix:, num_prefix:]
    dtype = torch.float64 if values.dtype == torch.float64 else torch.float32
    apart = patch_distances(grid, patch_size).to(values.device, dtype)
    given = among.sum(dim=-1, dtype=dtype)
    weighted = torch.einsum("bhqk,qk->bhq", among.to(dtype), apart)
    counts = given > 0
    means = torch.where(counts, weighted / given, 0)
    return means.sum(dim=(0, 2)) / counts.sum(dim=(0, 2))


def patch_distances(grid: tuple[int, int], patch_size: float | tuple[float, float]) -> Float[Tensor, "n n"]:
    """Pixels between the centres of every two patches, in row-major order, as float64."""
    down, across = patch_size if isinstance(patch_size, tuple) else (patch_size, patch_size)
    rows = torch.arange(grid[0], dtype=torch.float64) * down
    columns = torch.arange(grid[1], dtype=torch.float64) * across
    places = torch.cartesian_prod(rows, columns).view(-1, 2)
    return torch.cdist(places, places, compute_mode="donot_use_mm_for_euclid_dist")

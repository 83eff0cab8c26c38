"""How alike the positions are: figure 7 of the paper, in the middle."""

import numpy as np
import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from vitlab.core.errors import Error
from vitlab.inspection.rollout import Values


def position_similarity(positions: Values, grid: tuple[int, int]) -> Float[Tensor, "rows columns rows columns"]:
    """The cosine of each place's vector [N, D] with every other's, as a grid of grids [row, column, row, column]."""
    values = torch.as_tensor(positions).detach()
    if values.ndim != 2 or len(values) != grid[0] * grid[1]:
        raise Error(
            f"Positions of shape {tuple(values.shape)} do not fit a {grid[0]} x {grid[1]} grid: it has"
            f" {grid[0] * grid[1]} places."
        )
    unit = F.normalize(values if values.dtype == torch.float64 else values.float(), dim=-1)
    rows, columns = grid
    return rearrange(unit @ unit.T, "(a b) (c d) -> a b c d", a=rows, b=columns, c=rows, d=columns)


def neighbourhood(similarity: Float[Tensor, "rows columns rows columns"]) -> dict[str, float | None]:
    """The mean similarity of places next to each other, in one row, in one column, and in neither; None without any."""
    rows, columns = similarity.shape[:2]
    across, down = torch.arange(columns), torch.arange(rows)
    right = (across[:, None] - across[None]).abs()[None, :, None, :].expand(rows, columns, rows, columns)
    below = (down[:, None] - down[None]).abs()[:, None, :, None].expand(rows, columns, rows, columns)
    kinds = {
        "next_to": right + below == 1,
        "same_row": (below == 0) & (right > 0),
        "same_column": (right == 0) & (below > 0),
        "elsewhere": (right > 0) & (below > 0),
    }
    values = similarity.cpu()
    return {name: values[places].mean().item() if places.any() else None for name, places in kinds.items()}


def along_lines(similarity: Float[Tensor, "rows columns rows columns"]) -> tuple[float | None, float | None]:
    """How much more alike places of one row, and of one column, are than others equally far apart; None without any.

    Places of one row are nearer to each other than most, so that their mean alone would speak for any neighbourhood.
    """
    rows, columns = similarity.shape[:2]
    places = torch.cartesian_prod(torch.arange(rows), torch.arange(columns)).double()
    first, second = torch.triu_indices(len(places), len(places), offset=1)
    down, across = (places[first] - places[second]).abs().unbind(dim=1)
    alike = similarity.detach().cpu().double().reshape(len(places), len(places))[first, second]
    away = (down > 0) & (across > 0)
    if not away.any():
        return None, None
    far, group = torch.unique(torch.hypot(down[away], across[away]), return_inverse=True)
    means = np.bincount(group.numpy(), alike[away].numpy()) / np.bincount(group.numpy())

    def more(apart: Float[Tensor, " pairs"], other: Float[Tensor, " pairs"]) -> float | None:
        pairs = (other == 0) & (apart > far[0])  # nearer ones have none to be compared with
        return float((alike[pairs].numpy() - np.interp(apart[pairs], far, means)).mean()) if pairs.any() else None

    return more(across, down), more(down, across)


def nearness(similarity: Float[Tensor, "rows columns rows columns"]) -> float | None:
    """The correlation, over pairs of places, of being alike with being near; None where there is nothing to tell."""
    rows, columns = similarity.shape[:2]
    places = torch.cartesian_prod(torch.arange(rows), torch.arange(columns)).double()
    pairs = torch.triu_indices(len(places), len(places), offset=1)
    alike = similarity.detach().cpu().double().reshape(len(places), len(places))[pairs[0], pairs[1]]
    far = (places[pairs[0]] - places[pairs[1]]).norm(dim=1)
    if len(alike) < 2 or not alike.std() > 1e-9 or not far.std() > 1e-9:
        return None
    return float(torch.corrcoef(torch.stack([alike, -far]))[0, 1])

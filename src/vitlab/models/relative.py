"""Relative attention: a bias for each offset between two places of a grid, resized with the resolution."""

import math
from typing import Literal, TypeAlias, final

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor, nn

from vitlab.models.positions import Grid

# bilinear: CoAtNet's paper; here the largest offsets stay the largest. timm: `stretched` below
BiasRule: TypeAlias = Literal["bilinear", "timm"]


def offset_grid(grid: Grid) -> Grid:
    """How many offsets between rows, and between columns, a grid has."""
    return 2 * grid[0] - 1, 2 * grid[1] - 1


def pairs(grid: Grid, device: torch.device) -> Int[Tensor, "n n"]:
    """Which row of a table of offsets, row by row of the grid, belongs to each query and key."""
    height, width = grid
    row = torch.arange(height, device=device).repeat_interleave(width)
    column = torch.arange(width, device=device).repeat(height)
    down = row[:, None] - row[None, :] + height - 1
    right = column[:, None] - column[None, :] + width - 1
    return down * (2 * width - 1) + right


def resize_bias(table: Float[Tensor, "o h"], grid: Grid, *, old_grid: Grid, rule: BiasRule) -> Float[Tensor, "p h"]:
    """A table of biases, one row an offset between places of `old_grid`, for another grid."""
    if grid == old_grid:
        return table
    axis = even if rule == "bilinear" else stretched
    sides = zip(offset_grid(grid), offset_grid(old_grid), strict=True)
    rows, columns = (axis(new, old, device=table.device) for new, old in sides)
    image = rearrange(table, "(y x) h -> h y x", y=2 * old_grid[0] - 1).float()
    return rearrange(rows @ image @ columns.T, "h y x -> (y x) h").to(table.dtype)


def even(new: int, old: int, *, device: torch.device | None = None) -> Float[Tensor, "n o"]:
    """The matrix that resizes offsets along one axis linearly, the last old one to the last new one."""
    end = old // 2 if new > 1 else 0  # a single new offset is 0
    wanted = torch.linspace(-end, end, new, device=device)
    return _between(torch.arange(-(old // 2), old // 2 + 1.0, device=device), wanted)


def stretched(new: int, old: int, *, device: torch.device | None = None) -> Float[Tensor, "n o"]:
    """The matrix by which timm resizes biases along one axis: linear between points of growing distance.

    The old offsets are put at 0, 1, 1 + q, 1 + q + q^2, ... of the new ones, with the q between 1.01 and 1.5 for which
    the last old offset is the last new one: near offsets keep their biases, far ones are spread. An axis of the same
    length, beside one that changes, is spread by the least q too.
    """
    half = old // 2
    low, high, q = 1.01, 1.5, 1.255
    while high - low > 1e-6:
        q = (low + high) / 2
        low, high = (low, q) if (1 - q**half) / (1 - q) > new // 2 else (q, high)
    # with the last q that was tried, as timm has it
    distances = [sum(q**i for i in range(n)) for n in range(1, half + 1)]
    points = torch.tensor([-d for d in reversed(distances)] + [0.0] + distances, device=device)
    return _between(points, torch.arange(-(new // 2), new // 2 + 1.0, device=device))


def _between(points: Float[Tensor, " o"], wanted: Float[Tensor, " n"]) -> Float[Tensor, "n o"]:
    """Linear interpolation as a matrix: rows sum to 1; beyond the ends it is the end."""
    right = torch.searchsorted(points, wanted).clamp(0, len(points) - 1)
    left = (right - 1).clamp(min=0)
    gap = points[right] - points[left]
    part = ((wanted - points[left]) / torch.where(gap > 0, gap, 1.0)).clamp(0, 1)
    matrix = torch.zeros(len(wanted), len(points), device=points.device)
    matrix.scatter_add_(1, left[:, None], (1 - part)[:, None])
    return matrix.scatter_add_(1, right[:, None], part[:, None])


@final
class RelativeBias(nn.Module):
    """A learned bias an offset and head."""

    def __init__(self, grid: Grid, heads: int, rule: BiasRule) -> None:
        super().__init__()
        self.grid = grid
        self.rule: BiasRule = rule
        self.table = nn.Parameter(torch.empty(math.prod(offset_grid(grid)), heads))

    def initialize(self) -> None:
        nn.init.normal_(self.table, std=0.02)

    def forward(self, grid: Grid) -> Float[Tensor, "h n n"]:
        table = resize_bias(self.table, grid, old_grid=self.grid, rule=self.rule)
        return table.T[:, pairs(grid, table.device)]


@final
class RelativeMlp(nn.Module):
    """timm's `rmlp` variants: biases as an MLP's answer to the logarithms of an offset; any grid has its own."""

    def __init__(self, heads: int, hidden: int) -> None:
        super().__init__()
        self.up = nn.Linear(2, hidden)
        self.down = nn.Linear(hidden, heads)

    def forward(self, grid: Grid) -> Float[Tensor, "h n n"]:
        device = self.up.weight.device
        rows, columns = (torch.arange(1.0 - side, side, device=device) for side in grid)
        offsets = torch.cartesian_prod(rows, columns).to(self.up.weight.dtype)
        hidden = F.relu(self.up(offsets.sign() * offsets.abs().log1p()))
        table = self.down(F.dropout(hidden, 0.125, self.training))
        return table.T[:, pairs(grid, device)]

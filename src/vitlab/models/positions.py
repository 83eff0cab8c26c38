"""Position information: learned and fixed embeddings, relative attention, and their resizing in two dimensions."""

import math
from typing import Literal, TypeAlias, final

import torch
import torch.nn.functional as F
from einops import rearrange, repeat
from jaxtyping import Float, Int
from torch import Tensor, nn

from vitlab.core.errors import ConfigError
from vitlab.kernels.attention import turned
from vitlab.models.contract import Layout

Kind: TypeAlias = Literal["none", "learned", "learned2d", "sincos1d", "sincos2d", "relative", "relative2d"]
Rule: TypeAlias = Literal["official", "timm", "hf", "torchvision"]
RotaryUnit: TypeAlias = Literal["patch", "image"]
Grid: TypeAlias = tuple[int, int]

ROTARY_BASE = 100.0  # RoPE-ViT's for the two axes of a grid (arXiv 2403.13298)

# official: scipy.ndimage.zoom(order=1), which is bilinear with aligned corners
RULES: dict[Rule, tuple[str, bool, bool]] = {  # mode, aligned corners, antialias
    "official": ("bilinear", True, False),
    "timm": ("bicubic", False, True),
    "hf": ("bicubic", False, False),
    "torchvision": ("bicubic", True, False),
}


def resize_positions(
    positions: Float[Tensor, "*tables n d"],
    grid: Grid,
    *,
    old_grid: Grid | None = None,
    rule: Rule = "official",
    num_prefix: int = 1,
) -> Float[Tensor, "*tables m d"]:
    """Position embeddings [..., num_prefix + N, D] for another grid; the prefix tokens' stay as they are.

    `old_grid` is taken to be square when it is not given.
    """
    if rule not in RULES:
        raise ConfigError(f"There is no resize rule '{rule}'; the rules are {', '.join(RULES)}.")
    num_old = positions.shape[-2] - num_prefix
    if old_grid is None:
        side = math.isqrt(max(num_old, 0))
        old_grid = (side, side)
    if old_grid[0] * old_grid[1] != num_old or num_old < 1:
        raise ConfigError(
            f"{positions.shape[-2]} positions are not {num_prefix} prefix and a grid of {old_grid[0]} x {old_grid[1]}:"
            " give old_grid and num_prefix."
        )
    if min(grid) < 1:
        raise ConfigError(f"The new grid must be positive, not {grid[0]} x {grid[1]}.")
    if old_grid == tuple(grid):
        return positions
    mode, aligned, antialias = RULES[rule]
    prefix, places = positions[..., :num_prefix, :], positions[..., num_prefix:, :]
    wide = places if places.dtype == torch.float64 else places.float()
    image = rearrange(wide.reshape(-1, num_old, positions.shape[-1]), "b (h w) d -> b d h w", h=old_grid[0])
    if antialias and grid[1] == 1:  # torch 2.13 on a CPU repeats the first row of a single column, not of a single row
        image = F.interpolate(image.mT.contiguous(), size=(1, grid[0]), mode=mode, antialias=True).mT
    else:
        image = F.interpolate(image, size=grid, mode=mode, align_corners=aligned, antialias=antialias)
    resized = rearrange(image, "b d h w -> b (h w) d").to(positions.dtype)
    return torch.cat([prefix, resized.reshape(*positions.shape[:-2], -1, positions.shape[-1])], dim=-2)


def sincos1d(num: int, width: int, *, device: torch.device | None = None) -> Float[Tensor, "n d"]:
    """The Transformer's: sin(p / 10000^(2i/D)) and cos in turn."""
    place = torch.arange(num, device=device, dtype=torch.float64)
    rate = 10000 ** (-torch.arange(0, width, 2, device=device, dtype=torch.float64) / width)
    angle = place[:, None] * rate
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1).float()


def sincos2d(grid: Grid, width: int, *, device: torch.device | None = None) -> Float[Tensor, "n d"]:
    """big_vision's: [sin x, cos x, sin y, cos y], D/4 rates from 1 down to 1/10000."""
    rate = 10000 ** -torch.linspace(0, 1, width // 4, device=device, dtype=torch.float64)
    y = torch.arange(grid[0], device=device, dtype=torch.float64)
    x = torch.arange(grid[1], device=device, dtype=torch.float64)
    angle_y = repeat(y[:, None] * rate, "h r -> (h w) r", w=grid[1])
    angle_x = repeat(x[:, None] * rate, "w r -> (h w) r", h=grid[0])
    return torch.cat([angle_x.sin(), angle_x.cos(), angle_y.sin(), angle_y.cos()], dim=-1).float()


def rotary_angles(
    layout: Layout, head_width: int, device: torch.device, unit: RotaryUnit = "patch"
) -> Float[Tensor, "two b n half"]:
    """Cosines, then sines, of the angles of rotary positions: half of a head's pairs turn by row, half by column.

    A patch is one radian for the first pair of each half, or the image is two turns, whatever its size, with the angle
    0 in its middle (DINOv3's, arXiv 2508.10104). B is 1 where all images have the same places. Prefix tokens stay as
    they are.
    """
    height, width = layout.grid
    place = torch.arange(height * width, device=device)[None] if layout.present is None else layout.present
    rate = ROTARY_BASE ** -(torch.arange(head_width // 4, device=device) * (4 / head_width))
    row, column = place // width, place % width
    if unit == "image":  # from -1 to 1 over the image, of a patch's middle
        row, column = (2 * math.pi * ((2 * x + 1) / side - 1) for x, side in ((row, height), (column, width)))
    angle = torch.cat([row[..., None] * rate, column[..., None] * rate], dim=-1)
    angle = F.pad(angle, (0, 0, layout.num_prefix, 0))
    return torch.stack([angle.cos(), angle.sin()])


def apply_rotary(x: Float[Tensor, "b n h d"], layout: Layout, unit: RotaryUnit = "patch") -> Float[Tensor, "b n h d"]:
    """Rotary positions: values i and i + D_h / 2 of a head turned as a pair.

    q k^T then depends on the offset of their places. `x` may hold the first tokens only.
    """
    return turned(x, rotary_angles(layout, x.shape[-1], x.device, unit)[:, :, : x.shape[1]])


@final
class AddedPositions(nn.Module):
    """One vector per grid place, and one for each of the first prefix tokens, to be added to the tokens.

    Learned: a table. Learned 2-D: a row's D/2 beside a column's D/2. Sine-cosine: fixed, nothing for the prefix.
    """

    def __init__(self, kind: Kind, grid: Grid, width: int, *, num_prefix: int, rule: Rule) -> None:
        super().__init__()
        divisor = {"learned2d": 2, "sincos1d": 2, "sincos2d": 4}.get(kind, 1)
        if width % divisor:
            raise ConfigError(f"Positions of kind '{kind}' need a width that {divisor} divides, not {width}.")
        self.kind, self.grid, self.width, self.num_prefix = kind, grid, width, num_prefix
        self.rule: Rule = rule
        if kind == "learned":
            self.table = nn.Parameter(torch.empty(num_prefix + grid[0] * grid[1], width))
        elif kind == "learned2d":
            self.rows = nn.Parameter(torch.empty(grid[0], width // 2))
            self.columns = nn.Parameter(torch.empty(grid[1], width // 2))
            self.prefix = nn.Parameter(torch.empty(num_prefix, width)) if num_prefix else None

    def initialize(self, std: float = 0.02) -> None:
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=std)

    def all_places(self, grid: Grid, device: torch.device) -> Float[Tensor, "n d"]:
        """[num_prefix + N, D] for a whole grid."""
        if self.kind in ("sincos1d", "sincos2d"):
            fixed = (
                sincos1d(grid[0] * grid[1], self.width, device=device)
                if self.kind == "sincos1d"
                else sincos2d(grid, self.width, device=device)
            )
            return F.pad(fixed, (0, 0, self.num_prefix, 0))
        if self.kind == "learned":
            table = self.table
        else:
            rows = repeat(self.rows, "h d -> (h w) d", w=self.grid[1])
            columns = repeat(self.columns, "w d -> (h w) d", h=self.grid[0])
            places = torch.cat([rows, columns], dim=-1)
            table = places if self.prefix is None else torch.cat([self.prefix, places])
        if grid == self.grid:
            return table
        return resize_positions(table, grid, old_grid=self.grid, rule=self.rule, num_prefix=self.num_prefix)

    def forward(self, z: Float[Tensor, "b n d"], layout: Layout) -> Float[Tensor, "b n d"]:
        """`z` with positions added; prefix tokens beyond those that have one stay as they are."""
        table = self.all_places(layout.grid, z.device).to(z.dtype)
        if layout.num_prefix == self.num_prefix and layout.present is None:
            return z + table
        prefix, places = table[: self.num_prefix], table[self.num_prefix :]
        if layout.present is not None:
            places = places[layout.present]  # [B, M, D]
        bare = z[:, self.num_prefix : layout.num_prefix]
        return torch.cat([z[:, : self.num_prefix] + prefix, bare, z[:, layout.num_prefix :] + places], dim=1)


@final
class RelativePositions(nn.Module):
    """An embedding an offset; its product with the query is added to the logits before the softmax.

    The offset p_q - p_k is taken along the sequence (`relative`, the paper's one-dimensional relative attention) or in
    rows and columns (`relative2d`). Prefix tokens have no place, so their logits stay as they are.
    """

    def __init__(self, kind: Kind, grid: Grid, head_width: int, *, rule: Rule) -> None:
        super().__init__()
        self.kind, self.grid = kind, grid
        self.rule: Rule = rule
        offsets = self._offset_grid(grid)
        self.table = nn.Parameter(torch.empty(offsets[0] * offsets[1], head_width))

    def initialize(self, std: float = 0.02) -> None:
        nn.init.normal_(self.table, std=std)

    def _offset_grid(self, grid: Grid) -> Grid:
        if self.kind == "relative":
            return 1, 2 * grid[0] * grid[1] - 1
        return 2 * grid[0] - 1, 2 * grid[1] - 1

    def _offsets(self, layout: Layout, device: torch.device) -> Int[Tensor, "b n n"]:
        """Which row of the table belongs to each pair of places."""
        height, width = layout.grid
        place = torch.arange(height * width, device=device)[None] if layout.present is None else layout.present
        if self.kind == "relative":
            return place[:, :, None] - place[:, None, :] + height * width - 1
        row, column = place // width, place % width
        down = row[:, :, None] - row[:, None, :] + height - 1
        right = column[:, :, None] - column[:, None, :] + width - 1
        return down * (2 * width - 1) + right

    def forward(self, q: Float[Tensor, "b h n dh"], layout: Layout) -> Float[Tensor, "b h n n"]:
        """q r^T / sqrt(D_h) for every pair of tokens."""
        new = self._offset_grid(layout.grid)
        old = self._offset_grid(self.grid)
        table = resize_positions(self.table, new, old_grid=old, rule=self.rule, num_prefix=0).to(q.dtype)
        logits = q[:, :, layout.num_prefix :] @ table.T * q.shape[-1] ** -0.5  # [B, heads, N, offsets]
        index = self._offsets(layout, q.device)[:, None].expand(q.shape[0], q.shape[1], -1, -1)
        return F.pad(logits.gather(-1, index), (layout.num_prefix, 0, layout.num_prefix, 0))

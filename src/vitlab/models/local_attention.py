"""Stand-alone self-attention (SASA, arXiv 1906.05909): a ResNet whose convolutions of 3 x 3 are attention in windows.

A place attends to the k x k places around it: y = sum over the window of softmax(q . k + q . r) v, equation 3, with r
the embedding of the offset, half of it the row's and half the column's. Where the map is to be halved, a mean over
2 x 2 follows. The stem is the convolutional one of the paper's "conv-stem + attention".

The paper leaves open, or contradicts itself on, the following. Its text has q, k and v made of a head's own channels
only, while its parameter counts are those of kernels over all channels, as here. Windows at the border have here only
the places inside the map, and each head has offset embeddings of its own.
"""

from dataclasses import dataclass
from typing import final

import torch
import torch.nn.functional as F
from einops import rearrange, repeat
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from vitlab.core.bounds import PositiveInt
from vitlab.core.errors import ConfigError
from vitlab.models.bottleneck import Bottleneck, BottleneckConfig, BottleneckNet
from vitlab.models.contract import AttentionTap, Taps
from vitlab.models.family import Family
from vitlab.models.positions import Grid
from vitlab.models.resnet import UnitSpec, to_map, to_tokens
from vitlab.models.zoo.attention import SASA_ROWS


@dataclass(frozen=True, kw_only=True)
class SASAConfig(BottleneckConfig):
    """The ResNet's fields, and those of attention; the defaults are the paper's."""

    layers: tuple[PositiveInt, ...] = (1, 2, 4, 1)  # the paper's ResNet-26
    window: int = 7  # k: places a side
    heads: int = 8
    relative: bool = True  # whether offsets have embeddings

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.window < 1 or not self.window % 2:
            raise ConfigError(f"window must be odd, for a place is in the middle of its own: {self.window}.")
        if self.heads < 1 or self.width % (2 * self.heads):
            raise ConfigError(f"The width {self.width} is not divisible by twice the {self.heads} heads.")


@final
class LocalAttention(nn.Module):
    """Multi-head self-attention of each place to the window around it."""

    def __init__(self, width: int, *, heads: int, window: int, relative: bool) -> None:
        super().__init__()
        self.heads, self.window = heads, window
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        half = width // heads // 2
        self.row = nn.Parameter(torch.empty(heads, window, half)) if relative else None  # offsets from -(k - 1) / 2
        self.column = nn.Parameter(torch.empty(heads, window, half)) if relative else None

    def project(self, x: Float[Tensor, "b d h w"]) -> tuple[Tensor, Tensor, Tensor]:
        """q, k and v as [B, heads, N, D_h]."""
        q, k, v = rearrange(self.qkv(to_tokens(x)), "b n (three h d) -> three b h n d", three=3, h=self.heads)
        return q, k, v

    def offsets(self) -> Float[Tensor, "heads d k"] | None:
        """r: an embedding for each place of a window."""
        if self.row is None or self.column is None:
            return None
        row = repeat(self.row, "h i d -> h d i j", j=self.window)
        column = repeat(self.column, "h j d -> h d i j", i=self.window)
        return torch.cat([row, column], dim=1).flatten(2)

    def windows(self, values: Float[Tensor, "b heads n d"], grid: Grid) -> Float[Tensor, "b heads n d k"]:
        """What is around each place, zeros outside the map."""
        margin = self.window // 2
        image = F.pad(rearrange(values, "b h (y x) d -> b h d y x", y=grid[0]), (margin,) * 4)
        around = image.unfold(-2, self.window, 1).unfold(-2, self.window, 1)
        return rearrange(around, "b h d y x i j -> b h (y x) d (i j)")

    def places(self, grid: Grid, device: torch.device) -> tuple[Int[Tensor, "n k"], Bool[Tensor, "n k"]]:
        """The flat places of each window, and which of them are inside the map."""
        height, width = grid
        offset = torch.arange(self.window, device=device) - self.window // 2
        row = (torch.arange(height, device=device)[:, None] + offset)[:, None, :, None]
        column = (torch.arange(width, device=device)[:, None] + offset)[None, :, None, :]
        inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
        place = row.clamp(0, height - 1) * width + column.clamp(0, width - 1)
        return rearrange(place, "y x i j -> (y x) (i j)"), rearrange(inside, "y x i j -> (y x) (i j)")

    def around(self, q: Tensor, k: Tensor, grid: Grid) -> Float[Tensor, "b heads n k"]:
        """A within windows, equation 3."""
        logits = (q[..., None, :] @ self.windows(k, grid)).squeeze(-2)
        offsets = self.offsets()
        if offsets is not None:
            logits = logits + q @ offsets
        _, inside = self.places(grid, q.device)
        return logits.masked_fill(~inside, -torch.inf).softmax(dim=-1)

    def probabilities(self, x: Float[Tensor, "b d h w"]) -> Float[Tensor, "b heads n n"]:
        """A between all places: zero outside a window."""
        q, k, _ = self.project(x)
        grid = (x.shape[-2], x.shape[-1])
        A = self.around(q, k, grid)
        place, _ = self.places(grid, x.device)
        # Outside the map A is zero: adding it to the border places that stand for it changes nothing.
        return A.new_zeros(*A.shape[:3], A.shape[2]).scatter_add_(-1, place.expand_as(A), A)

    def attend(self, A: Float[Tensor, "b heads n n"], x: Float[Tensor, "b d h w"]) -> Float[Tensor, "b d h w"]:
        """What a given A makes of x; what A has outside a window is not read."""
        grid = (x.shape[-2], x.shape[-1])
        place, _ = self.places(grid, x.device)  # those outside are border places of the same window
        near = torch.zeros(A.shape[-2:], device=x.device, dtype=A.dtype).scatter_(1, place, 1.0)
        return to_map(rearrange((A * near) @ self.project(x)[2], "b h n d -> b n (h d)"), grid)

    def forward(self, x: Float[Tensor, "b d h w"]) -> Float[Tensor, "b d h w"]:
        q, k, v = self.project(x)
        grid = (x.shape[-2], x.shape[-1])
        A = self.around(q, k, grid).to(v.dtype)
        y = (A[..., None, :] @ self.windows(v, grid).mT).squeeze(-2)
        return to_map(rearrange(y, "b h n d -> b n (h d)"), grid)


@final
class SASA(BottleneckNet):
    """A ResNet that looks around by attention in windows."""

    config: SASAConfig  # pyright: ignore[reportIncompatibleVariableOverride]

    def build_unit(self, spec: UnitSpec) -> nn.Module:
        config = self.config
        attention = LocalAttention(spec.inner, heads=config.heads, window=config.window, relative=config.relative)
        if spec.stride == 1:
            return Bottleneck(spec, attention)
        # of an odd side the last place is a mean of what there is, so that the shortcut's map has the same sides
        return Bottleneck(spec, nn.Sequential(attention, nn.AvgPool2d(2, ceil_mode=True)))

    @property
    def taps(self) -> Taps:
        attentions = [module for module in self.modules() if isinstance(module, LocalAttention)]
        return Taps(
            attention=tuple(AttentionTap(each, each.probabilities, each.attend) for each in attentions),
            filters=super().taps.filters,
        )

    def initialize(self) -> None:
        """The ResNet's; LeCun-normal queries, keys and values, offsets of deviation 0.02: the paper names neither."""
        super().initialize()
        for module in self.modules():
            if isinstance(module, LocalAttention):
                nn.init.normal_(module.qkv.weight, std=module.qkv.in_features**-0.5)
                if module.row is not None and module.column is not None:
                    nn.init.normal_(module.row, std=0.02)
                    nn.init.normal_(module.column, std=0.02)


FAMILY = Family(
    name="sasa",
    config=SASAConfig,
    model=SASA,
    summary="ResNet of stand-alone self-attention",
    rows=tuple(SASA_ROWS),
    title="Stand-alone self-attention",
    pattern="sasa",
    example={"image_size": (32, 48), "layers": (1, 2), "width": 16, "window": 3, "heads": 2, "num_classes": 5},
)

"""The paper's Axial-ViT (appendix D.6): attention along the rows of the grid of patches, then along its columns.

What the paper says: tokens stay in their two-dimensional shape, and in the place of a block of self-attention and MLP
there is row attention and MLP followed by column attention and MLP. So a model has twice the attentions and MLPs of
the ViT of its size. What it leaves open is here as follows: a class token has no place in a grid, so that there is
none, and the answer is read from the mean of the patches after the final norm (or by attention pooling); positions are
the ViT's, learned and added to the patches once; both halves of a block have the ViT's norms and residuals.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias, final

import torch
from einops import einsum, rearrange
from jaxtyping import Float
from torch import Tensor, nn

from vitlab.core.errors import ConfigError
from vitlab.core.preprocess import Preprocess
from vitlab.models.contract import AttentionTap, Layout, Taps, need_all_places
from vitlab.models.family import Family
from vitlab.models.heads import Pool
from vitlab.models.positions import Grid, RelativePositions
from vitlab.models.vit import EXAMPLE, Attention, Block, ViT, ViTConfig
from vitlab.models.zoo.attention import AXIAL_ROWS

Axis: TypeAlias = Literal["rows", "columns"]


@dataclass(frozen=True, kw_only=True)
class AxialConfig(ViTConfig):
    """A ViT's fields; one of its `depth` layers has both halves here."""

    class_token: bool = False
    pool: Pool = "mean"

    def __post_init__(self) -> None:
        if self.relative:
            raise ConfigError(f"Axial attention has no positions='{self.positions}': choose learned ones, for one.")
        super().__post_init__()
        if self.num_prefix:
            raise ConfigError(
                "Axial attention has no place for class, distillation or register tokens: leave class_token,"
                " distill_token and num_registers out."
            )


@final
class AxialAttention(nn.Module):
    """Self-attention in which a token sees its own row only, or its own column."""

    def __init__(self, config: AxialConfig, axis: Axis) -> None:
        super().__init__()
        self.axis: Axis = axis
        self.line = Attention(config)

    @property
    def out(self) -> nn.Linear:
        """What a block multiplies by `residual_scale` when its weights are fresh."""
        return self.line.out

    def lines(self, z: Float[Tensor, "b n d"], grid: Grid) -> Float[Tensor, "l m d"]:
        """All rows, or all columns, of all images as sequences of their own."""
        pattern = "b (y x) d -> (b y) x d" if self.axis == "rows" else "b (y x) d -> (b x) y d"
        return rearrange(z, pattern, y=grid[0])

    def probabilities(
        self, z: Float[Tensor, "b n d"], layout: Layout, _relative: RelativePositions | None = None
    ) -> Float[Tensor, "b h n n"]:
        """A between all tokens: zero between those of two lines."""
        A = self.line.probabilities(self.lines(z, layout.grid), layout)
        A = rearrange(A, "(b l) h m k -> b l h m k", b=z.shape[0])
        same = torch.eye(A.shape[1], device=A.device, dtype=A.dtype)
        if self.axis == "rows":
            whole = einsum(A, same, "b y h x u, y v -> b h y x v u")
        else:
            whole = einsum(A, same, "b x h y v, x u -> b h y x v u")
        return rearrange(whole, "b h y x v u -> b h (y x) (v u)")

    def attend(
        self,
        A: Float[Tensor, "b h n n"],
        z: Float[Tensor, "b n d"],
        layout: Layout,
        _relative: RelativePositions | None = None,
    ) -> Float[Tensor, "b n d"]:
        """What a given A makes of z; what A has between two lines is not read."""
        height, width = layout.grid
        place = torch.arange(height * width, device=A.device)
        line = place // width if self.axis == "rows" else place % width
        return self.line.attend(A * (line[:, None] == line), z, layout)

    def forward(
        self, z: Float[Tensor, "b n d"], layout: Layout, relative: RelativePositions | None = None
    ) -> Float[Tensor, "b n d"]:
        need_all_places(layout, AxialViT.__name__)
        assert relative is None
        assert layout.outputs is None
        made = self.line(self.lines(z, layout.grid), layout)
        pattern = "(b y) x d -> b (y x) d" if self.axis == "rows" else "(b x) y d -> b (y x) d"
        return rearrange(made, pattern, b=z.shape[0])


@final
class LineBlock(Block):
    """Half an axial block: an encoder layer, equations 2 and 3, whose attention is along one axis."""

    def __init__(self, config: AxialConfig, drop_path: float, axis: Axis) -> None:
        super().__init__(config, drop_path)
        self.attention = AxialAttention(config, axis)

    @property
    def normed(self) -> dict[str, str]:
        return {"norm1": "attention.line.qkv", "norm2": "mlp.up"} if self.pre else {}


@final
class AxialBlock(nn.Module):
    """Row attention and MLP, then column attention and MLP."""

    def __init__(self, config: AxialConfig, drop_path: float) -> None:
        super().__init__()
        self.rows = LineBlock(config, drop_path, "rows")
        self.columns = LineBlock(config, drop_path, "columns")

    def forward(
        self, z: Float[Tensor, "b n d"], layout: Layout, relative: RelativePositions | None = None
    ) -> Float[Tensor, "b n d"]:
        return self.columns(self.rows(z, layout, relative), layout, relative)


@final
class AxialViT(ViT):
    """A ViT whose blocks are axial ones."""

    takes_subsets: ClassVar[bool] = False  # a line needs all its places

    config: AxialConfig  # pyright: ignore[reportIncompatibleVariableOverride]

    def __init__(self, config: AxialConfig, preprocess: Preprocess | None = None) -> None:
        super().__init__(config, preprocess)
        rates = [block.drop_path for block in self.blocks if isinstance(block, Block)]
        self.blocks = nn.ModuleList(AxialBlock(config, rate) for rate in rates)

    @property
    def taps(self) -> Taps:
        """A layer's row attention, then its column attention."""
        of_vit = super().taps
        attentions = [module for module in self.blocks.modules() if isinstance(module, AxialAttention)]
        return Taps(
            attention=tuple(AttentionTap(each, each.probabilities, each.attend) for each in attentions),
            filters=of_vit.filters,
            positions=of_vit.positions,
        )


FAMILY = Family(
    name="axial",
    config=AxialConfig,
    model=AxialViT,
    summary="Vision Transformer with axial attention",
    rows=tuple(AXIAL_ROWS),
    title="Axial-ViT: rows, then columns",
    pattern="axial",
    example=EXAMPLE,
)

"""CvT: Introducing Convolutions to Vision Transformers (arXiv 2103.15808).

Three stages, each of which embeds the map of the one before it by a convolution that overlaps, as the tokens of a
smaller, deeper map. Queries, keys and values come from depthwise convolutions of that map, keys and values at every
second place; so no position embedding is needed. The last stage has a class token.
"""

from dataclasses import dataclass
from typing import ClassVar, final

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from vitlab.core.bounds import BelowOne, NonNegativeInt, PositiveFloat, PositiveInt
from vitlab.core.config import check_bounds
from vitlab.core.errors import ConfigError, ImageError
from vitlab.core.preprocess import Preprocess
from vitlab.models.contract import AttentionTap, Layout, Model, Taps, Tokens, need_all_places
from vitlab.models.family import Family
from vitlab.models.heads import HeadKind, build_head
from vitlab.models.resnet import to_map, to_tokens
from vitlab.models.stages import channels_last, dropped, growing, normed, recomputed
from vitlab.models.vit_config import Gelu
from vitlab.models.zoo.convolutional import CVT_ROWS


@dataclass(frozen=True, kw_only=True)
class CvTConfig:
    """Sizes, one per stage, first; then what a checkpoint's origin decides; then what only training uses."""

    image_size: tuple[PositiveInt, PositiveInt] = (224, 224)  # height, width; the network takes any
    widths: tuple[PositiveInt, ...] = (64, 192, 384)
    depths: tuple[PositiveInt, ...] = (1, 2, 10)
    heads: tuple[PositiveInt, ...] = (1, 3, 6)
    patch_sizes: tuple[PositiveInt, ...] = (7, 3, 3)  # of the convolutions that embed
    patch_strides: tuple[PositiveInt, ...] = (4, 2, 2)
    patch_paddings: tuple[NonNegativeInt, ...] = (2, 1, 1)
    mlp_ratio: PositiveFloat = 4.0
    num_classes: NonNegativeInt = 1000  # 0: no head
    head: HeadKind = "pooled"  # patches: a dense one, on each place of the last map
    channels: PositiveInt = 3

    class_token: bool = True  # in the last stage; False: the mean of its tokens is read
    kernel: PositiveInt = 3  # of the convolutional projections
    stride_kv: PositiveInt = 2  # keys and values from every second row and column
    qkv_bias: bool = True
    gelu: Gelu = "quick"  # the authors' code; transformers' is exact
    norm_eps: PositiveFloat = 1e-5
    batch_eps: PositiveFloat = 1e-5

    dropout: BelowOne = 0.0
    attention_dropout: BelowOne = 0.0
    drop_path: BelowOne = 0.0  # stochastic depth: the last layer's rate, growing linearly from 0 over the last stage
    checkpoint_blocks: bool = False  # recompute each block in the backward pass

    def __post_init__(self) -> None:
        check_bounds(self)
        stages = len(self.widths)
        for name in ("depths", "heads", "patch_sizes", "patch_strides", "patch_paddings"):
            if len(getattr(self, name)) != stages:
                raise ConfigError(f"{name} must have one number for each of the {stages} widths.")
        if not stages:
            raise ConfigError("widths must name a stage or more, as in (64, 192, 384).")
        if self.kernel % 2 == 0:
            raise ConfigError(f"kernel must be odd, so that every place has a query, not {self.kernel}.")
        for width, heads in zip(self.widths, self.heads, strict=True):
            if width % heads or int(width * self.mlp_ratio) < 1:
                raise ConfigError(f"The width {width} is not divisible by its {heads} heads, or its MLP is empty.")

    @property
    def places(self) -> list[tuple[int, int]]:
        """(stage, block in it) from 0, for each block in a row."""
        return [(stage, block) for stage, depth in enumerate(self.depths) for block in range(depth)]


@final
class Embedding(nn.Module):
    """Convolutional token embedding: a convolution whose patches overlap, and a norm of each token."""

    def __init__(self, config: CvTConfig, stage: int) -> None:
        super().__init__()
        inputs = config.widths[stage - 1] if stage else config.channels
        self.size, stride, self.padding = (
            values[stage] for values in (config.patch_sizes, config.patch_strides, config.patch_paddings)
        )
        self.conv = nn.Conv2d(inputs, config.widths[stage], self.size, stride, self.padding)
        self.norm = nn.LayerNorm(config.widths[stage], config.norm_eps)

    def forward(self, x: Float[Tensor, "b i h w"]) -> tuple[Float[Tensor, "b n d"], tuple[int, int]]:
        if min(x.shape[-2:]) + 2 * self.padding < self.size:
            raise ImageError(f"A map of {x.shape[-2]} x {x.shape[-1]} is too small for CvT: give larger images.")
        x = self.conv(x)
        return self.norm(to_tokens(x)), (x.shape[-2], x.shape[-1])


@final
class Projection(nn.Module):
    """A depthwise convolution and a batch norm: the convolutional half of a projection to q, k or v."""

    def __init__(self, config: CvTConfig, width: int, stride: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, config.kernel, stride, config.kernel // 2, groups=width, bias=False)
        self.norm = nn.BatchNorm2d(width, config.batch_eps)

    def forward(self, x: Float[Tensor, "b d h w"]) -> Float[Tensor, "b n d"]:
        return to_tokens(normed(self.conv, self.norm, x))


@final
class Attention(nn.Module):
    """Multi-head attention from every place to every second row and column of places, and the class token."""

    def __init__(self, config: CvTConfig, stage: int) -> None:
        super().__init__()
        width = config.widths[stage]
        self.heads, self.dropout = config.heads[stage], config.attention_dropout
        self.scale = width**-0.5  # of the whole width, not of a head's: the authors' code
        self.conv_q = Projection(config, width, 1)
        self.conv_k = Projection(config, width, config.stride_kv)
        self.conv_v = Projection(config, width, config.stride_kv)
        self.q = nn.Linear(width, width, bias=config.qkv_bias)
        self.k = nn.Linear(width, width, bias=config.qkv_bias)
        self.v = nn.Linear(width, width, bias=config.qkv_bias)
        self.out = nn.Linear(width, width)

    def project(self, z: Float[Tensor, "b n d"], layout: Layout) -> list[Float[Tensor, "b h m dh"]]:
        """q, k and v; the prefix tokens pass the convolutions by. No queries of tokens whose outputs nobody reads."""
        prefix, x = z[:, : layout.num_prefix], to_map(z[:, layout.num_prefix :], layout.grid)
        parts: list[Tensor] = []
        for conv, linear in ((self.conv_q, self.q), (self.conv_k, self.k), (self.conv_v, self.v)):
            if layout.outputs is not None and linear is self.q:
                tokens = prefix[:, : layout.outputs]
            else:
                tokens = conv(x)
                if layout.num_prefix:
                    tokens = torch.cat([prefix.to(tokens.dtype), tokens], dim=1)
            parts.append(rearrange(linear(tokens), "b n (h d) -> b h n d", h=self.heads))
        return parts

    def probabilities(self, z: Float[Tensor, "b n d"], layout: Layout) -> Float[Tensor, "b h n m"]:
        """A from every token to the fewer keys, which the fused product below never forms."""
        q, k, _ = self.project(z, layout.with_outputs(None))
        return (q @ k.transpose(-2, -1) * self.scale).softmax(dim=-1)

    def attend(self, A: Float[Tensor, "b h n m"], z: Float[Tensor, "b n d"], layout: Layout) -> Float[Tensor, "b n d"]:
        """What a given A makes of z."""
        _, _, v = self.project(z, layout.with_outputs(None))
        return self.out(rearrange(A @ v, "b h n d -> b n (h d)"))

    def forward(self, z: Float[Tensor, "b n d"], layout: Layout) -> Float[Tensor, "b k d"]:
        q, k, v = self.project(z, layout)
        dropout = self.dropout if self.training else 0.0
        heads = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, scale=self.scale)
        return self.out(rearrange(heads, "b h n d -> b n (h d)"))


@final
class Block(nn.Module):
    """Attention and an MLP, each after a norm and beside a shortcut."""

    def __init__(self, config: CvTConfig, stage: int, drop_path: float) -> None:
        super().__init__()
        width, hidden = config.widths[stage], int(config.widths[stage] * config.mlp_ratio)
        self.gelu, self.dropout, self.drop_path = config.gelu, config.dropout, drop_path
        self.norm1 = nn.LayerNorm(width, config.norm_eps)
        self.attention = Attention(config, stage)
        self.norm2 = nn.LayerNorm(width, config.norm_eps)
        self.up = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width)

    def residual(self, part: Float[Tensor, "b n d"]) -> Float[Tensor, "b n d"]:
        return dropped(F.dropout(part, self.dropout, self.training), self.drop_path, self.training)

    def mlp(self, z: Float[Tensor, "b n d"]) -> Float[Tensor, "b n d"]:
        hidden = self.up(z)
        if self.gelu == "quick":
            hidden = hidden * torch.sigmoid(1.702 * hidden)
        else:
            hidden = F.gelu(hidden, approximate="tanh" if self.gelu == "tanh" else "none")
        return self.down(F.dropout(hidden, self.dropout, self.training))

    def forward(self, z: Float[Tensor, "b n d"], layout: Layout) -> Float[Tensor, "b k d"]:
        kept = z if layout.outputs is None else z[:, : layout.outputs]
        kept = self.residual(self.attention(self.norm1(z), layout)) + kept
        return self.residual(self.mlp(self.norm2(kept))) + kept


@final
class CvT(Model):
    """Embedding and blocks, stage by stage; the class token's features; a linear classifier."""

    takes_subsets: ClassVar[bool] = False  # a convolution needs the whole map

    config: CvTConfig

    def __init__(self, config: CvTConfig, preprocess: Preprocess | None = None) -> None:
        super().__init__(config, preprocess)
        last, width = len(config.widths) - 1, config.widths[-1]
        self.embeddings = nn.ModuleList(Embedding(config, stage) for stage in range(len(config.widths)))
        self.class_token = nn.Parameter(torch.empty(1, width)) if config.class_token else None
        rates = growing(config.drop_path, config.depths[-1])
        self.blocks = nn.ModuleList(
            Block(config, stage, rates[block] if stage == last else 0.0) for stage, block in config.places
        )
        self.norm = nn.LayerNorm(width, config.norm_eps)
        self.head = build_head(config.head, config.num_classes, features=width, width=width)

    @property
    def num_features(self) -> int:
        return self.config.widths[-1]

    @property
    def num_layers(self) -> int:
        return len(self.blocks)

    def layer_of(self, name: str) -> int:
        """A stage's embedding goes with its first block."""
        part, _, rest = name.partition(".")
        if part == "blocks":
            return int(rest.split(".")[0]) + 1
        if part == "embeddings":
            stage = int(rest.split(".")[0])
            return sum(self.config.depths[:stage]) + 1 if stage else 0
        if part == "class_token":
            return sum(self.config.depths[:-1]) + 1
        return self.num_layers + 1

    def _enter(self, stage: int, x: Float[Tensor, "b i h w"]) -> Tokens:
        """The tokens of a stage from the map before it."""
        z, grid = self.embeddings[stage](x)
        num_prefix = 0
        if self.class_token is not None and stage == len(self.embeddings) - 1:
            z = torch.cat([self.class_token.to(z.dtype).expand(z.shape[0], -1, -1), z], dim=1)
            num_prefix = 1
        return Tokens(values=F.dropout(z, self.config.dropout, self.training), grid=grid, num_prefix=num_prefix)

    def _layer(self, i: int, tokens: Tokens, outputs: int | None = None) -> Tokens:
        stage, block = self.config.places[i]
        if stage and not block:
            tokens = self._enter(stage, to_map(tokens.values, tokens.grid))
        if self.config.checkpoint_blocks and self.training:
            return tokens.with_values(recomputed(self.blocks[i], tokens.values, tokens.layout))
        return tokens.with_values(self.blocks[i](tokens.values, tokens.layout.with_outputs(outputs)))

    def embed(self, images: Float[Tensor, "b c h w"]) -> Tokens:
        return self._enter(0, channels_last(images, self.config.channels))

    def encode(self, tokens: Tokens, *, only_pooled: bool = False) -> Tokens:
        """All stages and the final norm; the grid of what comes out is the last stage's.

        `only_pooled` leaves out what `pool` will not read of the last layer. Not in training: the batch norm of that
        layer's queries has statistics to follow.
        """
        need_all_places(tokens, type(self).__name__)
        class_only = only_pooled and self.class_token is not None and not self.training
        for i in range(len(self.blocks)):
            tokens = self._layer(i, tokens, 1 if class_only and i == len(self.blocks) - 1 else None)
        return tokens.with_values(self.norm(tokens.values))

    def pool(self, tokens: Tokens) -> Float[Tensor, "b d"]:
        return tokens.values[:, 0] if self.class_token is not None else tokens.values.mean(dim=1)

    def pooled(self, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b d"]:
        return self.pool(self.encode(self.embed(images), only_pooled=True))

    def features(self, images: Float[Tensor, "b c h w"]) -> list[Tokens]:
        layers = [self.embed(images)]
        for i in range(len(self.blocks)):
            layers.append(self._layer(i, layers[-1]))
        return layers

    @property
    def taps(self) -> Taps:
        """Attention goes from a stage's grid to a coarser one: [B, heads, N, M]."""
        attentions = [block.attention for block in self.blocks if isinstance(block, Block)]
        first = self.embeddings[0]
        assert isinstance(first, Embedding)
        return Taps(
            attention=tuple(AttentionTap(each, each.probabilities, each.attend) for each in attentions),
            filters=lambda: first.conv.weight,
        )

    def initialize(self) -> None:
        """The authors' code's: normal linear layers, torch's own convolutions; the head is zero."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            elif isinstance(module, nn.Conv2d | nn.LayerNorm | nn.BatchNorm2d):
                module.reset_parameters()  # a batch norm's running statistics too
        if self.class_token is not None:
            nn.init.trunc_normal_(self.class_token, std=0.02)
        for parameter in self.head.parameters():
            nn.init.zeros_(parameter)


FAMILY = Family(
    name="cvt",
    config=CvTConfig,
    model=CvT,
    summary="Convolutional vision Transformer (CvT)",
    rows=tuple(CVT_ROWS),
    title="CvT: convolutional vision Transformers",
    pattern="cvt-",
    example={
        "image_size": (32, 48),
        "widths": (16, 32),
        "depths": (1, 2),
        "heads": (2, 4),
        "num_classes": 5,
        "patch_sizes": (7, 3),
        "patch_strides": (4, 2),
        "patch_paddings": (2, 1),
    },
)

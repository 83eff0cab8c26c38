"""The Vision Transformer of "An Image is Worth 16x16 Words" (arXiv 2010.11929); equation numbers are the paper's.

Read it from top to bottom: the configuration, multi-head self-attention, the MLP, an encoder block, and the model that
puts them together. What later work on plain ViTs changed (registers, layer scale, attention pooling, ...) is a field
of the configuration, off by default.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, final

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from vitlab.core.bounds import BelowOne, NonNegativeFloat, NonNegativeInt, PositiveInt
from vitlab.core.config import check_bounds
from vitlab.core.errors import ConfigError, ImageError
from vitlab.core.preprocess import Preprocess
from vitlab.models.contract import AttentionTap, Layout, Model, Taps, Tokens
from vitlab.models.family import Family
from vitlab.models.folding import Reader, Weights, after, taken_in
from vitlab.models.heads import AttentionPool, DistilledHead, HeadKind, build_head
from vitlab.models.positions import AddedPositions, Kind, RelativePositions, Rule, apply_rotary, rotary_angles
from vitlab.models.short_attention import short_attention, takes
from vitlab.models.stages import dropped
from vitlab.models.zoo.vit import VIT_ROWS

Gelu: TypeAlias = Literal["exact", "tanh", "quick"]
Pool: TypeAlias = Literal["token", "mean", "attention", "token+mean"]


@dataclass(frozen=True, kw_only=True)
class ViTConfig:
    """Sizes first; then what is read off a checkpoint's origin; then what only training uses."""

    image_size: tuple[int, int] = (224, 224)  # height, width
    patch_size: PositiveInt = 16  # P
    width: PositiveInt = 768  # D
    depth: NonNegativeInt = 12  # L
    mlp_dim: PositiveInt = 3072
    heads: PositiveInt = 12  # k
    num_classes: NonNegativeInt = 1000  # 0: no head
    channels: PositiveInt = 3

    class_token: bool = True
    distill_token: bool = False  # DeiT's second output token, with a head of its own
    num_registers: NonNegativeInt = 0
    pool: Pool = "token"
    head: HeadKind = "pooled"  # patches: a dense one, on each patch token
    representation: int | None = None  # the pre-training head's hidden layer (tanh)
    positions: Kind = "learned"
    positions_at: Literal["stem", "every", "shared"] | None = None  # None: the stem, or every layer where relative
    rotary: bool = False  # besides, q and k are turned by row and column
    positions_for_prefix: NonNegativeInt = 1  # how many of the prefix tokens have a position
    resize_rule: Rule = "official"
    indivisible: Literal["error", "pad"] = "error"  # images whose sides the patch does not divide

    norm: Literal["pre", "post"] = "pre"  # before each part (the paper) or after it (the original Transformer)
    norm_eps: float = 1e-6
    norm_stem: bool = False  # CLIP's norm between embedding and encoder
    norm_pooled: bool = False  # the final norm after pooling instead of before it
    gelu: Gelu = "tanh"
    gated_mlp: bool = False  # SwiGLU: silu(x U) * (x V) instead of gelu(x U)
    patch_bias: bool = True
    qkv_bias: bool = True
    qk_norm: bool = False
    layer_scale: float | None = None  # its initial value

    positions_std: NonNegativeFloat = 0.02  # of learned positions when they are fresh
    residual_scale: NonNegativeFloat = 1.0  # of a block's fresh output kernels; 0: it starts as the identity
    dropout: BelowOne = 0.0
    attention_dropout: BelowOne = 0.0
    drop_path: BelowOne = 0.0  # stochastic depth: the last layer's rate, growing linearly from 0
    checkpoint_blocks: bool = False  # recompute each block in the backward pass

    def __post_init__(self) -> None:
        check_bounds(self)
        if self.positions_at is None:
            object.__setattr__(self, "positions_at", self.usual_place)
        if self.head == "patches":  # which reads no pooled features: what would only pool them is left out
            object.__setattr__(self, "representation", None)
            object.__setattr__(self, "pool", "mean" if self.pool == "attention" else self.pool)
        if min(self.image_size) < 1 or (
            self.indivisible == "error" and any(s % self.patch_size for s in self.image_size)
        ):
            raise ConfigError(
                f"Patches of {self.patch_size} px do not divide an image of {_by(self.image_size)} px: choose sides"
                f" that are multiples of {self.patch_size}, or a model with indivisible='pad'."
            )
        if self.width % self.heads:
            raise ConfigError(f"The width {self.width} is not divisible by the {self.heads} heads.")
        if self.rotary and (self.relative or self.width // self.heads % 4):
            raise ConfigError("rotary=True needs heads of a width that 4 divides, and positions that are not relative.")
        if self.pool.startswith("token") and not self.class_token:
            raise ConfigError(
                f"pool='{self.pool}' needs class_token=True; choose pool='mean' or 'attention' without it."
            )
        if self.pool == "token+mean" and self.representation is not None:
            raise ConfigError("pool='token+mean' goes without a representation layer.")
        if self.distill_token and (self.pool != "token" or self.representation is not None):
            raise ConfigError("distill_token=True needs pool='token' and no representation layer.")
        if self.relative and self.positions_at == "stem":
            raise ConfigError(
                f"positions='{self.positions}' act in attention: positions_at must be 'every' or 'shared'."
            )
        if self.positions == "none" and self.positions_at != "stem":
            raise ConfigError("positions='none' has nothing to add at other places: leave positions_at out.")

    @property
    def num_prefix(self) -> int:
        return self.class_token + self.distill_token + self.num_registers

    @property
    def relative(self) -> bool:
        return self.positions in ("relative", "relative2d")

    @property
    def usual_place(self) -> Literal["stem", "every"]:
        return "every" if self.relative else "stem"

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches; the last ones are padded where the patch does not divide the image."""
        height, width = self.image_size
        return math.ceil(height / self.patch_size), math.ceil(width / self.patch_size)

    @property
    def patch_shape(self) -> tuple[int, int, int]:
        """Channels, rows and columns of what is projected to a token: pixels here, in a hybrid a ResNet's features."""
        return self.channels, self.patch_size, self.patch_size


@final
class Attention(nn.Module):
    """Multi-head self-attention, equations 5 to 8."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        head_width = config.width // config.heads
        self.heads, self.dropout, self.rotary = config.heads, config.attention_dropout, config.rotary
        self.qkv = nn.Linear(config.width, 3 * config.width, bias=config.qkv_bias)
        self.q_norm = nn.LayerNorm(head_width, config.norm_eps) if config.qk_norm else None
        self.k_norm = nn.LayerNorm(head_width, config.norm_eps) if config.qk_norm else None
        self.out = nn.Linear(config.width, config.width)

    def project(
        self, z: Float[Tensor, "b n d"], layout: Layout, num_queries: int | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """q, k and v as [B, heads, N, D_h], queries for the first `num_queries` tokens only."""
        if num_queries is None or num_queries == z.shape[1]:
            q, k, v = rearrange(self.qkv(z), "b n (three h d) -> three b h n d", three=3, h=self.heads)  # (5)
        else:
            width = z.shape[-1]
            weight, bias = self.qkv.weight, self.qkv.bias
            q_bias, kv_bias = (None, None) if bias is None else (bias[:width], bias[width:])
            q = rearrange(F.linear(z[:, :num_queries], weight[:width], q_bias), "b n (h d) -> b h n d", h=self.heads)
            kv = F.linear(z, weight[width:], kv_bias)
            k, v = rearrange(kv, "b n (two h d) -> two b h n d", two=2, h=self.heads)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q).to(v.dtype), self.k_norm(k).to(v.dtype)
        if self.rotary:
            q, k = (apply_rotary(part.transpose(1, 2), layout).transpose(1, 2) for part in (q, k))
        return q, k, v

    def probabilities(
        self,
        z: Float[Tensor, "b n d"],
        layout: Layout,
        relative: RelativePositions | None = None,
        num_queries: int | None = None,
    ) -> Float[Tensor, "b h n n"]:
        """A for every token, which the fused product below never forms."""
        del num_queries
        q, k, _ = self.project(z, layout, None)
        logits = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
        return (logits if relative is None else logits + relative(q, layout)).softmax(dim=-1)  # (6)

    def attend(
        self,
        A: Float[Tensor, "b h m n"],
        z: Float[Tensor, "b n d"],
        layout: Layout,
        relative: RelativePositions | None = None,
        num_queries: int | None = None,
    ) -> Float[Tensor, "b m d"]:
        """What a given A makes of z, for looking at how the answer depends on A."""
        del relative, num_queries
        _, _, v = self.project(z, layout, None)
        return self.out(rearrange(A @ v, "b h n d -> b n (h d)"))  # (7), (8)

    def forward(
        self,
        z: Float[Tensor, "b n d"],
        layout: Layout,
        relative: RelativePositions | None = None,
        num_queries: int | None = None,
    ) -> Float[Tensor, "b m d"]:
        plain = num_queries is None and relative is None and self.q_norm is None and not self.dropout
        if plain and takes(z, self.heads, rotary=self.rotary):  # all of the below, in one kernel
            angles = rotary_angles(layout, z.shape[-1] // self.heads, z.device) if self.rotary else None
            return self.out(short_attention(self.qkv(z), self.heads, angles))
        q, k, v = self.project(z, layout, num_queries)
        bias = None if relative is None else relative(q, layout)
        heads = F.scaled_dot_product_attention(q, k, v, bias, self.dropout if self.training else 0.0)  # (6), (7)
        return self.out(rearrange(heads, "b h n d -> b n (h d)"))  # (8)


@final
class Mlp(nn.Module):
    """Two layers with a GELU between them, or a gated SiLU."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.gelu, self.gated, self.dropout = config.gelu, config.gated_mlp, config.dropout
        self.up = nn.Linear(config.width, config.mlp_dim * (2 if config.gated_mlp else 1))
        self.down = nn.Linear(config.mlp_dim, config.width)

    def forward(self, z: Float[Tensor, "b n d"]) -> Float[Tensor, "b n d"]:
        hidden = self.up(z)
        if self.gated:
            gate, value = hidden.chunk(2, dim=-1)
            hidden = F.silu(gate) * value
        elif self.gelu == "quick":
            hidden = hidden * torch.sigmoid(1.702 * hidden)
        else:
            hidden = F.gelu(hidden, approximate="tanh" if self.gelu == "tanh" else "none")
        return self.down(F.dropout(hidden, self.dropout, self.training))


class Block(nn.Module):
    """One encoder layer, equations 2 and 3; a layer of experts is a subclass."""

    def __init__(self, config: ViTConfig, drop_path: float) -> None:
        super().__init__()
        self.pre, self.dropout, self.drop_path = config.norm == "pre", config.dropout, drop_path
        self.norm1 = nn.LayerNorm(config.width, config.norm_eps)
        self.attention = Attention(config)
        self.norm2 = nn.LayerNorm(config.width, config.norm_eps)
        self.mlp = Mlp(config)
        scaled = config.layer_scale is not None
        self.scale1 = nn.Parameter(torch.empty(config.width)) if scaled else None
        self.scale2 = nn.Parameter(torch.empty(config.width)) if scaled else None

    def residual(self, part: Float[Tensor, "b n d"], scale: Tensor | None) -> Float[Tensor, "b n d"]:
        """A part's output, scaled and, in training, dropped: single values, or an image's whole part."""
        if scale is not None:
            part = part * scale
        return dropped(F.dropout(part, self.dropout, self.training), self.drop_path, self.training)

    @property
    def readers(self) -> tuple[Reader, ...]:
        """What reads the norms, where they come first."""
        return ((self.norm1, self.attention, "qkv"), (self.norm2, self.mlp, "up")) if self.pre else ()

    def forward(
        self,
        z: Float[Tensor, "b n d"],
        layout: Layout,
        relative: RelativePositions | None = None,
        num_queries: int | None = None,
        weights: tuple[Weights | None, ...] = (None, None),
    ) -> Float[Tensor, "b m d"]:
        """All tokens, or only the first `num_queries` where later ones are of no use: they see all of them.

        `weights` are those of the readers that have their norm in them (`folding`).
        """
        kept = z if num_queries is None else z[:, :num_queries]
        if self.pre:
            part = after(self.readers[0], weights[0], z, layout, relative, num_queries)
            kept = self.residual(part, self.scale1) + kept  # (2)
            return self.residual(after(self.readers[1], weights[1], kept), self.scale2) + kept  # (3)
        kept = self.norm1(self.residual(self.attention(z, layout, relative, num_queries), self.scale1) + kept)
        return self.norm2(self.residual(self.mlp(kept), self.scale2) + kept)


class ViT(Model):
    """Patches, class token and positions; L encoder layers; one vector; a linear classifier.

    A hybrid is a subclass: it has another `stem`, and nothing else of this changes.
    """

    config: ViTConfig

    def __init__(self, config: ViTConfig, preprocess: Preprocess | None = None) -> None:
        super().__init__(config, preprocess)
        width = config.width
        self.projection = nn.Linear(math.prod(config.patch_shape), width, bias=config.patch_bias)  # E
        self.prefix = nn.Parameter(torch.empty(config.num_prefix, width)) if config.num_prefix else None  # x_class

        self.positions = nn.ModuleList()  # E_pos: one for the stem or for all layers, or one per layer
        if config.positions != "none":
            for _ in range(config.depth if config.positions_at == "every" else 1):
                self.positions.append(_positions(config))

        self.norm_stem = nn.LayerNorm(width, config.norm_eps) if config.norm_stem else None
        rates = [config.drop_path * i / max(config.depth - 1, 1) for i in range(config.depth)]
        self.blocks = nn.ModuleList(Block(config, rate) for rate in rates)
        self.norm = nn.LayerNorm(width, config.norm_eps) if config.norm == "pre" else None
        attends = config.pool == "attention"
        self.attention_pool = AttentionPool(width, config.heads, Mlp(config), config.norm_eps) if attends else None
        self.representation = nn.Linear(width, config.representation) if config.representation else None
        if config.distill_token and config.num_classes and config.head == "pooled":
            self.head = DistilledHead(width, config.num_classes)
        else:
            self.head = build_head(config.head, config.num_classes, features=self.num_features, width=width)

    @property
    def num_features(self) -> int:
        two = self.config.distill_token or self.config.pool == "token+mean"
        return self.config.representation or self.config.width * (2 if two else 1)

    @property
    def num_layers(self) -> int:
        return self.config.depth

    def layer_of(self, name: str) -> int:
        if name.startswith("blocks."):
            return int(name.split(".")[1]) + 1
        after = ("head.", "norm.", "attention_pool.", "representation.")
        return self.config.depth + 1 if name.startswith(after) else 0

    @property
    def has_patches(self) -> bool:
        return True

    def stem(self, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b e y x"]:
        """What is cut and projected: the image itself."""
        return images

    def covered(self, size: tuple[int, int]) -> tuple[int, int]:
        patch = self.config.patch_size
        return size[0] + -size[0] % patch, size[1] + -size[1] % patch

    def _whole(self, images: Float[Tensor, "b c h w"]) -> tuple[Float[Tensor, "b c y x"], tuple[int, int]]:
        """Images of whole patches, and their grid: padded where the configuration allows it, refused otherwise."""
        size, channels = self.config.patch_size, images.shape[1]
        if channels != self.config.channels:
            raise ImageError(f"The model takes images of {self.config.channels} channels, not {channels}.")
        height, width = images.shape[-2:]
        if height % size or width % size:
            if self.config.indivisible == "error":
                raise ImageError(
                    f"Patches of {size} px do not divide an image of {_by((height, width))} px: resize it, or build the"
                    " model with indivisible='pad'."
                )
            images = F.pad(images, (0, -width % size, 0, -height % size))
        return images, (images.shape[-2] // size, images.shape[-1] // size)

    def patches(self, images: Float[Tensor, "b c h w"]) -> tuple[Float[Tensor, "b n pixels"], tuple[int, int]]:
        """x_p: the image cut into N = HW / P^2 patches, flattened as a convolution's weight is (c, row, column)."""
        images, grid = self._whole(images)
        return cut(images, self.config.patch_size), grid

    def patchify(self, images: Float[Tensor, "b c h w"]) -> Tokens:
        images, grid = self._whole(images)
        return Tokens(values=self.projection(cut(self.stem(images), self.config.patch_shape[-1])), grid=grid)  # x_p E

    def place(self, tokens: Tokens) -> Tokens:
        assert not tokens.num_prefix, "these tokens were placed before"
        z = tokens.values
        if self.prefix is not None:
            z = torch.cat([self.prefix.to(z.dtype).expand(z.shape[0], -1, -1), z], dim=1)
        placed = Tokens(values=z, grid=tokens.grid, present=tokens.present, num_prefix=self.config.num_prefix)
        if len(self.positions) and not self.config.relative:
            z = self.positions[0](z, placed.layout)  # (1)
        if self.norm_stem is not None:
            z = self.norm_stem(z)
        return placed.with_values(F.dropout(z, self.config.dropout, self.training))

    def _layer(
        self,
        i: int,
        z: Tensor,
        layout: Layout,
        num_queries: int | None = None,
        weights: tuple[Weights | None, ...] = (),
    ) -> Tensor:
        positions = self.positions[i % len(self.positions)] if self.config.positions_at != "stem" else None
        relative = positions if self.config.relative else None
        if i > 0 and positions is not None and relative is None:
            z = positions(z, layout)
        return self._run(self.blocks[i], z, layout, relative, num_queries, *([weights] if weights else []))

    def _run(self, block: nn.Module, *arguments: Any) -> Any:
        """A block's output, now or, where blocks are recomputed, again in the backward pass."""
        if self.config.checkpoint_blocks and self.training:
            return checkpoint(block, *arguments, use_reentrant=False)
        return block(*arguments)

    def encode(self, tokens: Tokens, *, only_pooled: bool = False) -> Tokens:
        """All L layers and the final norm, over whichever tokens are present.

        `only_pooled` leaves out what `pool` will not read: after the last layer only the output tokens matter, so only
        they are computed there. The numbers are the same for about 7% less work in a model of 12 layers.
        """
        z, layout, last = tokens.values, tokens.layout, len(self.blocks) - 1
        by_token = only_pooled and self.config.pool == "token" and not self.config.relative
        outputs = 1 + self.config.distill_token if by_token else None
        readers: list[tuple[Reader, ...]] = [block.readers for block in self.blocks]  # pyright: ignore[reportAssignmentType]
        weights = taken_in([reader for own in readers for reader in own], z)
        for i, own in enumerate(readers):
            z = self._layer(i, z, layout, outputs if i == last else None, tuple(weights[: len(own)]))
            weights = weights[len(own) :]
        return tokens.with_values(z if self.norm is None or self.config.norm_pooled else self.norm(z))

    def pool(self, tokens: Tokens) -> Float[Tensor, "b f"]:
        if self.attention_pool is not None:
            y = self.attention_pool(tokens.patches)  # without prefix tokens, as timm pools where there are registers
        elif self.config.pool == "mean":
            y = tokens.patches.mean(dim=1)
        elif self.config.pool == "token+mean":  # side by side, as DINOv2's linear classifiers read them
            y = torch.stack([tokens.values[:, 0], tokens.patches.mean(dim=1)], dim=1)
        else:
            y = tokens.values[:, : 1 + self.config.distill_token]  # z_L^0
        if self.norm is not None and self.config.norm_pooled:
            y = self.norm(y)  # (4), where `encode` has not applied it
        y = y.flatten(1)
        return y if self.representation is None else torch.tanh(self.representation(y))

    def pooled(self, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b f"]:
        return self.pool(self.encode(self.embed(images), only_pooled=True))

    def dense(self, images: Float[Tensor, "b c h w"]) -> Tokens:
        tokens = self.encode(self.embed(images))
        if self.norm is None or not self.config.norm_pooled:
            return tokens
        return tokens.with_values(self.norm(tokens.values))

    def features(self, images: Float[Tensor, "b c h w"]) -> list[Tokens]:
        tokens = self.embed(images)
        layers = [tokens]
        for i in range(len(self.blocks)):
            layers.append(tokens.with_values(self._layer(i, layers[-1].values, tokens.layout)))
        return layers

    @property
    def taps(self) -> Taps:
        blocks = [block.attention for block in self.blocks if isinstance(block, Block)]
        size = self.config.patch_size
        return Taps(
            attention=tuple(AttentionTap(each, each.probabilities, each.attend) for each in blocks),
            filters=lambda: rearrange(self.projection.weight, "d (c p q) -> d c p q", p=size, q=size),
            positions=self._places if len(self.positions) and not self.config.relative else None,
        )

    def _places(self) -> Float[Tensor, "n d"]:
        positions = self.positions[0]
        assert isinstance(positions, AddedPositions)
        return positions.all_places(self.config.grid, self.projection.weight.device)[positions.num_prefix :]

    def initialize(self) -> None:
        """The official code's: Xavier-uniform kernels, LeCun-normal patches, zero class token, normal positions."""
        for module in reversed(list(self.modules())):  # children first, so that their parents have the last word
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            elif isinstance(module, nn.LayerNorm):
                module.reset_parameters()
            elif isinstance(module, AddedPositions | RelativePositions):
                module.initialize(self.config.positions_std)
            elif isinstance(module, Attention):
                for part in module.qkv.weight.chunk(3):  # three kernels, not one of three times the width
                    nn.init.xavier_uniform_(part)
            elif isinstance(module, Mlp):
                nn.init.normal_(module.up.bias, std=1e-6)
                nn.init.normal_(module.down.bias, std=1e-6)
            elif isinstance(module, AttentionPool):
                nn.init.xavier_uniform_(module.probe)
                for part in module.kv.weight.chunk(2):
                    nn.init.xavier_uniform_(part)
            elif isinstance(module, Block):
                with torch.no_grad():
                    module.attention.out.weight.mul_(self.config.residual_scale)
                    module.mlp.down.weight.mul_(self.config.residual_scale)
                if module.scale1 is not None and module.scale2 is not None:
                    assert self.config.layer_scale is not None
                    nn.init.constant_(module.scale1, self.config.layer_scale)
                    nn.init.constant_(module.scale2, self.config.layer_scale)
        std = self.projection.in_features**-0.5 / 0.87962566  # a normal cut off at two deviations has .88 of the spread
        nn.init.trunc_normal_(self.projection.weight, std=std, a=-2 * std, b=2 * std)
        if self.prefix is not None:
            nn.init.zeros_(self.prefix)
            nn.init.normal_(self.prefix[self.config.num_prefix - self.config.num_registers :], std=0.02)
        for parameter in self.head.parameters():
            nn.init.zeros_(parameter)


def cut(image: Float[Tensor, "b c h w"], side: int) -> Float[Tensor, "b n pixels"]:
    """The squares of an image or a map, row by row."""
    return rearrange(image, "b c (h p) (w q) -> b (h w) (c p q)", p=side, q=side)


def _positions(config: ViTConfig) -> AddedPositions | RelativePositions:
    if config.relative:
        return RelativePositions(config.positions, config.grid, config.width // config.heads, rule=config.resize_rule)
    placed = min(config.positions_for_prefix, config.num_prefix)
    return AddedPositions(config.positions, config.grid, config.width, num_prefix=placed, rule=config.resize_rule)


def _by(size: tuple[int, int]) -> str:
    return f"{size[0]} x {size[1]}"


FAMILY = Family(
    name="vit",
    config=ViTConfig,
    model=ViT,
    summary="Vision Transformer",
    rows=tuple(VIT_ROWS),
    title="Vision Transformers",
    pattern="vit-",
    example={
        "image_size": (32, 48),
        "patch_size": 8,
        "width": 32,
        "depth": 2,
        "mlp_dim": 64,
        "heads": 4,
        "num_classes": 5,
    },
)

"""The Vision Transformer of "An Image is Worth 16x16 Words" (arXiv 2010.11929); equation numbers are the paper's.

Read it from top to bottom: multi-head self-attention, the MLP, an encoder block, and the model that puts them together.
What later work on plain ViTs changed (registers, layer scale, attention pooling, ...) is a field of the configuration
(vit_config.py), off by default.
"""

import math
from typing import Any, final

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from vitlab.core.errors import ConfigError, ImageError
from vitlab.core.preprocess import Preprocess
from vitlab.kernels.attention import attention, project
from vitlab.models.contract import AttentionTap, Layout, Model, Taps, Tokens
from vitlab.models.family import Family
from vitlab.models.heads import AttentionPool, build_head, gather
from vitlab.models.positions import AddedPositions, RelativePositions, RotaryUnit, apply_rotary, rotary_angles
from vitlab.models.stages import dropped
from vitlab.models.vit_config import ViTConfig
from vitlab.models.zoo.vit import VIT_ROWS


@final
class Attention(nn.Module):
    """Multi-head self-attention, equations 5 to 8."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        head_width = config.width // config.heads
        self.heads, self.dropout = config.heads, config.attention_dropout
        self.rotary: RotaryUnit | None = config.rotary_unit if config.rotary else None
        self.qkv = nn.Linear(config.width, 3 * config.width, bias=config.qkv_bias)
        self.q_norm = nn.LayerNorm(head_width, config.norm_eps) if config.qk_norm else None
        self.k_norm = nn.LayerNorm(head_width, config.norm_eps) if config.qk_norm else None
        self.out = nn.Linear(config.width, config.width)

    def project(self, z: Float[Tensor, "b n d"], layout: Layout) -> tuple[Tensor, Tensor, Tensor]:
        """q, k and v as [B, heads, N, D_h]; no queries of tokens whose outputs nobody reads."""
        q, k, v = project(self.qkv, z, self.heads, layout.outputs)  # (5)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q).to(v.dtype), self.k_norm(k).to(v.dtype)
        if self.rotary:
            q, k = (apply_rotary(part.transpose(1, 2), layout, self.rotary).transpose(1, 2) for part in (q, k))
        return q, k, v

    def probabilities(
        self, z: Float[Tensor, "b n d"], layout: Layout, relative: RelativePositions | None = None
    ) -> Float[Tensor, "b h n n"]:
        """A for every token, which the fused product below never forms."""
        q, k, _ = self.project(z, layout.with_outputs(None))
        logits = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
        return (logits if relative is None else logits + relative(q, layout)).softmax(dim=-1)  # (6)

    def attend(
        self,
        A: Float[Tensor, "b h m n"],
        z: Float[Tensor, "b n d"],
        layout: Layout,
        _relative: RelativePositions | None = None,
    ) -> Float[Tensor, "b m d"]:
        """What a given A makes of z, for looking at how the answer depends on A."""
        _, _, v = self.project(z, layout.with_outputs(None))
        return self.out(rearrange(A @ v, "b h n d -> b n (h d)"))  # (7), (8)

    def forward(
        self, z: Float[Tensor, "b n d"], layout: Layout, relative: RelativePositions | None = None
    ) -> Float[Tensor, "b m d"]:
        dropout = self.dropout if self.training else 0.0
        if relative is None and self.q_norm is None and layout.outputs is None:
            angles = None
            if self.rotary:
                angles = rotary_angles(layout, z.shape[-1] // self.heads, z.device, self.rotary)
            return self.out(attention(self.qkv(z), self.heads, angles, dropout))  # (5) to (8)
        q, k, v = self.project(z, layout)
        bias = None if relative is None else relative(q, layout)
        heads = F.scaled_dot_product_attention(q, k, v, bias, dropout)  # (6), (7)
        return self.out(rearrange(heads, "b h n d -> b n (h d)"))  # (8)

    def initialize(self) -> None:
        for part in self.qkv.weight.chunk(3):  # three kernels, not one of three times the width
            nn.init.xavier_uniform_(part)


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

    def initialize(self) -> None:
        nn.init.normal_(self.up.bias, std=1e-6)
        nn.init.normal_(self.down.bias, std=1e-6)


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

    @property
    def normed(self) -> dict[str, str]:
        """The norms that one linear layer alone reads, and these layers."""
        return {"norm1": "attention.qkv", "norm2": "mlp.up"} if self.pre else {}

    def residual(self, part: Float[Tensor, "b n d"], scale: Tensor | None) -> Float[Tensor, "b n d"]:
        """A part's output, scaled and, in training, dropped: single values, or an image's whole part."""
        if scale is not None:
            part = part * scale
        return dropped(F.dropout(part, self.dropout, self.training), self.drop_path, self.training)

    def forward(
        self, z: Float[Tensor, "b n d"], layout: Layout, relative: RelativePositions | None = None
    ) -> Float[Tensor, "b m d"]:
        kept = z if layout.outputs is None else z[:, : layout.outputs]
        if self.pre:
            kept = self.residual(self.attention(self.norm1(z), layout, relative), self.scale1) + kept  # (2)
            return self.residual(self.mlp(self.norm2(kept)), self.scale2) + kept  # (3)
        kept = self.norm1(self.residual(self.attention(z, layout, relative), self.scale1) + kept)
        return self.norm2(self.residual(self.mlp(kept), self.scale2) + kept)


class ViT(Model):
    """Patches, class token and positions; L encoder layers; one vector; a linear classifier.

    A hybrid is a subclass: it has another `stem`, and nothing else of this changes.
    """

    config: ViTConfig

    def __init__(self, config: ViTConfig, preprocess: Preprocess | None = None) -> None:
        super().__init__(config, preprocess)
        if config.patch_dropout and not self.takes_subsets:
            raise ConfigError(f"{type(self).__name__} takes all patches of an image: leave patch_dropout out.")
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
        of_image, distilled = self.num_features, config.distill_token
        self.head = build_head(config.head, config.num_classes, features=of_image, width=width, distilled=distilled)

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
    def normed_layers(self) -> tuple[tuple[str, str], ...]:
        if self.config.checkpoint_blocks:  # which read their weights again in the backward pass
            return ()
        blocks = [(name, block) for name, block in self.named_modules() if isinstance(block, Block)]
        return tuple((f"{at}.{norm}", f"{at}.{layer}") for at, block in blocks for norm, layer in block.normed.items())

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
                    f"Patches of {size} px do not divide an image of {height} x {width} px: resize it, or build the"
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

    def embed(self, images: Float[Tensor, "b c h w"]) -> Tokens:
        tokens = self.patchify(images)
        if self.config.patch_dropout and self.training:
            num = tokens.values.shape[1]
            kept = max(int(num * (1 - self.config.patch_dropout)), 1)
            drawn = torch.rand(tokens.values.shape[:2], device=images.device)
            tokens = tokens.keep(drawn.argsort(dim=1)[:, :kept])
        return self.place(tokens)

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

    def _layer(self, i: int, z: Tensor, layout: Layout) -> Tensor:
        positions = self.positions[i % len(self.positions)] if self.config.positions_at != "stem" else None
        relative = positions if self.config.relative else None
        if i > 0 and positions is not None and relative is None:
            z = positions(z, layout)
        return self._run(self.blocks[i], z, layout, relative)

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
        for i in range(len(self.blocks)):
            z = self._layer(i, z, layout if i < last else layout.with_outputs(outputs))
        return tokens.with_values(z if self.norm is None or self.config.norm_pooled else self.norm(z))

    def pool(self, tokens: Tokens) -> Float[Tensor, "b f"]:
        if self.attention_pool is not None:
            y = self.attention_pool(tokens.patches)  # without prefix tokens, as timm pools where there are registers
        else:
            y = gather(tokens, self.config.pool, outputs=1 + self.config.distill_token)  # z_L^0
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
            elif isinstance(module, Attention | Mlp | AttentionPool):
                module.initialize()
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


# A small model, for the tests of the contract; other families of ViTs add to it.
EXAMPLE: dict[str, Any] = {
    "image_size": (32, 48),
    "patch_size": 8,
    "width": 32,
    "depth": 2,
    "mlp_dim": 64,
    "heads": 4,
    "num_classes": 5,
}

FAMILY = Family(
    name="vit",
    config=ViTConfig,
    model=ViT,
    summary="Vision Transformer",
    rows=tuple(VIT_ROWS),
    title="Vision Transformers",
    pattern="vit-",
    example=EXAMPLE,
)

"""CoAtNet: Marrying Convolution and Attention for All Data Sizes (arXiv 2106.04803).

A stem, stages of inverted bottlenecks (MBConv), then stages of Transformer blocks with relative attention; the map's
sides are halved at the start of a stage. No code of the authors' is public: the defaults of the configuration
(coatnet_config.py) are timm's reading of the paper.
"""

import math
from typing import ClassVar, Literal, final

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from vitlab.core.preprocess import Preprocess
from vitlab.models.coatnet_config import Activation, BlockSpec, CoAtNetConfig
from vitlab.models.contract import AttentionTap, Model, Taps, Tokens, need_all_places
from vitlab.models.family import Family
from vitlab.models.heads import build_head
from vitlab.models.positions import Grid
from vitlab.models.relative import RelativeBias, RelativeMlp
from vitlab.models.resnet import to_map, to_tokens
from vitlab.models.stages import Pooling, channels_last, dropped, growing, normed, pooled, recomputed, scale_and_shift
from vitlab.models.zoo.convolutional import COATNET_ROWS


def activated(x: Tensor, kind: Activation) -> Tensor:
    return F.gelu(x) if kind == "gelu" else F.silu(x, inplace=not x.requires_grad)


@final
class Stem(nn.Module):
    """Two convolutions of 3 x 3, the first of stride 2."""

    def __init__(self, config: CoAtNetConfig) -> None:
        super().__init__()
        self.activation: Activation = config.conv_activation
        self.conv1 = nn.Conv2d(config.channels, config.stem[0], 3, 2, 1, bias=False)
        self.norm = nn.BatchNorm2d(config.stem[0], config.batch_eps)
        self.conv2 = nn.Conv2d(config.stem[0], config.stem[1], 3, 1, 1, bias=False)

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b d y x"]:
        return self.conv2(activated(normed(self.conv1, self.norm, x), self.activation))


@final
class Shortcut(nn.Module):
    """What a block adds its own output to: its input, pooled and projected where shapes change."""

    def __init__(self, config: CoAtNetConfig, spec: BlockSpec, *, bias: bool) -> None:
        super().__init__()
        self.stride = spec.stride
        self.pooling: Pooling = config.pooling
        self.conv = nn.Conv2d(spec.inputs, spec.width, 1, bias=bias) if spec.inputs != spec.width else None

    def forward(self, x: Float[Tensor, "b i h w"]) -> Float[Tensor, "b o y x"]:
        if self.stride == 2:
            x = pooled(x, self.pooling)
        return x if self.conv is None else self.conv(x)


@final
class Squeeze(nn.Module):
    """Squeeze-and-excitation: each channel scaled by what the means of all channels say (arXiv 1709.01507)."""

    def __init__(self, width: int, inner: int, activation: Literal["silu", "relu"]) -> None:
        super().__init__()
        self.down = nn.Linear(width, inner)
        self.up = nn.Linear(inner, width)
        self.act = F.silu if activation == "silu" else F.relu

    def forward(self, x: Float[Tensor, "b d h w"]) -> Float[Tensor, "b d 1 1"]:
        """The factors of each image's channels."""
        return torch.sigmoid(self.up(self.act(self.down(x.mean(dim=(2, 3))))))[:, :, None, None]


@final
class MBConv(nn.Module):
    """A pre-norm inverted bottleneck: 1 x 1 to the hidden width, depthwise 3 x 3, 1 x 1 back."""

    def __init__(self, config: CoAtNetConfig, spec: BlockSpec, drop_path: float) -> None:
        super().__init__()
        self.config, self.drop_path = config, drop_path
        hidden = config.expansion * spec.inner(config)
        self.pool_first = spec.stride == 2 and config.downsample == "pool"
        stride = 1 if self.pool_first else spec.stride
        self.shortcut = Shortcut(config, spec, bias=config.conv_bias)
        self.norm = nn.BatchNorm2d(spec.inputs, config.batch_eps)
        self.expand = nn.Conv2d(spec.inputs, hidden, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(hidden, config.batch_eps)
        self.depthwise = nn.Conv2d(hidden, hidden, 3, stride, 1, groups=hidden, bias=False)
        self.norm2 = nn.BatchNorm2d(hidden, config.batch_eps)
        self.squeeze = Squeeze(hidden, round(config.squeeze * hidden), config.squeeze_activation)
        self.reduce = nn.Conv2d(hidden, spec.width, 1, bias=config.conv_bias)

    def _scaled(self, y: Float[Tensor, "b d h w"], factors: Float[Tensor, "b d 1 1"]) -> Float[Tensor, "b d h w"]:
        """Squeeze-and-excitation's factors before the norm; in evaluation one pass."""
        if self.training:
            return self.norm2(y * factors)
        scale, shift = (each.to(y.dtype)[:, None, None] for each in scale_and_shift(self.norm2))
        return torch.addcmul(shift, y, factors.to(y.dtype) * scale)

    def forward(self, x: Float[Tensor, "b i h w"]) -> Float[Tensor, "b o y x"]:
        config, act = self.config, self.config.conv_activation
        y = self.norm(x)
        if config.pre_activation:
            y = activated(y, act)
        if self.pool_first:
            y = pooled(y, "mean")  # by the mean also where the shortcut is pooled by the maximum: timm's variants
        y = activated(normed(self.expand, self.norm1, y), act)
        if config.squeeze_early:
            y = self.depthwise(y)
            y = activated(self._scaled(y, self.squeeze(y)), act)
        else:
            y = activated(normed(self.depthwise, self.norm2, y), act)
            y = y * self.squeeze(y)
        return dropped(self.reduce(y), self.drop_path, self.training) + self.shortcut(x)


@final
class Attention(nn.Module):
    """Multi-head self-attention with a bias for the offset between two places added to the logits."""

    def __init__(self, config: CoAtNetConfig, spec: BlockSpec) -> None:
        super().__init__()
        inner = spec.inner(config)
        self.heads, self.dropout = inner // config.head_width, config.attention_dropout
        self.qkv = nn.Linear(spec.inputs, 3 * inner)
        self.out = nn.Linear(inner, spec.width)
        self.relative = (
            RelativeBias(spec.grid, self.heads, config.resize_rule)
            if config.relative == "bias"
            else RelativeMlp(self.heads, config.relative_hidden)
        )

    def project(self, z: Float[Tensor, "b n i"]) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = rearrange(self.qkv(z), "b n (three h d) -> three b h n d", three=3, h=self.heads)
        return q, k, v

    def probabilities(self, z: Float[Tensor, "b n i"], grid: Grid) -> Float[Tensor, "b h n n"]:
        """A, which the fused product below never forms."""
        q, k, _ = self.project(z)
        return (q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5 + self.relative(grid)).softmax(dim=-1)

    def attend(self, A: Float[Tensor, "b h n n"], z: Float[Tensor, "b n i"], grid: Grid) -> Float[Tensor, "b n o"]:
        """What a given A makes of z."""
        del grid
        return self.out(rearrange(A @ self.project(z)[2], "b h n d -> b n (h d)"))

    def forward(self, z: Float[Tensor, "b n i"], grid: Grid) -> Float[Tensor, "b n o"]:
        q, k, v = self.project(z)
        bias = self.relative(grid).to(q.dtype)[None]
        heads = F.scaled_dot_product_attention(q, k, v, bias, self.dropout if self.training else 0.0)
        return self.out(rearrange(heads, "b h n d -> b n (h d)"))


@final
class TransformerBlock(nn.Module):
    """Relative attention and an MLP; at the start of a stage queries, keys and values are pooled first."""

    def __init__(self, config: CoAtNetConfig, spec: BlockSpec, drop_path: float) -> None:
        super().__init__()
        self.stride = spec.stride
        self.pooling: Pooling = config.pooling
        self.dropout, self.drop_path = config.dropout, drop_path
        self.shortcut = Shortcut(config, spec, bias=config.shortcut_bias)
        self.norm1 = nn.LayerNorm(spec.inputs, config.norm_eps)
        self.attention = Attention(config, spec)
        self.norm2 = nn.LayerNorm(spec.width, config.norm_eps)
        self.up = nn.Linear(spec.width, config.expansion * spec.width)
        self.down = nn.Linear(config.expansion * spec.width, spec.width)
        scaled = config.layer_scale is not None
        self.scale1 = nn.Parameter(torch.empty(spec.width)) if scaled else None
        self.scale2 = nn.Parameter(torch.empty(spec.width)) if scaled else None

    def residual(self, part: Float[Tensor, "b n d"], scale: Tensor | None) -> Float[Tensor, "b n d"]:
        part = part if scale is None else part * scale
        return dropped(F.dropout(part, self.dropout, self.training), self.drop_path, self.training)

    def forward(self, x: Float[Tensor, "b i h w"]) -> Float[Tensor, "b o y x"]:
        grid = (x.shape[-2], x.shape[-1])
        z = self.norm1(to_tokens(x))
        if self.stride == 2:
            y = pooled(to_map(z, grid), self.pooling)
            z, grid = to_tokens(y), (y.shape[-2], y.shape[-1])
        z = self.residual(self.attention(z, grid), self.scale1) + to_tokens(self.shortcut(x))
        hidden = F.dropout(F.gelu(self.up(self.norm2(z))), self.dropout, self.training)
        return to_map(self.residual(self.down(hidden), self.scale2) + z, grid)


@final
class CoAtNet(Model):
    """A stem, blocks in stages, the mean over places, a classifier."""

    takes_subsets: ClassVar[bool] = False  # a convolution needs the whole map

    config: CoAtNetConfig

    def __init__(self, config: CoAtNetConfig, preprocess: Preprocess | None = None) -> None:
        super().__init__(config, preprocess)
        width, specs = config.widths[-1], config.blocks
        self.stem = Stem(config)
        self.blocks = nn.ModuleList(
            (MBConv if spec.kind == "conv" else TransformerBlock)(config, spec, rate)
            for spec, rate in zip(specs, growing(config.drop_path, len(specs)), strict=True)
        )
        self.norm = nn.LayerNorm(width, config.norm_eps)
        self.representation = nn.Linear(width, config.representation) if config.representation else None
        self.head = build_head(config.head, config.num_classes, features=self.num_features, width=width)

    @property
    def num_features(self) -> int:
        return self.config.representation or self.config.widths[-1]

    @property
    def num_layers(self) -> int:
        return len(self.blocks)

    def layer_of(self, name: str) -> int:
        if name.startswith("blocks."):
            return int(name.split(".")[1]) + 1
        return 0 if name.startswith("stem.") else self.num_layers + 1

    def _layer(self, i: int, x: Tensor) -> Tensor:
        if self.config.checkpoint_blocks and self.training:
            return recomputed(self.blocks[i], x)
        return self.blocks[i](x)

    def embed(self, images: Float[Tensor, "b c h w"]) -> Tokens:
        return _tokens(self.stem(channels_last(images, self.config.channels)))

    def encode(self, tokens: Tokens) -> Tokens:
        """All stages and the final norm; the grid of what comes out is the last stage's."""
        need_all_places(tokens, type(self).__name__)
        x = to_map(tokens.values, tokens.grid)
        for i in range(len(self.blocks)):
            x = self._layer(i, x)
        encoded = _tokens(x)
        return encoded if self.config.norm_pooled else encoded.with_values(self.norm(encoded.values))

    def pool(self, tokens: Tokens) -> Float[Tensor, "b d"]:
        y = tokens.values.mean(dim=1)
        if self.config.norm_pooled:
            y = self.norm(y)
        y = y if self.representation is None else torch.tanh(self.representation(y))
        return F.dropout(y, self.config.dropout, self.training)

    def dense(self, images: Float[Tensor, "b c h w"]) -> Tokens:
        tokens = self.encode(self.embed(images))
        return tokens.with_values(self.norm(tokens.values)) if self.config.norm_pooled else tokens

    def features(self, images: Float[Tensor, "b c h w"]) -> list[Tokens]:
        x = self.stem(channels_last(images, self.config.channels))
        layers = [_tokens(x)]
        for i in range(len(self.blocks)):
            x = self._layer(i, x)
            layers.append(_tokens(x))
        return layers

    @property
    def taps(self) -> Taps:
        attentions = [block.attention for block in self.blocks if isinstance(block, TransformerBlock)]
        return Taps(
            attention=tuple(AttentionTap(each, each.probabilities, each.attend) for each in attentions),
            filters=lambda: self.stem.conv1.weight,
        )

    def initialize(self) -> None:
        """timm's: He-normal convolutions by their outputs, Xavier-uniform Transformers; the head is zero."""
        for module in reversed(list(self.modules())):  # children first, so that their parents have the last word
            if isinstance(module, nn.Conv2d):
                outputs = math.prod(module.kernel_size) * module.out_channels // module.groups
                nn.init.normal_(module.weight, std=(2 / outputs) ** 0.5)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            elif isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)
            elif isinstance(module, nn.LayerNorm | nn.BatchNorm2d):
                module.reset_parameters()  # a batch norm's running statistics too
            elif isinstance(module, RelativeBias):
                module.initialize()
            elif isinstance(module, TransformerBlock) and module.scale1 is not None and module.scale2 is not None:
                assert self.config.layer_scale is not None
                nn.init.constant_(module.scale1, self.config.layer_scale)
                nn.init.constant_(module.scale2, self.config.layer_scale)
        for parameter in self.head.parameters():
            nn.init.zeros_(parameter)


def _tokens(x: Float[Tensor, "b d h w"]) -> Tokens:
    return Tokens(values=to_tokens(x), grid=(x.shape[-2], x.shape[-1]))


FAMILY = Family(
    name="coatnet",
    config=CoAtNetConfig,
    model=CoAtNet,
    summary="CoAtNet",
    rows=tuple(COATNET_ROWS),
    title="CoAtNet",
    pattern="coatnet-",
    example={
        "image_size": (32, 48),
        "stem": (8, 16),
        "kinds": ("conv", "attention"),
        "num_classes": 5,
        "depths": (1, 2),
        "widths": (16, 32),
        "strides": (2, 2),
        "head_width": 8,
    },
)

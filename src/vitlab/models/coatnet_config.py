"""A CoAtNet's configuration: by default timm's reading of the paper (`coatnet_*_224`).

The fields in the middle are what timm's own variants (`coatnet_*_rw_224`) do otherwise.
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from vitlab.core.bounds import BelowOne, Fraction, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from vitlab.core.config import check_bounds
from vitlab.core.errors import ConfigError
from vitlab.models.heads import HeadKind
from vitlab.models.positions import Grid
from vitlab.models.relative import BiasRule
from vitlab.models.stages import Pooling

Kind: TypeAlias = Literal["conv", "attention"]
Activation: TypeAlias = Literal["gelu", "silu"]


@dataclass(frozen=True, kw_only=True)
class CoAtNetConfig:
    """Sizes, one per stage, first; then what a checkpoint's origin decides; then what only training uses."""

    image_size: tuple[PositiveInt, PositiveInt] = (224, 224)  # height, width; any size: biases are resized
    stem: tuple[PositiveInt, PositiveInt] = (64, 64)  # the widths of the stem's two convolutions
    kinds: tuple[Kind, ...] = ("conv", "conv", "attention", "attention")
    depths: tuple[PositiveInt, ...] = (2, 3, 5, 2)
    widths: tuple[PositiveInt, ...] = (96, 192, 384, 768)
    strides: tuple[int, ...] = (2, 2, 2, 2)  # of a stage's first block
    expansion: PositiveInt = 4  # of the hidden width in a bottleneck, and in an MLP
    head_width: PositiveInt = 32
    num_classes: NonNegativeInt = 1000  # 0: no head
    head: HeadKind = "pooled"  # patches: a dense one, on each place of the last map
    channels: PositiveInt = 3

    representation: PositiveInt | None = None  # a hidden layer with tanh before the classifier
    norm_pooled: bool = True  # the final norm after the mean over places instead of before it
    widens: Literal["first", "last"] = "first"  # which projection of a block goes to a wider stage's width
    conv_activation: Activation = "gelu"
    pre_activation: bool = False  # an activation after the norm before a bottleneck
    downsample: Literal["conv", "pool"] = "conv"  # in a bottleneck: by the depthwise convolution, or before it
    pooling: Pooling = "mean"  # of 2 x 2, or of 3 x 3
    conv_bias: bool = True  # in a bottleneck's last convolution and its shortcut's
    shortcut_bias: bool = True  # in an attention block's shortcut
    squeeze: Fraction = 1 / 16  # the width of squeeze-and-excitation, of the hidden width
    squeeze_activation: Literal["silu", "relu"] = "silu"
    squeeze_early: bool = False  # before the norm that follows the depthwise convolution
    relative: Literal["bias", "mlp"] = "bias"
    relative_hidden: PositiveInt = 512  # of relative="mlp"
    layer_scale: NonNegativeFloat | None = None  # its initial value, in attention blocks
    resize_rule: BiasRule = "bilinear"
    norm_eps: PositiveFloat = 1e-6
    batch_eps: PositiveFloat = 1e-5

    dropout: BelowOne = 0.0
    attention_dropout: BelowOne = 0.0
    drop_path: BelowOne = 0.0  # stochastic depth: the last block's rate, growing linearly from 0
    checkpoint_blocks: bool = False  # recompute each block in the backward pass

    def __post_init__(self) -> None:
        check_bounds(self)
        if self.head == "patches":
            object.__setattr__(self, "representation", None)  # it reads no pooled features
        stages = len(self.widths)
        if not stages:
            raise ConfigError("widths must name a stage or more, as in (96, 192, 384, 768).")
        for name in ("kinds", "depths", "strides"):
            if len(getattr(self, name)) != stages:
                raise ConfigError(f"{name} must have one entry for each of the {stages} widths.")
        if not set(self.strides) <= {1, 2}:
            raise ConfigError(f"strides must be 1 or 2 each, not {self.strides}.")
        for spec in self.blocks:
            if spec.kind == "attention" and spec.inner(self) % self.head_width:
                raise ConfigError(
                    f"Attention of width {spec.inner(self)} is not divisible by heads of width {self.head_width}."
                )

    @property
    def blocks(self) -> "list[BlockSpec]":
        """Every block in a row."""
        found: list[BlockSpec] = []
        inputs, grid = self.stem[1], _halved(self.image_size)
        stages = zip(self.kinds, self.depths, self.widths, self.strides, strict=True)
        for stage, (kind, depth, width, stride) in enumerate(stages):
            grid = _halved(grid) if stride == 2 else grid
            for place in range(depth):
                found.append(BlockSpec(kind, stage, place, inputs, width, 1 if place else stride, grid))
                inputs = width
        return found


@dataclass(frozen=True)
class BlockSpec:
    """A block's place and sizes; `grid` is that of its output at the configuration's image size."""

    kind: Kind
    stage: int
    place: int
    inputs: int
    width: int
    stride: int
    grid: Grid

    def inner(self, config: CoAtNetConfig) -> int:
        """The width that a bottleneck expands, or that attention has."""
        return self.width if config.widens == "first" else self.inputs


def _halved(grid: Grid) -> Grid:
    return (grid[0] + 1) // 2, (grid[1] + 1) // 2

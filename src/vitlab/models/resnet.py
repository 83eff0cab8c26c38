"""Residual networks with group norm and standardised convolutions: BiT's bodies, and the stems of hybrids.

Three public versions of the same network differ in small numbers that matter to trained weights: where the activation
is, what the standardisation adds to the deviation, and how borders are padded. Each is a field of the specification,
and a checkpoint's origin decides it.
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias, final

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from vitlab.core.bounds import NonNegativeFloat, PositiveFloat, PositiveInt
from vitlab.core.config import check_bounds
from vitlab.core.errors import ConfigError, ImageError
from vitlab.models.norms import by_deviation, group_norm

EpsOf: TypeAlias = Literal["std", "variance"]


@dataclass(frozen=True, kw_only=True)
class ResNetSpec:
    """Sizes first; then what a checkpoint's origin decides. The defaults are BiT's own."""

    layers: tuple[PositiveInt, ...] = (
        3,
        4,
        6,
        3,
    )  # units per stage; the sides are halved before each but the first
    width: PositiveInt = 64  # of the stem: 64 times the paper's width factor
    channels: PositiveInt = 3
    small_root: bool = False  # 3 x 3 at stride 1 and no max-pool, as ResNets for images of CIFAR's size begin

    activation: Literal["pre", "post"] = "pre"  # norm and ReLU before each convolution, or after it
    padding: Literal["symmetric", "same"] = "symmetric"  # same: TensorFlow's, less on the first sides where uneven
    pool_padding: Literal["zeros", "infinity"] = "zeros"  # of the stem's max-pool: 0, or minus infinity
    groups: PositiveInt = 32
    norm_eps: PositiveFloat = 1e-5
    weight_eps: NonNegativeFloat = 1e-10
    weight_eps_of: EpsOf = "variance"  # w / sqrt(variance + eps), or w / (std + eps)

    def __post_init__(self) -> None:
        check_bounds(self)
        if self.width % self.groups:
            raise ConfigError(f"The width {self.width} is not divisible by the {self.groups} groups of its norms.")

    @property
    def stride(self) -> int:
        """How many pixels a side of the last map's places covers."""
        return (1 if self.small_root else 4) * 2 ** max(len(self.layers) - 1, 0)

    @property
    def num_features(self) -> int:
        """The channels of the last map."""
        return self.width * 2 ** (len(self.layers) + 1) if self.layers else self.width

    @property
    def unit_names(self) -> list[tuple[int, int]]:
        """(stage, unit) from 1, for each unit in a row."""
        return [(item.stage, item.unit) for item in unit_specs(self.width, self.layers)]


@dataclass(frozen=True)
class UnitSpec:
    """A bottleneck's place, stage and number in it from 1, and its sizes."""

    stage: int
    unit: int
    inputs: int
    inner: int
    stride: int

    @property
    def outputs(self) -> int:
        return 4 * self.inner


def unit_specs(width: int, layers: tuple[int, ...]) -> list[UnitSpec]:
    """All units of all stages in a row, after a stem of that width; the first of a stage but the first halves sides."""
    specs, inputs = [], width
    for stage, count in enumerate(layers, 1):
        for unit in range(1, count + 1):
            specs.append(UnitSpec(stage, unit, inputs, width * 2 ** (stage - 1), 2 if unit == 1 and stage > 1 else 1))
            inputs = specs[-1].outputs
    return specs


@final
class StandardizedConv(nn.Conv2d):
    """A convolution whose filters have mean 0 and deviation 1 (arXiv 1903.10520)."""

    def __init__(self, inputs: int, outputs: int, size: int, stride: int, spec: ResNetSpec) -> None:
        super().__init__(inputs, outputs, size, stride, bias=False)
        self.side, self.step, self.spec = size, stride, spec

    def standardised(self) -> Float[Tensor, "o i k k"]:
        flat, eps = self.weight.flatten(1), self.spec.weight_eps
        if self.spec.weight_eps_of == "std":
            filters = by_deviation(flat, eps)
        else:
            filters = F.layer_norm(flat, flat.shape[1:], eps=eps)  # of each filter: one fused pass
        return filters.view_as(self.weight)

    def forward(self, x: Float[Tensor, "b i h w"]) -> Float[Tensor, "b o y x"]:  # pyright: ignore[reportIncompatibleMethodOverride]
        x, padding = padded(x, self.side, self.step, self.spec.padding)
        filters = self.standardised()
        if x.is_contiguous(memory_format=torch.channels_last) and not torch.compiler.is_compiling():
            filters = filters.contiguous(memory_format=torch.channels_last)  # or it is done again for the gradients
        return F.conv2d(x, filters, None, self.step, padding)


def padded(
    x: Float[Tensor, "b c h w"], size: int, stride: int, padding: Literal["symmetric", "same"]
) -> tuple[Float[Tensor, "b c y x"], tuple[int, int]]:
    """What a window of `size` needs at the borders: zeros added here where sides differ, and the rest by the window."""
    if padding == "symmetric":
        return x, (size // 2, size // 2)
    (top, bottom), (left, right) = (_same(side, size, stride) for side in x.shape[-2:])
    if (top, left) == (bottom, right):
        return x, (top, left)
    return F.pad(x, (left, right, top, bottom)), (0, 0)


def _same(side: int, size: int, stride: int) -> tuple[int, int]:
    """TensorFlow's SAME: as many places as strides begin in the side, what is missing shared, more of it last."""
    missing = max(size - (side % stride or stride), 0)
    return missing // 2, missing - missing // 2


def norm_relu(norm: nn.GroupNorm, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c h w"]:
    return F.relu(group_norm(norm, x), inplace=True)


def laid_out(x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c h w"]:
    """The map with its channels last, but first on a CPU where it has fewer places than channels.

    With the channels last, tokens are a view of the map, and convolutions of 1 x 1 are plain products. A small map's
    convolutions take most of their time for the filters, whose own order is the other one.
    """
    few = x.device.type == "cpu" and not torch.compiler.is_compiling() and x.numel() < x.shape[1] ** 2
    return x.contiguous(memory_format=torch.contiguous_format if few else torch.channels_last)


@final
class Root(nn.Module):
    """The stem: a convolution of 7 x 7 and a max-pool of 3 x 3, both of stride 2; or one of 3 x 3 alone."""

    def __init__(self, spec: ResNetSpec) -> None:
        super().__init__()
        self.spec = spec
        side, stride = (3, 1) if spec.small_root else (7, 2)
        self.conv = StandardizedConv(spec.channels, spec.width, side, stride, spec)
        self.norm = nn.GroupNorm(spec.groups, spec.width, spec.norm_eps) if spec.activation == "post" else None

    def forward(self, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b d y x"]:
        if images.shape[1] != self.spec.channels:
            raise ImageError(f"The model takes images of {self.spec.channels} channels, not {images.shape[1]}.")
        x = self.conv(images.contiguous(memory_format=torch.channels_last))
        if self.norm is not None:
            x = norm_relu(self.norm, x)
        return x if self.spec.small_root else self.pool(x)

    def pool(self, x: Float[Tensor, "b d h w"]) -> Float[Tensor, "b d y x"]:
        """The largest in windows of 3 x 3, without a padded copy of the map, which is the network's largest."""
        rows, columns = ((1, 1) if self.spec.padding == "symmetric" else _same(side, 3, 2) for side in x.shape[-2:])
        uneven = rows[0] != rows[1] or columns[0] != columns[1]
        y = F.max_pool2d(x, 3, 2, (rows[0], columns[0]), ceil_mode=uneven)  # as if padded with minus infinity
        if self.spec.pool_padding == "zeros" and self.norm is None:  # after a ReLU nothing is below zero
            borders = F.pad(torch.full_like(x[:1, :1], -torch.inf), (*columns, *rows))
            y = torch.maximum(y, F.max_pool2d(borders, 3, 2))
        return y


@final
class Unit(nn.Module):
    """A bottleneck: convolutions of 1 x 1, 3 x 3 and 1 x 1 beside a shortcut, projected where shapes change."""

    def __init__(self, unit: UnitSpec, spec: ResNetSpec) -> None:
        super().__init__()
        inputs, inner, outputs, stride = unit.inputs, unit.inner, unit.outputs, unit.stride
        self.pre = spec.activation == "pre"
        projects = inputs != outputs or stride > 1
        normed = (inputs, inner, inner) if self.pre else (inner, inner, outputs)
        self.conv1 = StandardizedConv(inputs, inner, 1, 1, spec)
        self.conv2 = StandardizedConv(inner, inner, 3, stride, spec)
        self.conv3 = StandardizedConv(inner, outputs, 1, 1, spec)
        self.conv_proj = StandardizedConv(inputs, outputs, 1, stride, spec) if projects else None
        self.norm1, self.norm2, self.norm3 = (nn.GroupNorm(spec.groups, width, spec.norm_eps) for width in normed)
        self.norm_proj = nn.GroupNorm(spec.groups, outputs, spec.norm_eps) if projects and not self.pre else None

    def forward(self, x: Float[Tensor, "b i h w"]) -> Float[Tensor, "b o y x"]:
        x = laid_out(x)
        if self.pre:
            y = norm_relu(self.norm1, x)
            shortcut = x if self.conv_proj is None else self.conv_proj(y)
            y = norm_relu(self.norm2, self.conv1(y))
            y = norm_relu(self.norm3, self.conv2(y))
            return self.conv3(y).add_(shortcut)
        shortcut = x
        if self.conv_proj is not None and self.norm_proj is not None:
            shortcut = self.norm_proj(self.conv_proj(x))
        y = norm_relu(self.norm1, self.conv1(x))
        y = norm_relu(self.norm2, self.conv2(y))
        return F.relu(self.norm3(self.conv3(y)).add_(shortcut), inplace=True)


def build_units(spec: ResNetSpec) -> nn.ModuleList:
    """All units of all stages in a row."""
    return nn.ModuleList(Unit(unit, spec) for unit in unit_specs(spec.width, spec.layers))


def to_tokens(x: Float[Tensor, "b d h w"]) -> Float[Tensor, "b n d"]:
    return rearrange(x, "b d h w -> b (h w) d")


def to_map(tokens: Float[Tensor, "b n d"], grid: tuple[int, int]) -> Float[Tensor, "b d h w"]:
    return rearrange(tokens, "b (h w) d -> b d h w", h=grid[0])


def initialize_resnet(*parts: nn.Module) -> None:
    """LeCun-normal filters, norms at one, and as officially the last norm of a post-activation unit at zero."""
    for module in (module for part in parts for module in part.modules()):
        if isinstance(module, StandardizedConv):
            std = module.weight[0].numel() ** -0.5 / 0.87962566  # a normal cut off at two deviations has .88 of it
            nn.init.trunc_normal_(module.weight, std=std, a=-2 * std, b=2 * std)
        elif isinstance(module, nn.GroupNorm):
            module.reset_parameters()
    for module in (module for part in parts for module in part.modules()):
        if isinstance(module, Unit) and not module.pre:
            nn.init.zeros_(module.norm3.weight)

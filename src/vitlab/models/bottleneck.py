"""The plain ResNet of bottlenecks and batch norms (arXiv 1512.03385) that attention was first added to.

Non-local networks put blocks between its units; stand-alone self-attention replaces the units' convolution of 3 x 3.
Here is what the two share. A unit that halves the map does so in its 3 x 3 part, as every public version does today.
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import final

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from vitlab.core.bounds import NonNegativeInt, PositiveInt
from vitlab.core.config import check_bounds
from vitlab.core.errors import ConfigError
from vitlab.core.preprocess import Preprocess
from vitlab.models.contract import Taps
from vitlab.models.heads import HeadKind, build_head
from vitlab.models.resnet import UnitSpec, unit_specs
from vitlab.models.stages import channels_last, normed
from vitlab.models.units import UnitNet


@dataclass(frozen=True, kw_only=True)
class BottleneckConfig:
    """Sizes; the defaults are ResNet-50's."""

    image_size: tuple[PositiveInt, PositiveInt] = (224, 224)  # height, width; the network takes any
    layers: tuple[PositiveInt, ...] = (
        3,
        4,
        6,
        3,
    )  # units per stage; the sides are halved before each but the first
    width: PositiveInt = 64  # of the stem
    channels: PositiveInt = 3
    num_classes: NonNegativeInt = 1000  # 0: no head
    head: HeadKind = "pooled"  # patches: a dense one, on each place of the last map
    checkpoint_blocks: bool = False  # recompute each unit in the backward pass

    def __post_init__(self) -> None:
        check_bounds(self)
        if not self.layers:
            raise ConfigError("layers must name a stage or more, as in (3, 4, 6, 3).")

    @property
    def units(self) -> list[UnitSpec]:
        """All units of all stages in a row."""
        return unit_specs(self.width, self.layers)


@final
class Bottleneck(nn.Module):
    """1 x 1, something that looks around (a convolution of 3 x 3), and 1 x 1, beside a shortcut."""

    def __init__(self, spec: UnitSpec, spatial: nn.Module | None = None) -> None:
        super().__init__()
        inputs, inner, outputs, stride = spec.inputs, spec.inner, spec.outputs, spec.stride
        projects = inputs != outputs or stride > 1
        self.conv1 = nn.Conv2d(inputs, inner, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(inner)
        self.spatial = spatial or nn.Conv2d(inner, inner, 3, stride, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(inner)
        self.conv3 = nn.Conv2d(inner, outputs, 1, bias=False)
        self.norm3 = nn.BatchNorm2d(outputs)
        self.conv_proj = nn.Conv2d(inputs, outputs, 1, stride, bias=False) if projects else None
        self.norm_proj = nn.BatchNorm2d(outputs) if projects else None

    def forward(self, x: Float[Tensor, "b i h w"]) -> Float[Tensor, "b o y x"]:
        shortcut = x
        if self.conv_proj is not None and self.norm_proj is not None:
            shortcut = normed(self.conv_proj, self.norm_proj, x)
        y = F.relu(normed(self.conv1, self.norm1, x), inplace=True)
        if isinstance(self.spatial, nn.Conv2d):
            y = F.relu(normed(self.spatial, self.norm2, y), inplace=True)
        else:
            y = F.relu(self.norm2(self.spatial(y)), inplace=True)
        return F.relu(normed(self.conv3, self.norm3, y).add_(shortcut), inplace=True)


class BottleneckNet(UnitNet):
    """A stem, units in stages, the mean over places, a linear classifier; a subclass says what a unit is."""

    config: BottleneckConfig

    def __init__(self, config: BottleneckConfig, preprocess: Preprocess | None = None) -> None:
        super().__init__(config, preprocess)
        self.conv = nn.Conv2d(config.channels, config.width, 7, 2, 3, bias=False)
        self.norm = nn.BatchNorm2d(config.width)
        self.units = nn.ModuleList(self.build_unit(spec) for spec in config.units)
        features = self.num_features
        self.head = build_head(config.head, config.num_classes, features=features, width=features)

    @abstractmethod
    def build_unit(self, spec: UnitSpec) -> nn.Module:
        """The unit of that place and those sizes, from map to map."""

    @property
    def num_features(self) -> int:
        return self.config.units[-1].outputs

    def stem(self, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b d y x"]:
        x = normed(self.conv, self.norm, channels_last(images, self.config.channels))
        return F.max_pool2d(F.relu(x, inplace=True), 3, 2, 1)

    @property
    def taps(self) -> Taps:
        return Taps(filters=lambda: self.conv.weight)

    def initialize(self) -> None:
        """He-normal filters by their outputs, norms at one, a unit's last norm at zero; the head is zero."""
        for module in reversed(list(self.modules())):  # children first, so that their parents have the last word
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            elif isinstance(module, nn.BatchNorm2d):
                module.reset_parameters()  # its running statistics too
            elif isinstance(module, Bottleneck):
                nn.init.zeros_(module.norm3.weight)
        for parameter in self.head.parameters():
            nn.init.zeros_(parameter)

"""Wide ResNets (arXiv 1605.07146): what CIFAR is learned with in the papers of SAM, FixMatch and Meta Pseudo Labels.

Units of two convolutions of 3 x 3, each after a batch norm and a ReLU (arXiv 1603.05027). The first unit of a stage
projects its shortcut, from the same norm and ReLU, where widths or sides change. The last map is the tokens.
"""

from dataclasses import dataclass
from typing import ClassVar, final

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from vitlab.core.bounds import NonNegativeInt, PositiveInt
from vitlab.core.config import check_bounds
from vitlab.core.errors import ConfigError
from vitlab.core.preprocess import Preprocess
from vitlab.models.contract import Taps
from vitlab.models.family import Family
from vitlab.models.heads import HeadKind, build_head
from vitlab.models.stages import channels_last, normed
from vitlab.models.units import UnitNet
from vitlab.models.zoo.wide_resnets import WIDE_RESNET_ROWS


@dataclass(frozen=True, kw_only=True)
class WideResNetConfig:
    """Sizes; the defaults are WRN-28-10's."""

    image_size: tuple[PositiveInt, PositiveInt] = (32, 32)  # height, width; the network takes any
    layers: tuple[PositiveInt, ...] = (4, 4, 4)  # units per stage; the sides are halved before each but the first
    width: PositiveInt = 160  # of the first stage, which doubles with each
    stem_width: PositiveInt = 16
    channels: PositiveInt = 3
    num_classes: NonNegativeInt = 10  # 0: no head
    head: HeadKind = "pooled"  # patches: a dense one, on each place of the last map
    checkpoint_blocks: bool = False  # recompute each unit in the backward pass

    def __post_init__(self) -> None:
        check_bounds(self)
        if not self.layers:
            raise ConfigError("layers must name a stage or more, as in (4, 4, 4).")

    @property
    def num_features(self) -> int:
        """The channels of the last map."""
        return self.width * 2 ** (len(self.layers) - 1)


@final
class BasicUnit(nn.Module):
    """Norm, ReLU and 3 x 3, twice, beside a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        projects = inputs != outputs or stride > 1
        self.conv_proj = nn.Conv2d(inputs, outputs, 1, stride, bias=False) if projects else None

    def forward(self, x: Float[Tensor, "b i h w"]) -> Float[Tensor, "b o y x"]:
        y = F.relu(self.norm1(x))
        shortcut = x if self.conv_proj is None else self.conv_proj(y)
        return self.conv2(F.relu(normed(self.conv1, self.norm2, y))) + shortcut


@final
class WideResNet(UnitNet):
    """A convolution of 3 x 3, units in stages, a norm, the mean over places, a linear classifier."""

    after_units: ClassVar[tuple[str, ...]] = ("head.", "norm.")

    config: WideResNetConfig

    def __init__(self, config: WideResNetConfig, preprocess: Preprocess | None = None) -> None:
        super().__init__(config, preprocess)
        self.conv = nn.Conv2d(config.channels, config.stem_width, 3, 1, 1, bias=False)
        self.units, inputs = nn.ModuleList(), config.stem_width
        for stage, count in enumerate(config.layers):
            for unit in range(count):
                outputs = config.width * 2**stage
                self.units.append(BasicUnit(inputs, outputs, 2 if stage and not unit else 1))
                inputs = outputs
        self.norm = nn.BatchNorm2d(inputs)
        self.head = build_head(config.head, config.num_classes, features=inputs, width=inputs)

    @property
    def num_features(self) -> int:
        return self.config.num_features

    def stem(self, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b d h w"]:
        return self.conv(channels_last(images, self.config.channels))

    def finish(self, x: Float[Tensor, "b d h w"]) -> Float[Tensor, "b d h w"]:
        return F.relu(self.norm(x))

    @property
    def taps(self) -> Taps:
        return Taps(filters=lambda: self.conv.weight)

    def initialize(self) -> None:
        """He-normal filters by their outputs, norms at one; the head is zero."""
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            elif isinstance(module, nn.BatchNorm2d):
                module.reset_parameters()  # its running statistics too
        for parameter in self.head.parameters():
            nn.init.zeros_(parameter)


FAMILY = Family(
    name="wide-resnet",
    config=WideResNetConfig,
    model=WideResNet,
    summary="Wide ResNet",
    rows=tuple(WIDE_RESNET_ROWS),
    title="Wide ResNets, and ResNet-18 as CIFAR has it",
    pattern="wrn-",
    note="`resnet18-32` is ResNet-18 with units of this kind, which norm and activate first (arXiv 1603.05027).",
    example={"image_size": (32, 48), "layers": (1, 2), "width": 16, "stem_width": 8, "num_classes": 5},
)

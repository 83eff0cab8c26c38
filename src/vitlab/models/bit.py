"""Big Transfer's ResNets (arXiv 1912.11370): pre-activation, group norm, standardised convolutions.

big_vision's two kinds are fields: `activation='post'` is its V1. The feature map is the tokens: one per place.
"""

from dataclasses import dataclass
from typing import ClassVar, final

from jaxtyping import Float
from torch import Tensor, nn

from vitlab.core.bounds import NonNegativeInt, PositiveInt
from vitlab.core.errors import ConfigError
from vitlab.core.preprocess import Preprocess
from vitlab.models.contract import Taps
from vitlab.models.family import Family
from vitlab.models.heads import HeadKind, build_head
from vitlab.models.resnet import ResNetSpec, Root, build_units, initialize_resnet, norm_relu
from vitlab.models.units import UnitNet
from vitlab.models.zoo.resnets import BIT_ROWS


@dataclass(frozen=True, kw_only=True)
class BiTConfig(ResNetSpec):
    """The network's specification, the size of images, and classes."""

    image_size: tuple[PositiveInt, PositiveInt] = (224, 224)  # height, width; the network takes any
    num_classes: NonNegativeInt = 1000  # 0: no head
    head: HeadKind = "pooled"  # patches: a dense one, on each place of the last map
    checkpoint_blocks: bool = False  # recompute each unit in the backward pass

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.layers:
            raise ConfigError("layers must name a stage or more, as in (3, 4, 6, 3).")


@final
class BiT(UnitNet):
    """A stem, units in stages, a norm, the mean over places, a linear classifier."""

    after_units: ClassVar[tuple[str, ...]] = ("head.", "norm.")

    config: BiTConfig

    def __init__(self, config: BiTConfig, preprocess: Preprocess | None = None) -> None:
        super().__init__(config, preprocess)
        features = config.num_features
        self.root = Root(config)
        self.units = build_units(config)
        pre = config.activation == "pre"
        self.norm = nn.GroupNorm(config.groups, features, config.norm_eps) if pre else None
        self.head = build_head(config.head, config.num_classes, features=features, width=features)

    @property
    def num_features(self) -> int:
        return self.config.num_features

    def stem(self, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b d y x"]:
        return self.root(images)

    def finish(self, x: Float[Tensor, "b d h w"]) -> Float[Tensor, "b d h w"]:
        return x if self.norm is None else norm_relu(self.norm, x)

    @property
    def taps(self) -> Taps:
        return Taps(filters=self.root.conv.standardised)

    def initialize(self) -> None:
        """As the official code does; the head is zero."""
        initialize_resnet(self)
        for parameter in self.head.parameters():
            nn.init.zeros_(parameter)


FAMILY = Family(
    name="bit",
    config=BiTConfig,
    model=BiT,
    summary="ResNet of Big Transfer (BiT)",
    rows=tuple(BIT_ROWS),
    title="BiT: Big Transfer's ResNets",
    pattern="bit-",
    example={"image_size": (32, 48), "layers": (1, 2), "width": 32, "num_classes": 5},
)

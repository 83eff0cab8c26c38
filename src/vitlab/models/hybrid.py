"""The paper's hybrids (section 3.1): a Vision Transformer over the feature map of a ResNet."""

from dataclasses import dataclass
from typing import final

from jaxtyping import Float
from torch import Tensor

from vitlab.core.bounds import NonNegativeFloat, PositiveFloat, PositiveInt
from vitlab.core.errors import ConfigError
from vitlab.core.preprocess import Preprocess
from vitlab.models.contract import Taps
from vitlab.models.family import Family
from vitlab.models.resnet import EpsOf, ResNetSpec, Root, build_units, initialize_resnet
from vitlab.models.vit import EXAMPLE, ViT, ViTConfig
from vitlab.models.zoo.resnets import HYBRID_ROWS


@dataclass(frozen=True, kw_only=True)
class HybridConfig(ViTConfig):
    """A ViT's fields; `patch_size` is what a token covers of the image, in all: 16 in R50+ViT-B/16.

    A patch of the feature map has `patch_size` over the ResNet's stride places a side, one in most.
    """

    resnet_layers: tuple[int, ...] = (3, 4, 9)  # units per stage; none: the stem alone
    resnet_width: PositiveInt = 64
    small_root: bool = False  # see ResNetSpec
    group_eps: PositiveFloat = 1e-6  # of the group norms: timm's have 1e-5
    weight_eps: NonNegativeFloat = 1e-5  # of the standardised convolutions: timm's add 1e-8 to the variance
    weight_eps_of: EpsOf = "std"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.patch_size % self.resnet.stride:
            raise ConfigError(
                f"A token of {self.patch_size} px cannot be cut from a feature map of stride {self.resnet.stride}:"
                " patch_size must be a multiple of it."
            )

    @property
    def resnet(self) -> ResNetSpec:
        """The official stem: post-activation, TensorFlow's padding."""
        return ResNetSpec(
            layers=self.resnet_layers,
            width=self.resnet_width,
            channels=self.channels,
            small_root=self.small_root,
            activation="post",
            padding="same",
            norm_eps=self.group_eps,
            weight_eps=self.weight_eps,
            weight_eps_of=self.weight_eps_of,
        )

    @property
    def patch_shape(self) -> tuple[int, int, int]:
        side = self.patch_size // self.resnet.stride
        return self.resnet.num_features, side, side


@final
class Hybrid(ViT):
    """A ResNet's feature map in place of the image; everything after the patches is the ViT."""

    def __init__(self, config: HybridConfig, preprocess: Preprocess | None = None) -> None:
        super().__init__(config, preprocess)
        self.root = Root(config.resnet)
        self.units = build_units(config.resnet)

    def stem(self, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b e y x"]:
        x = self.root(images)
        for unit in self.units:
            x = unit(x)
        return x

    @property
    def taps(self) -> Taps:
        of_vit = super().taps
        return Taps(attention=of_vit.attention, filters=self.root.conv.standardised, positions=of_vit.positions)

    def initialize(self) -> None:
        super().initialize()
        initialize_resnet(self.root, self.units)


FAMILY = Family(
    name="hybrid",
    config=HybridConfig,
    model=Hybrid,
    summary="Vision Transformer over a ResNet's feature map",
    rows=tuple(HYBRID_ROWS),
    title="Hybrids: a ViT over a ResNet's feature map",
    pattern="r50-vit",
    example={
        **EXAMPLE,
        "resnet_layers": (1,),
        "resnet_width": 32,
    },
)

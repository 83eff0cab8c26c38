"""Big Transfer's ResNets (arXiv 1912.11370): pre-activation, group norm, standardised convolutions.

big_vision's two kinds are fields: `activation='post'` is its V1. The feature map is the tokens: one a place.
"""

from dataclasses import dataclass
from typing import ClassVar, final

from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from vitlab.core.errors import ConfigError
from vitlab.core.preprocess import Preprocess
from vitlab.models.contract import Model, Taps, Tokens
from vitlab.models.resnet import ResNetSpec, Root, build_units, initialize_resnet, norm_relu, to_map, to_tokens


@dataclass(frozen=True, kw_only=True)
class BiTConfig(ResNetSpec):
    """The network's specification, the size of images, and classes."""

    image_size: tuple[int, int] = (224, 224)  # height, width; the network takes any
    num_classes: int = 1000  # 0: no head
    checkpoint_blocks: bool = False  # recompute each unit in the backward pass

    def __post_init__(self) -> None:
        super().__post_init__()
        if min(self.image_size) < 1:
            raise ConfigError(f"The image size must be positive, not {self.image_size}.")
        if self.num_classes < 0:
            raise ConfigError(f"num_classes must not be negative: {self.num_classes}.")
        if not self.layers:
            raise ConfigError("layers must name a stage or more, as in (3, 4, 6, 3).")


@final
class BiT(Model):
    """A stem, units in stages, a norm, the mean over places, a linear classifier."""

    takes_subsets: ClassVar[bool] = False  # a convolution needs the whole map

    config: BiTConfig

    def __init__(self, config: BiTConfig, preprocess: Preprocess | None = None) -> None:
        super().__init__(config, preprocess)
        features = config.num_features
        self.root = Root(config)
        self.units = build_units(config)
        pre = config.activation == "pre"
        self.norm = nn.GroupNorm(config.groups, features, config.norm_eps) if pre else None
        self.head = nn.Linear(features, config.num_classes) if config.num_classes else nn.Identity()

    @property
    def num_features(self) -> int:
        return self.config.num_features

    @property
    def num_layers(self) -> int:
        return len(self.units)

    def layer_of(self, name: str) -> int:
        if name.startswith("units."):
            return int(name.split(".")[1]) + 1
        return self.num_layers + 1 if name.startswith(("head.", "norm.")) else 0

    def embed(self, images: Float[Tensor, "b c h w"]) -> Tokens:
        return _tokens(self.root(images))

    def _unit(self, unit: nn.Module, x: Tensor) -> Tensor:
        if self.config.checkpoint_blocks and self.training:
            return checkpoint(unit, x, use_reentrant=False)
        return unit(x)

    def encode(self, tokens: Tokens) -> Tokens:
        assert tokens.present is None, "a convolution needs the whole map"
        x = to_map(tokens.values, tokens.grid)
        for unit in self.units:
            x = self._unit(unit, x)
        return _tokens(x if self.norm is None else norm_relu(self.norm, x))

    def pool(self, tokens: Tokens) -> Float[Tensor, "b d"]:
        return tokens.values.mean(dim=1)

    def features(self, images: Float[Tensor, "b c h w"]) -> list[Tokens]:
        x = self.root(images)
        layers = [_tokens(x)]
        for unit in self.units:
            x = self._unit(unit, x)
            layers.append(_tokens(x))
        return layers

    @property
    def taps(self) -> Taps:
        return Taps(filters=self.root.conv.standardised)

    def initialize(self) -> None:
        """As the official code does; the head is zero."""
        initialize_resnet(self)
        for parameter in self.head.parameters():
            nn.init.zeros_(parameter)


def _tokens(x: Float[Tensor, "b d h w"]) -> Tokens:
    return Tokens(values=to_tokens(x), grid=(x.shape[-2], x.shape[-1]))

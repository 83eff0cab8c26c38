"""ViT_C (arXiv 2106.14881): a Vision Transformer over the map of a few convolutions of 3 x 3."""

from dataclasses import dataclass
from typing import final

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from vitlab.core.bounds import PositiveFloat, PositiveInt
from vitlab.core.errors import ConfigError
from vitlab.core.preprocess import Preprocess
from vitlab.models.contract import Taps
from vitlab.models.family import Family
from vitlab.models.stages import channels_last, normed
from vitlab.models.vit import EXAMPLE, ViT, ViTConfig
from vitlab.models.zoo.conv_stem import CONV_STEM_ROWS


@dataclass(frozen=True, kw_only=True)
class ConvStemConfig(ViTConfig):
    """A ViT's fields; `patch_size` is what a token covers of the image: by how much the convolutions shrink it."""

    stem_widths: tuple[PositiveInt, ...] = (48, 96, 192, 384)
    """Of convolutions in a row. One of another width than the one before halves the sides, one of the same keeps them;
    the ViT's own projection follows, as a convolution of 1 x 1."""
    batch_eps: PositiveFloat = 1e-5

    def __post_init__(self) -> None:
        super().__post_init__()
        shrink = 2 ** self.strides.count(2)
        if shrink != self.patch_size:
            raise ConfigError(
                f"Convolutions of widths {self.stem_widths} shrink an image {shrink} times, and patch_size is"
                f" {self.patch_size}: each change of the width halves the sides."
            )

    @property
    def strides(self) -> tuple[int, ...]:
        """Of each convolution."""
        before = (None, *self.stem_widths)
        return tuple(1 if width == last else 2 for last, width in zip(before, self.stem_widths, strict=False))

    @property
    def patch_shape(self) -> tuple[int, int, int]:
        return self.stem_widths[-1], 1, 1


@final
class ConvBlock(nn.Module):
    """A convolution of 3 x 3, a batch norm, a ReLU."""

    def __init__(self, inputs: int, outputs: int, stride: int, eps: float) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm = nn.BatchNorm2d(outputs, eps)

    def forward(self, x: Float[Tensor, "b i h w"]) -> Float[Tensor, "b o y x"]:
        return F.relu(normed(self.conv, self.norm, x))


@final
class ConvStemViT(ViT):
    """Convolutions in the place of patches; everything after them is the ViT."""

    def __init__(self, config: ConvStemConfig, preprocess: Preprocess | None = None) -> None:
        super().__init__(config, preprocess)
        inputs = (config.channels, *config.stem_widths)
        self.convolutions = nn.ModuleList(
            ConvBlock(i, o, stride, config.batch_eps)
            for i, o, stride in zip(inputs, config.stem_widths, config.strides, strict=False)
        )

    def stem(self, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b e y x"]:
        x = channels_last(images, self.config.channels)
        for block in self.convolutions:
            x = block(x)
        return x

    @property
    def taps(self) -> Taps:
        of_vit, first = super().taps, self.convolutions[0]
        assert isinstance(first, ConvBlock)
        return Taps(attention=of_vit.attention, filters=lambda: first.conv.weight, positions=of_vit.positions)

    def initialize(self) -> None:
        super().initialize()
        for block in self.convolutions:
            assert isinstance(block, ConvBlock)
            nn.init.kaiming_normal_(block.conv.weight, mode="fan_out", nonlinearity="relu")
            block.norm.reset_parameters()


FAMILY = Family(
    name="vitc",
    config=ConvStemConfig,
    model=ConvStemViT,
    summary="Vision Transformer over the map of a few convolutions",
    rows=tuple(CONV_STEM_ROWS),
    title="ViT_C: convolutions in the place of patches",
    pattern="vitc-",
    note="One block less than the plain ViT of the same size, as in the paper.",
    example={
        **EXAMPLE,
        "stem_widths": (8, 16, 16, 32),
    },
)

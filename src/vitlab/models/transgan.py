"""TransGAN's generator (arXiv 2102.07074): a transformer whose picture grows by pixel shuffle.

Latents become the tokens of a small grid. After each stage of layers a token of D values becomes four of D / 4, on a
grid of twice the height and width, until there is a token per pixel. The critic is a plain ViT:
`objectives/transgan.py`.
"""

import math
from dataclasses import dataclass
from typing import final

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from vitlab.core.bounds import BelowOne, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from vitlab.core.config import check_bounds
from vitlab.core.errors import ConfigError
from vitlab.core.preprocess import Preprocess
from vitlab.models.contract import Layout
from vitlab.models.family import Family
from vitlab.models.generator import Generator
from vitlab.models.vit import Attention, Block, Mlp
from vitlab.models.vit_config import ViTConfig
from vitlab.models.zoo.generators import TRANSGAN_ROWS


@dataclass(frozen=True, kw_only=True)
class TransGANConfig:
    """The authors' sizes for CIFAR-10, which are the largest of the paper's."""

    image_size: tuple[int, int] = (32, 32)  # height, width
    depths: tuple[PositiveInt, ...] = (5, 4, 2)  # layers of each stage; the grid doubles between two
    width: PositiveInt = 1024  # of the first stage; a quarter in each that follows
    heads: PositiveInt = 4
    mlp_ratio: PositiveInt = 4
    latent_dim: PositiveInt = 256
    num_classes: NonNegativeInt = 0
    channels: PositiveInt = 3
    norm_eps: PositiveFloat = 1e-5
    positions_std: NonNegativeFloat = 0.02
    dropout: BelowOne = 0.0

    def __post_init__(self) -> None:
        check_bounds(self)
        if self.num_classes:
            raise ConfigError(
                "A generator makes images and tells no classes apart: choose a model that takes images, as a ViT."
            )
        if not self.depths:
            raise ConfigError("A generator has one stage at least: give depths as 5,4,2.")
        doubled, shrunk = 2 ** (len(self.depths) - 1), 4 ** (len(self.depths) - 1)
        height, width = self.image_size
        if min(self.image_size) < doubled or height % doubled or width % doubled:
            raise ConfigError(
                f"{len(self.depths)} stages make images whose sides are multiples of {doubled}, not {height} x {width}."
            )
        if self.width % (shrunk * self.heads):
            raise ConfigError(
                f"The width {self.width} is to be divided by {shrunk} until the last stage, and there by the"
                f" {self.heads} heads: choose a multiple of {shrunk * self.heads}."
            )

    @property
    def stages(self) -> tuple[tuple[int, tuple[int, int], int], ...]:
        """Layers, grid and width of each stage."""
        last = len(self.depths) - 1
        height, width = self.image_size
        return tuple(
            (depth, (height >> last - i, width >> last - i), self.width >> 2 * i) for i, depth in enumerate(self.depths)
        )


@final
class TransGAN(Generator):
    """Latents, a grid of tokens, stages of pre-norm layers with pixel shuffle between them, colours of each token.

    Every stage has learned positions. As in the authors' code there is no norm and no tanh before the colours. Their
    later code adds a learned bias by the distance of two tokens to attention, which is not here.
    """

    config: TransGANConfig

    def __init__(self, config: TransGANConfig, preprocess: Preprocess | None = None) -> None:
        super().__init__(config, preprocess)
        (_, grid, width), *_ = config.stages
        self.projection = nn.Linear(config.latent_dim, math.prod(grid) * width)
        self.positions = nn.ParameterList(
            nn.Parameter(torch.empty(math.prod(grid), width)) for _, grid, width in config.stages
        )
        self.blocks = nn.ModuleList(
            Block(_layer(config, width), 0.0) for depth, _, width in config.stages for _ in range(depth)
        )
        self.to_rgb = nn.Linear(config.stages[-1][2], config.channels)

    @property
    def num_features(self) -> int:
        return self.config.stages[-1][2]

    @property
    def num_layers(self) -> int:
        return sum(self.config.depths)

    def layer_of(self, name: str) -> int:
        if name.startswith("blocks."):
            return int(name.split(".")[1]) + 1
        if name.startswith("positions."):
            return sum(self.config.depths[: int(name.split(".")[1])])
        return self.num_layers + 1 if name.startswith("to_rgb.") else 0

    def generate(self, latents: Float[Tensor, "b z"]) -> Float[Tensor, "b c h w"]:
        first, done = self.config.stages[0], 0
        z, before = rearrange(self.projection(latents), "b (n d) -> b n d", d=first[2]), first[1]
        for i, (depth, grid, _) in enumerate(self.config.stages):
            z = (pixel_shuffle(z, before) if i else z) + self.positions[i]
            for block in self.blocks[done : done + depth]:
                z = block(z, Layout(grid=grid))
            before, done = grid, done + depth
        return rearrange(self.to_rgb(z), "b (h w) c -> b c h w", h=before[0])

    def initialize(self) -> None:
        """Xavier-uniform kernels, as the authors start; positions and the last layer of a small normal."""
        for module in reversed(list(self.modules())):  # children first, so that their parents have the last word
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            elif isinstance(module, nn.LayerNorm):
                module.reset_parameters()
            elif isinstance(module, Attention | Mlp):
                module.initialize()
        for positions in self.positions:
            nn.init.trunc_normal_(positions, std=self.config.positions_std)
        nn.init.trunc_normal_(self.to_rgb.weight, std=0.02)  # grey at first, not wild colours


def pixel_shuffle(z: Float[Tensor, "b n d"], grid: tuple[int, int]) -> Float[Tensor, "b m e"]:
    """Each token of D values as four of D / 4, two by two in its place."""
    return rearrange(z, "b (h w) (e p q) -> b (h p w q) e", h=grid[0], p=2, q=2)


def _layer(config: TransGANConfig, width: int) -> ViTConfig:
    return ViTConfig(
        width=width,
        mlp_dim=config.mlp_ratio * width,
        heads=config.heads,
        qkv_bias=False,
        gelu="exact",
        norm_eps=config.norm_eps,
        dropout=config.dropout,
    )


FAMILY = Family(
    name="transgan",
    config=TransGANConfig,
    model=TransGAN,
    summary="TransGAN generator",
    rows=tuple(TRANSGAN_ROWS),
    title="Generators",
    pattern="transgan",
    note="They make images from noise: `vitlab sample`, docs/generation.md. GFLOPs are per generated image.",
    generates=True,
    example={"image_size": (16, 24), "depths": (1, 1), "width": 32, "heads": 2, "latent_dim": 6},
)

"""A Vision Transformer's configuration: the paper's sizes, and what later work changed."""

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

from vitlab.core.bounds import BelowOne, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from vitlab.core.config import check_bounds
from vitlab.core.errors import ConfigError
from vitlab.models.heads import HeadKind, Pool
from vitlab.models.positions import Kind, RotaryUnit, Rule

Gelu: TypeAlias = Literal["exact", "tanh", "quick"]


@dataclass(frozen=True, kw_only=True)
class ViTConfig:
    """Sizes first; then what is read off a checkpoint's origin; then what only training uses."""

    image_size: tuple[int, int] = (224, 224)  # height, width
    patch_size: PositiveInt = 16  # P
    width: PositiveInt = 768  # D
    depth: NonNegativeInt = 12  # L
    mlp_dim: PositiveInt = 3072
    heads: PositiveInt = 12  # k
    num_classes: NonNegativeInt = 1000  # 0: no head
    channels: PositiveInt = 3

    class_token: bool = True
    distill_token: bool = False  # DeiT's second output token, with a head of its own
    num_registers: NonNegativeInt = 0
    pool: Pool = "token"
    head: HeadKind = "pooled"  # patches: a dense one, on each patch token
    representation: PositiveInt | None = None  # the pre-training head's hidden layer (tanh)
    positions: Kind = "learned"
    positions_at: Literal["stem", "every", "shared"] | None = None  # None: the stem, or every layer where relative
    rotary: bool = False  # besides, q and k are turned by row and column
    rotary_unit: RotaryUnit = "patch"  # what row and column are counted in: patches, or the image's height and width
    positions_for_prefix: NonNegativeInt = 1  # how many of the prefix tokens have a position
    resize_rule: Rule = "official"
    indivisible: Literal["error", "pad"] = "error"  # images whose sides the patch does not divide

    norm: Literal["pre", "post"] = "pre"  # before each part (the paper) or after it (the original Transformer)
    norm_eps: PositiveFloat = 1e-6
    norm_stem: bool = False  # CLIP's norm between embedding and encoder
    norm_pooled: bool = False  # the final norm after pooling instead of before it
    gelu: Gelu = "tanh"
    gated_mlp: bool = False  # SwiGLU: silu(x U) * (x V) instead of gelu(x U)
    patch_bias: bool = True
    qkv_bias: bool = True
    qk_norm: bool = False
    layer_scale: NonNegativeFloat | None = None  # its initial value

    positions_std: NonNegativeFloat = 0.02  # of learned positions when they are fresh
    residual_scale: NonNegativeFloat = 1.0  # of a block's fresh output kernels; 0: it starts as the identity
    dropout: BelowOne = 0.0
    attention_dropout: BelowOne = 0.0
    drop_path: BelowOne = 0.0  # stochastic depth: the last layer's rate, growing linearly from 0
    patch_dropout: BelowOne = 0.0  # in training, the share of each image's patches that is left out (arXiv 2208.07220)
    checkpoint_blocks: bool = False  # recompute each block in the backward pass

    def __post_init__(self) -> None:
        check_bounds(self)
        if self.positions_at is None:
            object.__setattr__(self, "positions_at", self.usual_place)
        if self.head == "patches":  # which reads no pooled features: what would only pool them is left out
            object.__setattr__(self, "representation", None)
            object.__setattr__(self, "pool", "mean" if self.pool == "attention" else self.pool)
        height, width = self.image_size
        if min(self.image_size) < 1 or (
            self.indivisible == "error" and any(s % self.patch_size for s in self.image_size)
        ):
            raise ConfigError(
                f"Patches of {self.patch_size} px do not divide an image of {height} x {width} px: choose sides"
                f" that are multiples of {self.patch_size}, or a model with indivisible='pad'."
            )
        if self.width % self.heads:
            raise ConfigError(f"The width {self.width} is not divisible by the {self.heads} heads.")
        if self.rotary and (self.relative or self.width // self.heads % 4):
            raise ConfigError("rotary=True needs heads of a width that 4 divides, and positions that are not relative.")
        if self.pool.startswith("token") and not self.class_token:
            raise ConfigError(
                f"pool='{self.pool}' needs class_token=True; choose pool='mean' or 'attention' without it."
            )
        if self.pool == "token+mean" and self.representation is not None:
            raise ConfigError("pool='token+mean' goes without a representation layer.")
        if self.distill_token and (self.pool != "token" or self.representation is not None):
            raise ConfigError("distill_token=True needs pool='token' and no representation layer.")
        if self.relative and self.positions_at == "stem":
            raise ConfigError(
                f"positions='{self.positions}' act in attention: positions_at must be 'every' or 'shared'."
            )
        if self.patch_dropout and self.head == "patches":
            raise ConfigError("A head that answers for every patch needs all of them: leave patch_dropout out.")
        if self.positions == "none" and self.positions_at != "stem":
            raise ConfigError("positions='none' has nothing to add at other places: leave positions_at out.")

    @property
    def num_prefix(self) -> int:
        return self.class_token + self.distill_token + self.num_registers

    @property
    def relative(self) -> bool:
        return self.positions in ("relative", "relative2d")

    @property
    def usual_place(self) -> Literal["stem", "every"]:
        return "every" if self.relative else "stem"

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches; the last ones are padded where the patch does not divide the image."""
        height, width = self.image_size
        return math.ceil(height / self.patch_size), math.ceil(width / self.patch_size)

    @property
    def patch_shape(self) -> tuple[int, int, int]:
        """Channels, rows and columns of what is projected to a token: pixels here, in a hybrid a ResNet's features."""
        return self.channels, self.patch_size, self.patch_size

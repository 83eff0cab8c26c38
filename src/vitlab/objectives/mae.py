"""A masked autoencoder (He et al., arXiv 2111.06377): the pixels of removed patches from the others.

Most patches are removed; the model encodes the rest, and a small decoder, which only training needs, predicts the
pixels of the removed ones from the encoded tokens and a mask token at each removed place.
"""

from dataclasses import dataclass
from typing import Annotated, Literal, final

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from vitlab.core.bounds import Bounds, PositiveInt
from vitlab.core.config import check_fields
from vitlab.core.errors import ConfigError
from vitlab.data.batch import Batch
from vitlab.models.contract import Layout, Model, Tokens
from vitlab.models.positions import sincos2d
from vitlab.models.vit import Block
from vitlab.models.vit_config import ViTConfig
from vitlab.objectives.contract import Metrics, ObjectiveKind, Setting
from vitlab.objectives.patches import Patches, PatchObjective, put, taken
from vitlab.objectives.shown import Shown

EPS = 1e-6  # added to a patch's variance


@dataclass(frozen=True, kw_only=True)
class MAEOptions:
    """Remove patches and predict their pixels."""

    mask_ratio: Annotated[float, Bounds(above=0, below=1)] = 0.75  # the share of patches that is removed
    decoder_width: PositiveInt = 512  # the decoder's width
    decoder_depth: PositiveInt = 8  # the decoder's number of layers
    decoder_heads: PositiveInt = 16  # the decoder's number of attention heads
    target: Literal["normalized", "pixels"] = "normalized"
    """normalized: each patch's pixels minus their mean, divided by their deviation; pixels: raw pixels."""

    def __post_init__(self) -> None:
        check_fields(self, "objective.")
        if self.decoder_width % 4:
            raise ConfigError(f"objective.decoder_width must be a multiple of 4, not {self.decoder_width}.")
        if self.decoder_width % self.decoder_heads:
            raise ConfigError(
                f"objective.decoder_width ({self.decoder_width}) must be a multiple of objective.decoder_heads"
                f" ({self.decoder_heads})."
            )


@final
class Decoder(nn.Module):
    """Transformer blocks over encoded tokens and mask tokens, with fixed sine-cosine positions."""

    positions: Tensor

    def __init__(self, options: MAEOptions, width: int, patches: Patches) -> None:
        super().__init__()
        own = options.decoder_width
        config = ViTConfig(width=own, mlp_dim=4 * own, heads=options.decoder_heads, gelu="exact")
        self.grid = patches.grid
        self.enter = nn.Linear(width, own)
        self.mask = nn.Parameter(0.02 * torch.randn(own))
        self.register_buffer("positions", sincos2d(patches.grid, own), persistent=False)
        self.blocks = nn.ModuleList(Block(config, 0.0) for _ in range(options.decoder_depth))
        self.norm = nn.LayerNorm(own, config.norm_eps)
        self.leave = nn.Linear(own, 3 * patches.side**2)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)

    def forward(self, seen: Tokens, removed: Int[Tensor, "b r"]) -> Float[Tensor, "b r pixels"]:
        """The pixels of the removed patches; tokens stand in any order, since their positions are added."""
        assert seen.present is not None
        z, prefix = self.enter(seen.values), seen.num_prefix
        positions = self.positions.to(z.dtype)
        shown, hidden = z[:, prefix:] + positions[seen.present], self.mask.to(z.dtype) + positions[removed]
        z = torch.cat([z[:, :prefix], shown, hidden], dim=1)
        for block in self.blocks:
            z = block(z, Layout(grid=self.grid, num_prefix=prefix))
        return self.leave(self.norm(z[:, -removed.shape[1] :]))


@final
class MaskedAutoencoder(PatchObjective):
    """The mean square over removed patches of what is predicted less what is there.

    As many patches are kept as the authors keep, the whole number below N (1 - mask_ratio), and one at least.
    """

    def __init__(self, options: MAEOptions, model: Model) -> None:
        super().__init__(model, "mae", subsets=True)
        num = self.patches.num
        if num < 2:
            raise ConfigError("mae needs images of two patches at least: choose a larger image or a smaller patch.")
        kept = min(max(int(num * (1 - options.mask_ratio)), 1), num - 1)
        self.sizes, self.normalized = (kept, num - kept), options.target == "normalized"
        self.decoder = Decoder(options, self.patches.width, self.patches)

    def predicted(
        self, model: Model, images: Float[Tensor, "b c h w"], places: Int[Tensor, "b"]
    ) -> tuple[Float[Tensor, "b r pixels"], Int[Tensor, "b r"]]:
        """The removed patches as they are predicted, and which they are."""
        kept, removed = self.order(places).split(self.sizes, dim=1)
        seen = model.encode(model.place(model.patchify(images).keep(kept)))
        return self.decoder(seen, removed).float(), removed

    def target(self, pixels: Float[Tensor, "b n pixels"]) -> Float[Tensor, "b n pixels"]:
        """What is predicted of patches; the variance is the unbiased one."""
        if not self.normalized:
            return pixels
        var, mean = torch.var_mean(pixels, dim=2, keepdim=True)
        return (pixels - mean) / (var + EPS).sqrt()

    def loss(self, model: Model, batch: Batch, progress: Float[Tensor, ""]) -> tuple[Float[Tensor, ""], Metrics]:
        del progress
        predicted, removed = self.predicted(model, batch.images, batch.places)
        sought = self.target(taken(model.patches(batch.images.float())[0], removed))
        return F.mse_loss(predicted, sought), {}

    def show(self, model: Model, batch: Batch) -> Shown:
        """What is left, what is predicted of the rest, and what is there."""
        pixels = model.patches(batch.images.float())[0]
        said, removed = self.predicted(model, batch.images, batch.places)
        hidden = taken(pixels, removed)
        words = f"{self.sizes[1]} of {sum(self.sizes)} patches were removed (grey), and the model filled them in."
        if self.normalized:  # as the authors show it
            var, mean = torch.var_mean(hidden, dim=2, keepdim=True)
            said = said * (var + EPS).sqrt() + mean
            words += " It predicts what each patch looks like apart from its mean and contrast, which are the true ones"
            words += " here."
        columns = {
            "what was left": put(pixels, removed, torch.zeros_like(hidden)),
            "filled in": put(pixels, removed, said),
            "the picture": pixels,
        }
        rows = zip(*([(words, each) for each in self.pictures(value)] for words, value in columns.items()), strict=True)
        return Shown(title="What it fills in behind the mask", words=words, rows=tuple(rows))


def build(options: MAEOptions, setting: Setting) -> MaskedAutoencoder:
    return MaskedAutoencoder(options, setting.model)


OBJECTIVE = ObjectiveKind(
    name="mae",
    summary="remove most patches and predict their pixels from the rest",
    objective=MaskedAutoencoder,
    options=MAEOptions,
    build=build,
    source="Masked Autoencoders Are Scalable Vision Learners, arXiv 2111.06377",
)

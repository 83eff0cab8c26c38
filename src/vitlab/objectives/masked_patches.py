"""Masked patch prediction, the ViT paper's self-supervision (arXiv 2010.11929, appendix B.1.2).

Half of the patch embeddings are corrupted: of these 80% become a learned mask token, 10% the embedding of another
patch, and 10% stay. From the encoded token of each corrupted patch its colour is predicted.
"""

from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple, final

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from vitlab.core.bounds import Bounds, Probability
from vitlab.core.config import check_fields
from vitlab.core.errors import ConfigError
from vitlab.core.random import uniform
from vitlab.data.batch import Batch
from vitlab.models.contract import Model, Tokens
from vitlab.objectives.contract import Metrics, ObjectiveKind, Setting
from vitlab.objectives.patches import PatchObjective, put, taken
from vitlab.objectives.shown import Shown

LEVELS = 8  # of a channel: 3 bits
COLORS = LEVELS**3
THUMBNAIL = 4  # a side of the downsized patch
NAME = "masked-patches"


@dataclass(frozen=True, kw_only=True)
class MaskedPatchesOptions:
    """Corrupt patches and predict their colours."""

    fraction: Annotated[float, Bounds(above=0, below=1)] = 0.5  # the share of patches that is corrupted; BERT: 0.15
    mask_share: Probability = 0.8  # the share of corrupted patches that becomes the mask token
    random_share: Probability = 0.1  # the share that becomes another patch of the image; the rest stay unchanged
    target: Literal["color", "thumbnail", "pixels"] = "color"
    """color: the mean colour, one of 512; thumbnail: the 16 colours of the patch at 4 x 4; pixels: the patch, by L2."""

    def __post_init__(self) -> None:
        check_fields(self, "objective.")
        if self.mask_share + self.random_share > 1 + 1e-9:
            raise ConfigError(
                f"objective.mask_share and objective.random_share are parts of the corrupted patches and add up to"
                f" {self.mask_share + self.random_share:g}: make that at most 1."
            )


class Corruption(NamedTuple):
    """Which patches are corrupted, and what each of them becomes: the mask token, another patch, or nothing new."""

    places: Int[Tensor, "b m"]
    masked: Bool[Tensor, "b m"]
    swapped: Bool[Tensor, "b m"]
    others: Int[Tensor, "b m"]  # the patch that takes the place of a swapped one, never itself


def thumbnails(pixels: Float[Tensor, "b n pixels"], side: int) -> Float[Tensor, "b n small 3"]:
    """Patches (channel, row, column) downsized to side x side colours, by the mean."""
    edge = round((pixels.shape[2] / 3) ** 0.5)
    small = F.adaptive_avg_pool2d(rearrange(pixels, "b n (c p q) -> (b n) c p q", c=3, p=edge), side)
    return rearrange(small, "(b n) c y x -> b n (y x) c", b=pixels.shape[0])


def color_classes(colors: Float[Tensor, "*all 3"]) -> Int[Tensor, "*all"]:
    """Colours of 0 to 255 as numbers of 3 bits per channel, 64 r + 8 g + b; what lies outside counts as the end.

    A level is how many of the bounds 255 k / 8 a value reaches. These are exact in binary, so every device agrees.
    """
    bounds = torch.arange(1, LEVELS, device=colors.device) * (255 / LEVELS)
    red, green, blue = torch.bucketize(colors.contiguous(), bounds, right=True).unbind(dim=-1)
    return (red * LEVELS + green) * LEVELS + blue


def class_colors(classes: Int[Tensor, "*all"]) -> Float[Tensor, "*all 3"]:
    """The colour in the middle of each class, 0 to 255."""
    levels = torch.stack([classes // LEVELS**2, classes // LEVELS % LEVELS, classes % LEVELS], dim=-1)
    return (levels + 0.5) * (255 / LEVELS)


@final
class MaskedPatches(PatchObjective):
    """Cross-entropy of the corrupted patches' colours, or the mean square of their normalised pixels."""

    def __init__(self, options: MaskedPatchesOptions, model: Model) -> None:
        super().__init__(model, NAME)
        self.options = options
        num, _, side, width = self.patches
        if num < 2:
            raise ConfigError(f"{NAME} needs images of two patches at least: choose a larger image or a smaller patch.")
        if options.target == "thumbnail" and side < THUMBNAIL:
            raise ConfigError(
                f"objective.target='thumbnail' downsizes a patch to {THUMBNAIL} x {THUMBNAIL}, and these have {side} x"
                f" {side} px: choose 'color' or 'pixels'."
            )
        self.num = min(max(round(num * options.fraction), 1), num)
        self.mask = nn.Parameter(0.02 * torch.randn(width))
        self.small = THUMBNAIL if options.target == "thumbnail" else 1
        outputs = 3 * side**2 if options.target == "pixels" else COLORS * self.small**2
        self.predict = nn.Linear(width, outputs)
        nn.init.xavier_uniform_(self.predict.weight)
        nn.init.zeros_(self.predict.bias)

    def corruption(self, places: Int[Tensor, "b"]) -> Corruption:
        """What happens to each image's patches, counted from the places of the images."""
        chosen = self.order(places)[:, : self.num]
        draws = self.patches.num + torch.arange(2 * self.num, device=places.device)  # those before are the order's
        kind, which = uniform(self.key, places[:, None], draws).chunk(2, dim=1)
        masked = kind < self.options.mask_share
        swapped = ~masked & (kind < self.options.mask_share + self.options.random_share)
        others = (which * (self.patches.num - 1)).long()
        return Corruption(chosen, masked, swapped, others + (others >= chosen))

    def corrupted(self, tokens: Tokens, how: Corruption) -> Tokens:
        """The tokens with corrupted ones in their places."""
        values = tokens.values
        new = torch.where(how.swapped[:, :, None], taken(values, how.others), taken(values, how.places))
        new = torch.where(how.masked[:, :, None], self.mask.to(values.dtype), new)
        return tokens.with_values(put(values, how.places, new))

    def predicted(
        self, model: Model, images: Float[Tensor, "b c h w"], how: Corruption
    ) -> Float[Tensor, "b m outputs"]:
        """What is said of each corrupted patch."""
        encoded = model.encode(model.place(self.corrupted(model.patchify(images), how))).patches
        return self.predict(taken(encoded, how.places)).float()

    def classes(self, model: Model, images: Float[Tensor, "b c h w"]) -> Int[Tensor, "b n small"]:
        """The colours of all patches, one or the thumbnail's."""
        return color_classes(thumbnails(model.patches(self.colors(images))[0], self.small))

    def loss(self, model: Model, batch: Batch, progress: Float[Tensor, ""]) -> tuple[Float[Tensor, ""], Metrics]:
        del progress
        how = self.corruption(batch.places)
        predicted = self.predicted(model, batch.images, how)
        if self.options.target == "pixels":
            sought = taken(model.patches(batch.images.float())[0], how.places)
            return F.mse_loss(predicted, sought), {}
        sought = taken(self.classes(model, batch.images), how.places).flatten()
        logits = predicted.reshape(-1, COLORS)
        right = (logits.detach().argmax(dim=1) == sought).float().mean()
        return F.cross_entropy(logits, sought), {"color accuracy": right}

    def show(self, model: Model, batch: Batch) -> Shown:
        """What the model saw, what it said of the corrupted patches, and what they are."""
        how, images = self.corruption(batch.places), batch.images
        pixels = model.patches(images.float())[0]
        said = self.predicted(model, images, how)
        if self.options.target == "pixels":
            guessed, sought = said, taken(pixels, how.places)
        else:
            known = taken(self.classes(model, images), how.places)
            best = said.reshape(*said.shape[:2], -1, COLORS).argmax(dim=-1)
            guessed, sought = self._painted(best), self._painted(known)
        seen = torch.where(how.swapped[:, :, None], taken(pixels, how.others), taken(pixels, how.places))
        seen = torch.where(how.masked[:, :, None], torch.zeros_like(seen), seen)
        columns = {
            "the picture": pixels,
            "as the model saw it": put(pixels, how.places, seen),
            "what it said": put(pixels, how.places, guessed),
            "what is there": put(pixels, how.places, sought),
        }
        rows = zip(*([(words, each) for each in self.pictures(value)] for words, value in columns.items()), strict=True)
        what = {"color": "their mean colour", "thumbnail": "16 colours of each", "pixels": "their pixels"}
        return Shown(
            title="What it says of hidden patches",
            words=f"Some patches were hidden (grey) or swapped for others, and from the rest the model said"
            f" {what[self.options.target]}.",
            rows=tuple(rows),
        )

    def _painted(self, classes: Int[Tensor, "b m small"]) -> Float[Tensor, "b m pixels"]:
        """Normalised patches of these colours."""
        side, colors = self.patches.side, class_colors(classes) / 255
        normal = (colors - self.mean.flatten()) / self.std.flatten()
        small = rearrange(normal, "b m (y x) c -> (b m) c y x", y=self.small)
        return rearrange(F.interpolate(small, (side, side)), "(b m) c p q -> b m (c p q)", b=classes.shape[0])


def build(options: MaskedPatchesOptions, setting: Setting) -> MaskedPatches:
    return MaskedPatches(options, setting.model)


OBJECTIVE = ObjectiveKind(
    name=NAME,
    summary="corrupt patches and predict their colours",
    objective=MaskedPatches,
    options=MaskedPatchesOptions,
    build=build,
    source="An Image is Worth 16x16 Words, appendix B.1.2, arXiv 2010.11929",
)

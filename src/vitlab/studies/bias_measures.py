"""What pictures that are changed do to a network: its answers, its map of features, and how far it looks."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

from vitlab.data.contract import Split
from vitlab.data.decoding import read_picture
from vitlab.inspection.capture import attention_of
from vitlab.inspection.distance import attention_distance, patch_distances
from vitlab.inspection.positions import position_similarity
from vitlab.models.contract import Model
from vitlab.models.positions import sincos2d

MOST_IMAGES = 1000
MOST_LOOKED_AT = 64  # pictures whose gradients and attention are averaged


def pictures_of(split: Split, model: Model) -> tuple[Float[Tensor, "b c h w"], Int[Tensor, " b"]]:
    """The first images of a split as the model takes them, and their classes."""
    number = min(len(split), MOST_IMAGES)
    images = model.preprocess([read_picture(split.images.read(i), split.images.where(i)) for i in range(number)])
    return images, torch.as_tensor(split.labels[:number])


def shifted(images: Float[Tensor, "b c h w"], pixels: int, *, down: int = 0) -> Float[Tensor, "b c h w"]:
    """Moved to the right and down; what comes in repeats the border."""
    margin = max(abs(pixels), abs(down))
    wide = F.pad(images, (margin,) * 4, mode="replicate")
    height, width = images.shape[-2:]
    top, left = margin - down, margin - pixels
    return wide[..., top : top + height, left : left + width]


def shuffled(images: Float[Tensor, "b c h w"], patch: int) -> Float[Tensor, "b c h w"]:
    """Patches of that side in another order, each picture in its own."""
    height = images.shape[-2] // patch
    parts = rearrange(images, "b c (h p) (w q) -> b (h w) c p q", p=patch, q=patch)
    generator = torch.Generator().manual_seed(0)
    order = torch.rand(parts.shape[:2], generator=generator).argsort(dim=1)
    moved = parts.gather(1, order[:, :, None, None, None].expand_as(parts))
    return rearrange(moved, "b (h w) c p q -> b c (h p) (w q)", h=height)


def changes(side: int) -> dict[str, Callable[[Tensor], list[Tensor]]]:
    """The tests, by name: each gives one or several versions of a batch."""
    step = max(side // 8, 1)
    return {
        "as they are": lambda images: [images],
        f"shifted by {step} px": lambda images: [
            shifted(images, step),
            shifted(images, -step),
            shifted(images, 0, down=step),
            shifted(images, 0, down=-step),
        ],
        "quarters shuffled": lambda images: [shuffled(images, side // 2)],
        "patches shuffled": lambda images: [shuffled(images, side // 4)],
        "turned by 90°": lambda images: [images.rot90(1, (2, 3)), images.rot90(-1, (2, 3))],
    }


@torch.inference_mode()
def accuracies(model: Model, images: Float[Tensor, "b c h w"], labels: Int[Tensor, " b"]) -> dict[str, float]:
    """The accuracy under each test."""
    found: dict[str, float] = {}
    for name, change in changes(images.shape[-1]).items():
        right = [(model(version).argmax(dim=1) == labels).float().mean() for version in change(images)]
        found[name] = float(torch.stack(right).mean())
    return found


def feature_map(model: Model, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b d h w"] | None:
    """What is averaged and classified; None for a network that keeps no places."""
    tokens = model.encode(model.embed(images))
    return None if tokens.grid == (1, 1) else rearrange(tokens.values, "b (h w) d -> b d h w", h=tokens.grid[0])


@torch.inference_mode()
def equivariance(model: Model, images: Float[Tensor, "b c h w"], pixels: int) -> float | None:
    """How alike the map of a shifted picture and the shifted map are: their correlation, 1 where they are the same.

    Places at the border are left out, into which something else came; so is the mean feature, which is the same
    wherever a picture is.
    """
    before, after = feature_map(model, images), feature_map(model, shifted(images, pixels))
    if before is None or after is None:
        return None
    step = pixels * before.shape[-1] // images.shape[-1]
    kept, moved = before[..., : before.shape[-1] - step], after[..., step:]
    kept, moved = kept[..., 1:-1, :], moved[..., 1:-1, :]
    centre = before.mean(dim=(0, 2, 3), keepdim=True)
    a, b = (kept - centre).flatten().double(), (moved - centre).flatten().double()
    return float(F.cosine_similarity(a, b, dim=0))


def gradient_reach(model: Model, images: Float[Tensor, "b c h w"]) -> float | None:
    """How far the feature in the middle looks: the mean distance in px, weighted by the size of its gradient."""
    inputs = images[:MOST_LOOKED_AT].clone().requires_grad_()
    made = feature_map(model, inputs)
    if made is None:
        return None
    row, column = made.shape[2] // 2, made.shape[3] // 2
    direction = torch.randn(made.shape[1], generator=torch.Generator().manual_seed(0)).to(made)
    (gradient,) = torch.autograd.grad((made[:, :, row, column] * direction).sum(), inputs)
    weight = gradient.abs().sum(dim=(0, 1)).double()
    side, cell = inputs.shape[-1], inputs.shape[-1] / made.shape[-1]
    places = torch.arange(side, dtype=torch.float64) + 0.5
    down, right = places - (row + 0.5) * cell, places - (column + 0.5) * cell
    far = (down[:, None] ** 2 + right[None] ** 2).sqrt()
    return float((weight * far).sum() / weight.sum())


def attention_reach(vit: Model, images: Float[Tensor, "b c h w"]) -> list[float]:
    """The mean attention distance of each layer in px, over its heads."""
    grid, patch = vit.config.grid, vit.config.patch_size
    seen = attention_of(vit, images[:MOST_LOOKED_AT])
    prefix = vit.config.num_prefix
    return [
        float(attention_distance(seen[layer], grid=grid, patch_size=patch, num_prefix=prefix).mean())
        for layer in sorted(seen)
    ]


def uniform_attention(vit: Model) -> float:
    """The attention distance of one that gives every patch the same."""
    return float(patch_distances(vit.config.grid, vit.config.patch_size).mean())


def position_structure(positions: Float[Tensor, "n d"], grid: tuple[int, int]) -> dict[str, float]:
    """How row-like, column-like and sinusoidal position embeddings are.

    The parts of their variance that the mean of a row, and of a column, explains: (rows - 1) / (places - 1) by chance.
    And the correlation of their similarities, over pairs of places, with those of fixed sines and cosines in two
    dimensions.
    """
    values = rearrange(positions.detach().double(), "(h w) d -> h w d", h=grid[0])
    values = values - values.mean(dim=(0, 1))
    total = values.pow(2).sum()
    rows = grid[1] * values.mean(dim=1).pow(2).sum() / total
    columns = grid[0] * values.mean(dim=0).pow(2).sum() / total
    fixed = sincos2d(grid, max(positions.shape[1] // 4 * 4, 4))
    return {
        "row-like": float(rows),
        "column-like": float(columns),
        "sinusoidal": _alike(positions - positions.mean(dim=0), fixed - fixed.mean(dim=0), grid),
    }


def _alike(one: Float[Tensor, "n d"], other: Float[Tensor, "n e"], grid: tuple[int, int]) -> float:
    """The correlation of two tables of similarities over pairs of different places."""
    num = grid[0] * grid[1]
    pairs = torch.triu_indices(num, num, offset=1)
    tables = [position_similarity(each, grid).reshape(num, num).double() for each in (one, other)]
    return float(torch.corrcoef(torch.stack([table[pairs[0], pairs[1]] for table in tables]))[0, 1])

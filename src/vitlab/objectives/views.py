"""Several views of each image: which ones, and their features."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from vitlab.core.bounds import Fraction, NonNegativeInt
from vitlab.core.config import check_fields
from vitlab.core.errors import ConfigError
from vitlab.data.streams import StreamPlan, View
from vitlab.models.contract import Model


@dataclass(frozen=True, kw_only=True)
class Crops:
    """Small views of small parts of an image, beside large ones, which are as the recipe augments."""

    num_small: NonNegativeInt = 8  # small views of each image
    small_side: Fraction = 3 / 7  # small views' side as a fraction of the model's, rounded to whole patches
    small_area: tuple[float, float] = (0.05, 0.4)  # the range of the image's area that small views show

    def __post_init__(self) -> None:
        check_fields(self, "objective.")
        low, high = self.small_area
        if not 0 < low <= high <= 1:
            raise ConfigError(f"objective.small_area is a range of fractions like [0.05, 0.4], not {[low, high]}.")

    def views(self, main: StreamPlan, num_large: int, patch: int) -> StreamPlan:
        """The stream in large views and small ones, for a model of patches of that size."""
        large = main.views[0]
        height, width = (max(round(side * self.small_side / patch), 1) * patch for side in large.size)
        augmentation = replace(large.augmentation, crop="paper", crop_area=self.small_area)
        small = View(augmentation, (height, width))
        return replace(main, views=(large,) * num_large + (small,) * self.num_small)


def patch_of(model: Model) -> int:
    """What the sides of a model's images are multiples of, as far as it says."""
    return int(getattr(model.config, "patch_size", 1))


def by_size(
    views: Sequence[Float[Tensor, "b c h w"]], call: Callable[[Tensor], Float[Tensor, "n f"]]
) -> list[Float[Tensor, "b f"]]:
    """What `call` makes of each view, those of one size in one call; they follow each other."""
    found: list[Tensor] = []
    while len(found) < len(views):
        first = views[len(found)]
        alike = [view for view in views[len(found) :] if view.shape == first.shape]
        found += call(torch.cat(alike)).chunk(len(alike)) if len(alike) > 1 else [call(first)]
    return found


def feature_std(features: Float[Tensor, "b f"]) -> Float[Tensor, ""]:
    """How far features of one length spread over the batch, 1 where in all directions alike and 0 where not at all."""
    spread = F.normalize(features.detach().float(), dim=1).var(dim=0, correction=0)
    return spread.sum().sqrt()

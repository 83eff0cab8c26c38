"""Which patches of an image are hidden: a block of drawn size, shape and place, counted from the image's place."""

import math
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vitlab.core.random import uniform

LEAST_ASPECT = 0.3  # height / width of a block, up to the inverse


class BlockMasks(NamedTuple):
    """Patches of each image, as many for all: those of its block, then others, whose weight is 0."""

    patches: Int[Tensor, "b m"]  # flat places of the grid
    weights: Float[Tensor, "b m"]  # 1 / their number for those that are hidden

    def hide(self, values: Float[Tensor, "b n d"], token: Float[Tensor, "d"]) -> Float[Tensor, "b n d"]:
        """The values with a token in the place of hidden ones."""
        hidden = torch.zeros_like(values[:, :, 0]).scatter(1, self.patches, (self.weights > 0).to(values.dtype)) > 0
        return torch.where(hidden[:, :, None], token.to(values.dtype), values)

    def take(self, values: Float[Tensor, "b n d"]) -> Float[Tensor, "b m d"]:
        """The values of these patches."""
        return values.gather(1, self.patches[:, :, None].expand(-1, -1, values.shape[2]))


def block_masks(
    key: int, places: Int[Tensor, "b"], grid: tuple[int, int], ratio: tuple[float, float], prob: float
) -> BlockMasks:
    """With a probability, a block of a part of the grid between the ratios: the patches nearest to its middle.

    Nearness is the larger of the distances down and to the right, one of them stretched by the block's shape.
    """
    (height, width), device = grid, places.device
    draws = uniform(key, places[:, None], torch.arange(5, device=device))
    stretch = torch.exp((draws[:, 2] - 0.5) * -math.log(LEAST_ASPECT))  # the root of the aspect
    down = (torch.arange(height, device=device) + 0.5 - draws[:, :1] * height).abs() / stretch[:, None]
    right = (torch.arange(width, device=device) + 0.5 - draws[:, 1:2] * width).abs() * stretch[:, None]
    far = torch.maximum(down[:, :, None], right[:, None, :]).flatten(1)
    num, most = height * width, max(round(ratio[1] * height * width), 1)
    size = ((ratio[0] + (ratio[1] - ratio[0]) * draws[:, 3]) * num).round().clamp(1, most) * (draws[:, 4] < prob)
    ranks = torch.arange(most, device=device)
    weights = (ranks < size[:, None]) / size.clamp(min=1)[:, None]
    # of equally far ones the first: the sum is exact enough for grids of 300 x 300
    order = (far + torch.arange(num, device=device) * 1e-5).argsort(dim=1)
    return BlockMasks(order[:, :most], weights)

"""What models around a module that is not ours share: it takes pictures, and its maps or sequences are the tokens."""

import math
from typing import Any, ClassVar

from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from vitlab.core.errors import ImageError
from vitlab.models.contract import Model, Tokens


class Wrapped(Model):
    """A module without its classifier (`net`), and a head; `embed` hands on the pixels, one token per place."""

    takes_subsets: ClassVar[bool] = False

    net: Any

    def check(self, images: Float[Tensor, "b c h w"]) -> None:
        """Refuse images that the module cannot take."""
        if images.shape[1] != self.config.channels:
            raise ImageError(f"The model takes images of {self.config.channels} channels, not {images.shape[1]}.")

    def embed(self, images: Float[Tensor, "b c h w"]) -> Tokens:
        self.check(images)
        return of_map(images)


def of_map(y: Float[Tensor, "b d h w"]) -> Tokens:
    """A map, or a picture, as tokens."""
    return Tokens(values=rearrange(y, "b d h w -> b (h w) d"), grid=(y.shape[-2], y.shape[-1]))


def picture(tokens: Tokens) -> Float[Tensor, "b c h w"]:
    """The same back."""
    height, width = tokens.grid
    return rearrange(tokens.values, "b (h w) c -> b c h w", h=height, w=width)


def of_sequence(y: Float[Tensor, "b n d"], size: tuple[int, int], *, num_prefix: int = 0) -> Tokens:
    """A sequence with the grid that its length and the picture's sides allow, one row where none does."""
    num = y.shape[1] - num_prefix
    if num < 1:
        return Tokens(values=y, grid=(1, y.shape[1]))
    height = max(round(math.sqrt(num * size[0] / size[1])), 1)
    grid = (height, num // height) if num % height == 0 else (1, num)
    return Tokens(values=y, grid=grid, num_prefix=num_prefix)


def put(net: nn.Module, old: nn.Module, new: nn.Module) -> None:
    """Another module in the place of one that `net` holds."""
    name = next(name for name, module in net.named_modules() if module is old)
    net.set_submodule(name, new)

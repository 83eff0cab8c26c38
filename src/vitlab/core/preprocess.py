"""The preprocessing spec: how pictures become a model's input. It travels with the weights."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import numpy as np
import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor

from vitlab.core.errors import ConfigError
from vitlab.core.pictures import Picture, to_rgb

Resize: TypeAlias = Literal["squash", "shortest"]
Interpolation: TypeAlias = Literal["nearest", "bilinear", "bicubic", "lanczos"]
FILTERS: dict[Interpolation, Image.Resampling] = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Preprocess:
    """Resize, crop and normalise; the defaults are the paper's: straight to the square, (x - 127.5) / 127.5.

    `squash` resizes to `size` whatever the aspect; `shortest` brings the shorter side to `shortest_edge` and crops
    the centre.
    """

    size: tuple[int, int] = (224, 224)  # height, width
    resize: Resize = "squash"
    shortest_edge: int | None = None  # for resize="shortest"; None: the shorter side of `size`
    interpolation: Interpolation = "bilinear"
    mean: tuple[float, float, float] = (0.5, 0.5, 0.5)
    std: tuple[float, float, float] = (0.5, 0.5, 0.5)

    def __post_init__(self) -> None:
        if min(self.size) < 1:
            raise ConfigError(f"The preprocessing size must be positive, not {self.size}.")
        if self.shortest_edge is not None and (self.resize != "shortest" or self.shortest_edge < min(self.size)):
            raise ConfigError(
                f"shortest_edge = {self.shortest_edge} needs resize = 'shortest' and at least the size {self.size}."
            )
        if not all(math.isfinite(v) for v in (*self.mean, *self.std)) or min(self.std) <= 0:
            raise ConfigError("The preprocessing mean must be finite and the std positive.")

    def with_size(self, size: tuple[int, int]) -> "Preprocess":
        """The same steps for another input size, the shorter edge in proportion."""
        edge = self.shortest_edge
        if edge is not None:
            edge = round(edge * min(size) / min(self.size))
        return replace(self, size=size, shortest_edge=edge)

    def picture(self, image: Picture) -> Image.Image:
        """The resized and cropped picture, before normalisation: what the model sees."""
        rgb = to_rgb(image)
        height, width = self.size
        if self.resize == "squash":
            return rgb.resize((width, height), FILTERS[self.interpolation])
        edge = self.shortest_edge or min(self.size)
        rgb = _without_far_ends(rgb, max(8, math.ceil(2 * max(self.size) / edge)))
        # The longer side is truncated, and the crop placed, as torchvision does.
        short, long = sorted(rgb.size)
        scaled = int(edge * long / short)
        rgb = rgb.resize((edge, scaled) if rgb.width <= rgb.height else (scaled, edge), FILTERS[self.interpolation])
        left, top = _offset(rgb.width, width), _offset(rgb.height, height)
        return rgb.crop((left, top, left + width, top + height))

    def __call__(self, images: Picture | Iterable[Picture]) -> Float[Tensor, "b 3 h w"]:
        """A normalised batch from one picture or several (PIL images, or arrays [H, W], [H, W, C])."""
        pictures = [images] if isinstance(images, Image.Image | np.ndarray) else list(images)
        if not pictures:
            return torch.empty(0, 3, *self.size)
        pixels = np.stack([np.asarray(self.picture(image)) for image in pictures])
        return self.normalize(torch.from_numpy(pixels).permute(0, 3, 1, 2))

    def normalize(self, pixels: Tensor, out: Tensor | None = None) -> Float[Tensor, "b 3 h w"]:
        """Bytes [B, 3, H, W] to (x / 255 - mean) / std, into `out` if it is given, with the same bits.

        On a CPU the pages of a new batch cost more than the arithmetic: a loop does well to keep one.
        """
        mean, std = _column(self.mean, pixels.device), _column(self.std, pixels.device)
        if out is None:
            return pixels.float().contiguous().div_(255).sub_(mean).div_(std)
        for image, target in zip(pixels, out, strict=True):  # one at a time stays in the cache
            target.copy_(image).div_(255).sub_(mean).div_(std)
        return out


def _column(values: tuple[float, ...], device: torch.device) -> Float[Tensor, "c 1 1"]:
    """One value per channel, made on the device: a copy from the host could not be captured in a CUDA graph."""
    return torch.cat([torch.full((1, 1, 1), value, device=device) for value in values])


def _offset(have: int, want: int) -> int:
    """Where a centred crop begins: rounded half to even, or where it is longer, the padding of the first side."""
    return round((have - want) / 2) if have >= want else -((want - have) // 2)


def _without_far_ends(image: Image.Image, ratio: int) -> Image.Image:
    """At most `ratio` times as long as wide: a sliver of one pixel by many would grow without bound when resized."""
    limit = ratio * min(image.size)
    left, top = max(image.width - limit, 0) // 2, max(image.height - limit, 0) // 2
    return image.crop((left, top, image.width - left, image.height - top)) if left or top else image

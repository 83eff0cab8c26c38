"""Models that make images from noise: what they share, and what they refuse."""

from abc import abstractmethod
from typing import Any, ClassVar, NoReturn, TypeGuard

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor, nn

from vitlab.core.errors import ConfigError
from vitlab.core.preprocess import Preprocess
from vitlab.core.random import key, normal
from vitlab.models.contract import Model, Tokens


class Generator(Model):
    """A model the other way round: called with latents [B, Z], it makes normalised images [B, 3, H, W].

    It is saved, loaded, averaged and trained as any model; the steps from images to features it refuses. `config` has
    `latent_dim`; `preprocess` says how its images are normalised.
    """

    takes_subsets: ClassVar[bool] = False
    takes_images: ClassVar[bool] = False

    def __init__(self, config: Any, preprocess: Preprocess | None = None) -> None:
        super().__init__(config, preprocess)
        self.head = nn.Identity()
        self.task = "generation"

    @abstractmethod
    def generate(self, latents: Float[Tensor, "b z"]) -> Float[Tensor, "b c h w"]:
        """Images from latents."""

    def forward(self, latents: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        if latents.ndim != 2:
            self._refuse()
        return self.generate(latents)

    def latents(self, seed: int, places: Int[Tensor, "b"]) -> Float[Tensor, "b z"]:
        """Noise that is counted: a seed's at a place is always the same."""
        return normal(key(seed, "latents"), places, self.config.latent_dim)

    def example(self, device: torch.device | str) -> Tensor:
        return torch.zeros(1, self.config.latent_dim, device=device)

    def pixels(self, images: Float[Tensor, "b c h w"]) -> UInt8[Tensor, "b c h w"]:
        """Normalised images as bytes; what lies outside of their range is cut off."""
        mean, std = (images.new_tensor(each)[:, None, None] for each in (self.preprocess.mean, self.preprocess.std))
        return ((images * std + mean) * 255).round().clamp(0, 255).to(torch.uint8)

    def embed(self, images: Float[Tensor, "b c h w"]) -> Tokens:
        del images
        self._refuse()

    def encode(self, tokens: Tokens) -> Tokens:
        del tokens
        self._refuse()

    def pool(self, tokens: Tokens) -> Float[Tensor, "b d"]:
        del tokens
        self._refuse()

    def features(self, images: Float[Tensor, "b c h w"]) -> list[Tokens]:
        del images
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise takes_none(type(self).__name__)


def takes_none(name: str) -> ConfigError:
    """What is said of a generator where images are to go in."""
    return ConfigError(f"{name} makes images and takes none: `vitlab sample` shows what it makes.")


def need_images(model: Model, name: str) -> None:
    """Refuse a generator where a model of images is needed."""
    if not model.takes_images:
        raise takes_none(name)


def is_generator(model: Model) -> TypeGuard[Generator]:
    return isinstance(model, Generator)

"""What every model gives: the steps from images to logits, and the tokens that pass between them."""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from vitlab.core.errors import ConfigError
from vitlab.core.preprocess import Preprocess


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Where tokens sit: the image's grid of patches, and which of its places are there.

    `present` holds flat places (row * width + column); None means all, in order. `outputs` is for a model's last layer:
    how many of the first tokens are read after it; None means all.
    """

    grid: tuple[int, int]
    present: Int[Tensor, "b m"] | None = None
    num_prefix: int = 0
    outputs: int | None = None

    def with_outputs(self, outputs: int | None) -> "Layout":
        return Layout(grid=self.grid, present=self.present, num_prefix=self.num_prefix, outputs=outputs)


@final
@dataclass(frozen=True, kw_only=True)
class Tokens(Layout):
    """A sequence of token values: prefix tokens first, then the patches that are present."""

    values: Float[Tensor, "b n d"]

    @property
    def layout(self) -> Layout:
        return Layout(grid=self.grid, present=self.present, num_prefix=self.num_prefix)

    @property
    def prefix(self) -> Float[Tensor, "b k d"]:
        return self.values[:, : self.num_prefix]

    @property
    def patches(self) -> Float[Tensor, "b m d"]:
        return self.values[:, self.num_prefix :]

    def with_values(self, values: Float[Tensor, "b n d"]) -> "Tokens":
        return Tokens(values=values, grid=self.grid, present=self.present, num_prefix=self.num_prefix)

    def keep(self, places: Int[Tensor, "b m"]) -> "Tokens":
        """Only the patches at these flat grid places, an image's own set each; prefix tokens stay."""
        assert self.present is None, "tokens were already left out: choose from the whole grid"
        index = places[:, :, None].expand(-1, -1, self.values.shape[-1])
        values = torch.cat([self.prefix, self.patches.gather(1, index)], dim=1)
        return Tokens(values=values, grid=self.grid, present=places, num_prefix=self.num_prefix)


def need_all_places(layout: Layout, model: str) -> None:
    """Refuse tokens with places left out, for a model whose `takes_subsets` is False."""
    if layout.present is not None:
        raise ConfigError(f"{model} takes all tokens of an image, not a subset of them.")


@dataclass(frozen=True)
class AttentionTap:
    """A module to hook, and how to get its attention [B, heads, N, N] from the arguments of its call.

    `attend` takes an attention before those arguments and gives what the module would return: through it the output is
    differentiated with respect to the attention, which a fused product never forms.
    """

    module: nn.Module
    recompute: Callable[..., Tensor]
    attend: Callable[..., Tensor] | None = None  # None: nothing that needs gradients can be asked of this layer


@dataclass(frozen=True)
class Taps:
    """What can be looked at in a model; None or empty where a family has no such thing."""

    attention: tuple[AttentionTap, ...] = ()
    filters: Callable[[], Tensor] | None = None  # the patch projection as pictures [D, C, P, P]
    positions: Callable[[], Tensor] | None = None  # one vector per grid place, [N, D]


class Model(nn.Module, ABC):
    """A vision model: `forward` is embed, encode, pool and head in a row; a dense head reads the encoded tokens.

    Where there are patches, `embed` is `patchify`, then `place`: what stands for a patch can be exchanged between them.

    `config` is a frozen dataclass, `preprocess` the spec that travels with the weights, `labels` the class names
    where they are known, `multi_label` whether an image may have several of them, `task` the name of what it is for,
    `license` the text of the weights' licence where they came with one: it goes with all that is tuned from them.
    """

    takes_subsets: ClassVar[bool] = True  # whether `encode` takes tokens with places left out
    takes_images: ClassVar[bool] = True  # a generator makes them from noise instead: `models.generator`

    config: Any
    preprocess: Preprocess
    labels: tuple[str, ...] | None
    multi_label: bool
    task: str
    license: str | None
    head: nn.Module
    load_report: Any  # weights.mapping.LoadReport where the weights came from a file

    def __init__(self, config: Any, preprocess: Preprocess | None = None) -> None:
        super().__init__()
        self.config = config
        self.preprocess = preprocess or Preprocess(size=config.image_size)
        self.labels = None
        self.multi_label = False
        self.task = "classification"
        self.license = None
        self.load_report = None

    def example(self, device: torch.device | str) -> Tensor:
        """An input, of zeros."""
        return torch.zeros(1, self.config.channels, *self.config.image_size, device=device)

    @property
    def has_patches(self) -> bool:
        """Whether tokens stand for patches that do not overlap; `embed` of other families is one step of its own."""
        return False

    def patches(self, images: Float[Tensor, "b c h w"]) -> tuple[Float[Tensor, "b n pixels"], tuple[int, int]]:
        """The pixels of each patch, flattened as (channel, row, column), and the grid of patches."""
        del images
        raise self._no_patches()

    def patchify(self, images: Float[Tensor, "b c h w"]) -> Tokens:
        """The projected patches of the whole grid, without prefix tokens and positions."""
        del images
        raise self._no_patches()

    def place(self, tokens: Tokens) -> Tokens:
        """Patches as `patchify` gives them, some left out or exchanged, to what `encode` takes."""
        del tokens
        raise self._no_patches()

    def _no_patches(self) -> ConfigError:
        return ConfigError(f"{type(self).__name__} does not cut images into patches: choose a Vision Transformer.")

    def embed(self, images: Float[Tensor, "b c h w"]) -> Tokens:
        """Images to tokens."""
        return self.place(self.patchify(images))

    @abstractmethod
    def encode(self, tokens: Tokens) -> Tokens:
        """Tokens through the layers."""

    @abstractmethod
    def pool(self, tokens: Tokens) -> Float[Tensor, "b d"]:
        """Encoded tokens to one feature vector per image."""

    def pooled(self, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b d"]:
        """The features that a head of one answer per image reads, by the quickest path."""
        return self.pool(self.encode(self.embed(images)))

    @property
    def is_dense(self) -> bool:
        """Whether the head answers for every pixel, [B, K, H, W], and not for the image."""
        return getattr(self.config, "head", "pooled") == "patches" and self.config.num_classes > 0

    def dense(self, images: Float[Tensor, "b c h w"]) -> Tokens:
        """The encoded tokens that a dense head reads, after the final norm."""
        return self.encode(self.embed(images))

    def covered(self, size: tuple[int, int]) -> tuple[int, int]:
        """The height and width that the grid of an image of that size stands for, padding included."""
        return size

    @abstractmethod
    def features(self, images: Float[Tensor, "b c h w"]) -> list[Tokens]:
        """The tokens that enter the first layer, then those that leave each layer."""

    def probabilities(self, logits: Float[Tensor, "*all"]) -> Float[Tensor, "*all"]:
        """Of the classes: they sum to 1, unless an image may have several."""
        if self.multi_label:
            return logits.float().sigmoid()
        return logits.float().softmax(dim=-3 if self.is_dense else -1)

    @abstractmethod
    def initialize(self) -> None:
        """Fresh weights in every parameter and buffer, also after `to_empty` from the meta device."""

    @property
    @abstractmethod
    def num_features(self) -> int:
        """The length of a feature vector."""

    @property
    def num_layers(self) -> int:
        """How many layers `layer_of` counts between the stem (0) and the head (num_layers + 1)."""
        return 0

    def layer_of(self, name: str) -> int:
        """The layer that a parameter belongs to, for rates that fall from layer to layer."""
        return self.num_layers + 1 if name.startswith("head.") else 0

    @property
    def normed_layers(self) -> tuple[tuple[str, str], ...]:
        """Pairs of a layer norm and the linear layer that alone reads it, by their names."""
        return ()

    @property
    def taps(self) -> Taps:
        return Taps()

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        from vitlab.models.notebook import shown

        return shown(self)

    def auxiliary(self) -> dict[str, Tensor]:
        """Losses of the last forward pass in training, weighted, to be added to the objective's; handed out once."""
        return {}

    def forward(self, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b k *hw"]:
        """Logits of the image, or of each of its pixels."""
        if not self.is_dense:
            return self.head(self.pooled(images))
        size = (images.shape[-2], images.shape[-1])
        return self.head(self.dense(images), size=size, covered=self.covered(size))


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """The model in evaluation mode inside the block, each of its modules as it was afterwards."""
    training = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, flag in training:
            module.training = flag

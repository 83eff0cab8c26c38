"""Any classification model of timm's in our contract: `timm:<name>` wherever a model is named.

What an adapter cannot do: take a subset of tokens, and take other image sizes than its own where timm's model has one.
Plain ViTs of timm's are cut where ours are: patches and positions, then blocks. For all others `embed` hands on the
pixels, one token a place, and `encode` is timm's `forward_features`; a convolutional network's feature map is its
tokens. The classifier is taken out of timm's module and is `head`; where there are two (distilled models), both are.
CrossViT and EfficientViM have one a branch, which stay inside: their features are their logits.
"""

import dataclasses
import functools
import json
import math
import re
import sys
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias, final

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from vitlab.core.config import from_dict, to_dict
from vitlab.core.errors import ConfigError, ImageError
from vitlab.core.peers import import_timm
from vitlab.core.preprocess import IMAGENET_MEAN, IMAGENET_STD, Preprocess
from vitlab.models.contract import Model, Taps, Tokens, need_all_places
from vitlab.models.timm_attention import attention_taps
from vitlab.models.timm_build import TimmConfig, build_net, first_line, known
from vitlab.models.timm_preprocess import preprocess_named
from vitlab.models.vit import DistilledHead

# What `encode` gives: our own cut, a map [B, D, H, W] or [B, H, W, D], a sequence [B, N, D], or the pooled vector
Form: TypeAlias = Literal["vit", "map", "rows", "sequence", "vector"]


@final
class TimmModel(Model):
    """timm's module without its classifier (`net`), and the classifier (`head`)."""

    takes_subsets: ClassVar[bool] = False

    config: TimmConfig

    def __init__(self, config: TimmConfig, preprocess: Preprocess | None = None, *, pretrained: bool = False) -> None:
        net = build_net(config, pretrained=pretrained)
        super().__init__(config, preprocess or preprocess_of(config))
        self._layers = _layers(net)
        self.head = _take_head(net, config)
        self.net: Any = net
        self._shape = _shape(config)

    @property
    def num_features(self) -> int:
        return self._shape.num_features

    @property
    def num_layers(self) -> int:
        return max([1, *self._layers.values()]) - 1

    def layer_of(self, name: str) -> int:
        """As timm groups its parameters; without groups the head is one layer and the rest another."""
        if name.startswith("head."):
            return self.num_layers + 1
        plain = re.sub(r"\.parametrizations\.(\w+)\..*", r".\1", name)  # an adapter's layer is its weight's
        return self._layers.get(plain.removeprefix("net."), 0)

    def embed(self, images: Float[Tensor, "b c h w"]) -> Tokens:
        _, channels, height, width = images.shape
        if channels != self.config.channels:
            raise ImageError(f"The model takes images of {self.config.channels} channels, not {channels}.")
        if self._shape.fixed and (height, width) != self.config.image_size:
            raise ImageError(
                f"timm's {self.config.name} takes images of {_by(self.config.image_size)} px only, not"
                f" {_by((height, width))}: load it with that image_size."
            )
        if self._shape.form != "vit":
            return Tokens(values=rearrange(images, "b c h w -> b (h w) c"), grid=(height, width))
        net = self.net
        grid = net.patch_embed.grid_size if self._shape.fixed else net.patch_embed.dynamic_feat_size((height, width))
        z = net.norm_pre(net.patch_drop(net._pos_embed(net.patch_embed(images))))
        return Tokens(values=z, grid=tuple(grid), num_prefix=net.num_prefix_tokens)

    def encode(self, tokens: Tokens) -> Tokens:
        need_all_places(tokens, f"timm's {self.config.name}")
        net, form = self.net, self._shape.form
        if form == "vit":
            if net.grad_checkpointing and self.training:
                z = import_timm().models.checkpoint_seq(net.blocks, tokens.values)
            else:
                z = net.blocks(tokens.values)
            return tokens.with_values(net.norm(z))
        y = net.forward_features(_picture(tokens))
        if form == "vector":
            return Tokens(values=self._pooled(y)[:, None], grid=(1, 1))
        if form == "sequence":
            return _sequence(net, y, tokens.grid)
        return _map(y if form == "map" else rearrange(y, "b h w d -> b d h w"))

    def pool(self, tokens: Tokens) -> Float[Tensor, "b d"]:
        form, values = self._shape.form, tokens.values
        if form == "vector":
            return values[:, 0]
        height, width = tokens.grid
        if form == "map":
            values = rearrange(values, "b (h w) d -> b d h w", h=height, w=width)
        elif form == "rows":
            values = rearrange(values, "b (h w) d -> b h w d", h=height, w=width)
        return self._pooled(values)

    def _pooled(self, y: Any) -> Float[Tensor, "b d"]:
        pooled = self.net.forward_head(y)
        if isinstance(self.head, DistilledHead):
            pooled = 2 * pooled  # timm halves the sum of its two classifiers, here of their inputs side by side
        return pooled.flatten(1)

    def features(self, images: Float[Tensor, "b c h w"]) -> list[Tokens]:
        tokens = self.embed(images)
        if self._shape.form == "vit":
            layers = [tokens]
            for block in self.net.blocks:
                layers.append(tokens.with_values(block(layers[-1].values)))
            return layers
        if not hasattr(self.net, "forward_intermediates"):
            return [tokens, self.encode(tokens)]
        maps = self.net.forward_intermediates(_picture(tokens), output_fmt="NCHW", intermediates_only=True)
        return [tokens, *(_map(each) for each in maps)]

    @property
    def taps(self) -> Taps:
        named = known(self.config.name).settings.get("first_conv")
        first = dict(self.net.named_modules()).get(named) if isinstance(named, str) else None
        placed = self._shape.form == "vit" and self.net.pos_embed is not None
        return Taps(
            attention=attention_taps(self.net),
            filters=first.weight.detach if isinstance(first, nn.Conv2d) else None,
            positions=self._places if placed else None,
        )

    def _places(self) -> Float[Tensor, "n d"]:
        first = 0 if self.net.no_embed_class else self.net.num_prefix_tokens
        return self.net.pos_embed[0, first:]

    @torch.no_grad()
    def initialize(self) -> None:
        """timm's own fresh weights, the classifier's too."""
        with torch.device("cpu"):
            fresh = TimmModel(self.config)
        own = {**dict(self.named_parameters()), **dict(self.named_buffers())}
        for name, value in (*fresh.named_parameters(), *fresh.named_buffers()):
            own[name].copy_(value)

    def _classifier(self) -> dict[str, Tensor]:
        """The classifier under timm's name, by which timm tells its own weights from older files."""
        inner = self.head.conv if isinstance(self.head, _Pointwise) else self.head
        place = known(self.config.name).settings.get("classifier")
        return {f"{place}.{leaf}": value for leaf, value in inner.state_dict().items()}

    def resize(self, image_size: tuple[int, int]) -> None:
        """Another image size for trained weights, positions resized as timm does it when it loads its own."""
        config = dataclasses.replace(self.config, image_size=image_size)
        with torch.device("meta"):
            wanted = TimmModel(config)
        if self._shape.fixed or _shapes(wanted) != _shapes(self):
            self.net = self._adapted(config)
        self.config, self._shape = config, wanted._shape
        self.preprocess = self.preprocess.with_size(image_size)

    def _adapted(self, config: TimmConfig) -> Any:
        """timm's module for another image size with these weights."""
        larger = TimmModel(config).to(next(self.parameters()).device)
        adapt = getattr(sys.modules[type(self.net).__module__], "checkpoint_filter_fn", lambda state, _: state)
        named = set(larger.net.state_dict())
        try:
            state = adapt({**self.net.state_dict(), **self._classifier()}, larger.net)
            larger.net.load_state_dict({name: value for name, value in state.items() if name in named})
        except RuntimeError as error:
            raise ConfigError(
                f"timm's {self.config.name} cannot change its resolution of {_by(self.config.image_size)} px."
            ) from error
        return larger.net.train(self.training)


def _shapes(model: TimmModel) -> dict[str, torch.Size]:
    return {name: value.shape for name, value in model.state_dict().items()}


def size_from(config: TimmConfig, side: int) -> int | None:
    """The first side from that one on that patches divide, or None where trained weights cannot go on at it."""
    with torch.device("meta"):
        model = TimmModel(config)
        patches: Any = getattr(model.net, "patch_embed", None)
        unit = patches.feat_ratio() if hasattr(patches, "feat_ratio") else 1
        side = math.ceil(side / unit) * unit
        try:
            model.resize((side, side))
        except ConfigError:
            return None
    return side


def preprocess_of(config: TimmConfig) -> Preprocess:
    """How timm prepares pictures for the weights of that name."""
    settings = known(config.name).settings
    named = {"mean": IMAGENET_MEAN, "std": IMAGENET_STD, **settings}
    return preprocess_named(named, config.image_size, f"timm:{config.name}", [])


@final
class _Side(nn.Module):
    """In the place of one of two classifiers: its input, with zeros where the other's stands."""

    def __init__(self, first: bool) -> None:
        super().__init__()
        self.first = first

    def forward(self, x: Tensor) -> Tensor:
        none = torch.zeros_like(x)
        return torch.cat([x, none] if self.first else [none, x], dim=-1)


@final
class _Pointwise(nn.Module):
    """A classifier that is a convolution of one place."""

    def __init__(self, conv: nn.Conv2d) -> None:
        super().__init__()
        self.conv = conv

    def forward(self, features: Float[Tensor, "b d"]) -> Float[Tensor, "b k"]:
        return self.conv(features[:, :, None, None]).flatten(1)


def _take_head(net: Any, config: TimmConfig) -> nn.Module:
    """The classifier, with something in its place that hands on its input."""
    if config.num_classes == 0:
        return nn.Identity()
    found = net.get_classifier()
    found = getattr(found, "fc", found)  # Sequencer's is its whole head, pooling too
    if isinstance(found, tuple) and len(found) == 2 and not any(isinstance(each, nn.ModuleList) for each in found):
        head = DistilledHead(1, config.num_classes)
        for name, module, first in zip(("label", "teacher"), found, (True, False), strict=True):
            setattr(head, name, module)
            _put(net, module, _Side(first))
        return head
    if not isinstance(found, nn.Module) or isinstance(found, nn.ModuleList | nn.Identity):
        return nn.Identity()  # several classifiers that timm averages in a way of its own stay inside
    _put(net, found, nn.Identity())
    return _Pointwise(found) if isinstance(found, nn.Conv2d) else found


def _put(net: nn.Module, old: nn.Module, new: nn.Module) -> None:
    name = next(name for name, module in net.named_modules() if module is old)
    net.set_submodule(name, new)


def _layers(net: Any) -> dict[str, int]:
    """Each parameter's layer by timm's groups, from 0; none where a model has no groups."""
    if not hasattr(net, "group_matcher"):
        return {}
    return import_timm().models.group_parameters(net, net.group_matcher(coarse=False), reverse=True)


@dataclass(frozen=True)
class Shape:
    """What timm's module takes and gives, found by passing an image without memory through it."""

    form: Form
    num_features: int
    fixed: bool  # whether it takes one image size only


def _shape(config: TimmConfig) -> Shape:
    return _found(json.dumps(to_dict(config)))


@functools.cache
def _found(described: str) -> Shape:
    config = from_dict(TimmConfig, json.loads(described), where="timm")
    with torch.device("meta"):
        net: Any = build_net(config).eval()
        if getattr(net, "aux_head", None) is not None:
            raise ConfigError(f"timm's {config.name} has a second classifier for its patches, which is not supported.")
        _take_head(net, config)
        images = torch.zeros(1, config.channels, *config.image_size)
        try:
            with torch.no_grad():
                y = net.forward_features(images)
                pooled = net.forward_head(y).flatten(1)
        except Exception as error:  # by assertion, or in the middle of a layer
            raise ConfigError(
                f"timm's {config.name} takes no images of {_by(config.image_size)} px: {first_line(error)}."
            ) from error
    fixed = bool(known(config.name).settings.get("fixed_input_size")) and not getattr(net, "dynamic_img_size", False)
    return Shape(_form(net, y), pooled.shape[1], fixed)


def _form(net: Any, y: Any) -> Form:
    vit = import_timm().models.vision_transformer.VisionTransformer
    if isinstance(net, vit) and type(net).forward_features is vit.forward_features:
        return "vit"
    if not isinstance(y, Tensor) or y.ndim not in (3, 4):
        return "vector"
    if y.ndim == 3:
        return "sequence"
    return "rows" if getattr(net, "output_fmt", "NCHW") == "NHWC" else "map"


def _picture(tokens: Tokens) -> Float[Tensor, "b c h w"]:
    height, width = tokens.grid
    return rearrange(tokens.values, "b (h w) c -> b c h w", h=height, w=width)


def _map(y: Float[Tensor, "b d h w"]) -> Tokens:
    return Tokens(values=rearrange(y, "b d h w -> b (h w) d"), grid=(y.shape[-2], y.shape[-1]))


def _sequence(net: Any, y: Float[Tensor, "b n d"], picture: tuple[int, int]) -> Tokens:
    """A sequence with the grid that its length and the picture's sides allow, one row where none does."""
    num_prefix = getattr(net, "num_prefix_tokens", 0)
    num = y.shape[1] - num_prefix
    if num < 1:
        return Tokens(values=y, grid=(1, y.shape[1]))
    height = max(round(math.sqrt(num * picture[0] / picture[1])), 1)
    grid = (height, num // height) if num % height == 0 else (1, num)
    return Tokens(values=y, grid=grid, num_prefix=num_prefix)


def _by(size: tuple[int, int]) -> str:
    return f"{size[0]} x {size[1]}"

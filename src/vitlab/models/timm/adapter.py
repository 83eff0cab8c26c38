"""Any classification model of timm's in our contract: `timm:<name>` wherever a model is named.

What an adapter cannot do: take a subset of tokens, and take other image sizes than its own where timm's model has one.
Plain ViTs of timm's are cut where ours are: patches and positions, then blocks. For all others `embed` hands on the
pixels, one token per place, and `encode` is timm's `forward_features`; a convolutional network's feature map is its
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
from typing import Any, Literal, TypeAlias, final

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from vitlab.core.config import from_dict, to_dict
from vitlab.core.errors import ConfigError, ImageError
from vitlab.core.peers import import_timm
from vitlab.core.preprocess import IMAGENET_MEAN, IMAGENET_STD, Preprocess
from vitlab.models.contract import Taps, Tokens, need_all_places
from vitlab.models.family import Family
from vitlab.models.heads import DistilledHead, build_head
from vitlab.models.timm.attention import attention_taps
from vitlab.models.timm.build import TimmConfig, build_net, first_line, known
from vitlab.models.timm.preprocess import preprocess_named
from vitlab.models.vit import cut
from vitlab.models.wrapped import Wrapped, of_map, of_sequence, picture, put

# What `encode` gives: our own cut, a map [B, D, H, W] or [B, H, W, D], a sequence [B, N, D], or the pooled vector
Form: TypeAlias = Literal["vit", "map", "rows", "sequence", "vector"]


@final
class TimmModel(Wrapped):
    """timm's module without its classifier (`net`), and the classifier (`head`)."""

    config: TimmConfig

    def __init__(self, config: TimmConfig, preprocess: Preprocess | None = None, *, pretrained: bool = False) -> None:
        net = build_net(config, pretrained=pretrained)
        super().__init__(config, preprocess or preprocess_of(config))
        self._layers = _layers(net)
        self.head = _take_head(net, config)
        self.net = net
        self._shape = _shape(config)
        if config.head == "patches":
            if self._shape.form == "vector":
                raise ConfigError(f"timm's {config.name} gives one vector per image: head='patches' needs a map.")
            self.head = build_head("patches", config.num_classes, features=self.num_features, width=self._shape.width)

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

    @property
    def has_patches(self) -> bool:
        return self._shape.form == "vit"

    def check(self, images: Float[Tensor, "b c h w"]) -> None:
        super().check(images)
        size = (images.shape[-2], images.shape[-1])
        if self._shape.fixed and size != self.config.image_size:
            raise ImageError(
                f"timm's {self.config.name} takes images of {_by(self.config.image_size)} px only, not"
                f" {_by(size)}: load it with that image_size."
            )

    def _grid(self, size: tuple[int, int]) -> tuple[int, int]:
        patches = self.net.patch_embed
        height, width = patches.grid_size if self._shape.fixed else patches.dynamic_feat_size(size)
        return height, width

    def covered(self, size: tuple[int, int]) -> tuple[int, int]:
        if not self.has_patches:
            return size
        grid, side = self._grid(size), self.net.patch_embed.feat_ratio()
        return max(grid[0] * side, size[0]), max(grid[1] * side, size[1])

    def patches(self, images: Float[Tensor, "b c h w"]) -> tuple[Float[Tensor, "b n pixels"], tuple[int, int]]:
        if not self.has_patches:
            raise self._no_patches()
        self.check(images)
        height, width = images.shape[-2:]
        grid, side = self._grid((height, width)), self.net.patch_embed.feat_ratio()
        whole = F.pad(images, (0, grid[1] * side - width, 0, grid[0] * side - height))  # or cut, as timm does
        return cut(whole, side), grid

    def patchify(self, images: Float[Tensor, "b c h w"]) -> Tokens:
        if not self.has_patches:
            raise self._no_patches()
        self.check(images)
        z = self.net.patch_embed(images)
        grid = self._grid((images.shape[-2], images.shape[-1]))
        return Tokens(values=z if z.ndim == 3 else rearrange(z, "b h w d -> b (h w) d"), grid=grid)

    def place(self, tokens: Tokens) -> Tokens:
        net = self.net
        need_all_places(tokens, f"timm's {self.config.name}")
        z = tokens.values
        if net.dynamic_img_size:  # timm takes the grid from the shape then
            z = rearrange(z, "b (h w) d -> b h w d", h=tokens.grid[0])
        z = net.norm_pre(net.patch_drop(net._pos_embed(z)))
        return Tokens(values=z, grid=tokens.grid, num_prefix=net.num_prefix_tokens)

    def embed(self, images: Float[Tensor, "b c h w"]) -> Tokens:
        return self.place(self.patchify(images)) if self.has_patches else super().embed(images)

    def encode(self, tokens: Tokens) -> Tokens:
        need_all_places(tokens, f"timm's {self.config.name}")
        net, form = self.net, self._shape.form
        if form == "vit":
            if net.grad_checkpointing and self.training:
                z = import_timm().models.checkpoint_seq(net.blocks, tokens.values)
            else:
                z = net.blocks(tokens.values)
            return tokens.with_values(net.norm(z))
        y = net.forward_features(picture(tokens))
        if form == "vector":
            return Tokens(values=self._pooled(y)[:, None], grid=(1, 1))
        if form == "sequence":
            return of_sequence(y, tokens.grid, num_prefix=getattr(net, "num_prefix_tokens", 0))
        return of_map(y if form == "map" else rearrange(y, "b h w d -> b d h w"))

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
        maps = self.net.forward_intermediates(picture(tokens), output_fmt="NCHW", intermediates_only=True)
        return [tokens, *(of_map(each) for each in maps)]

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
            put(net, module, _Side(first))
        return head
    if not isinstance(found, nn.Module) or isinstance(found, nn.ModuleList | nn.Identity):
        return nn.Identity()  # several classifiers that timm averages in a way of its own stay inside
    put(net, found, nn.Identity())
    return _Pointwise(found) if isinstance(found, nn.Conv2d) else found


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
    width: int  # of its tokens
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
    form = _form(net, y)
    width = pooled.shape[1] if form == "vector" else y.shape[1] if form == "map" else y.shape[-1]
    return Shape(form, pooled.shape[1], width, fixed)


def _form(net: Any, y: Any) -> Form:
    vit = import_timm().models.vision_transformer.VisionTransformer
    if isinstance(net, vit) and type(net).forward_features is vit.forward_features and hasattr(net, "_pos_embed"):
        return "vit"  # whose positions are added by a private method of timm's
    if not isinstance(y, Tensor) or y.ndim not in (3, 4):
        return "vector"
    if y.ndim == 3:
        return "sequence"
    return "rows" if getattr(net, "output_fmt", "NCHW") == "NHWC" else "map"


def _by(size: tuple[int, int]) -> str:
    return f"{size[0]} x {size[1]}"


FAMILY = Family(
    name="timm",
    config=TimmConfig,
    model=TimmModel,
    summary="model of timm's",
    title="EfficientNet, through timm",
    pattern="timm:*efficientnet_b*",
    example={
        "name": "test_vit",
        "image_size": (32, 48),
        "num_classes": 5,
        "arguments": {"patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 4, "dynamic_img_size": False},
    },
)

"""A module of the user's own as a model: anything that makes logits, features or a map of images [B, C, H, W]."""

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitlab.core.errors import ConfigError
from vitlab.core.preprocess import Preprocess
from vitlab.models.contract import Tokens, evaluating, need_all_places
from vitlab.models.heads import HeadKind, build_head
from vitlab.models.timm.build import first_line
from vitlab.models.wrapped import Wrapped, of_map, of_sequence, picture, put


@dataclass(frozen=True, kw_only=True)
class OutsideConfig:
    """What is known of the module; it belongs to no family, and nothing is built from it."""

    name: str  # of the module's class
    image_size: tuple[int, int] = (224, 224)  # height, width
    num_classes: int = 0  # 0: no head
    head: HeadKind = "pooled"
    channels: int = 3


@final
class OutsideModel(Wrapped):
    """A module without its last linear layer (`net`), and that layer or a fresh one (`head`)."""

    config: OutsideConfig

    def __init__(
        self, config: OutsideConfig, preprocess: Preprocess, net: nn.Module, head: nn.Module, num_features: int
    ) -> None:
        super().__init__(config, preprocess)
        self.net, self.head = net, head
        self._num_features = num_features

    @property
    def num_features(self) -> int:
        return self._num_features

    def encode(self, tokens: Tokens) -> Tokens:
        need_all_places(tokens, self.config.name)
        y = self.net(picture(tokens))
        if y.ndim == 4:
            return of_map(y)
        return Tokens(values=y[:, None], grid=(1, 1)) if y.ndim == 2 else of_sequence(y, tokens.grid)

    def pool(self, tokens: Tokens) -> Float[Tensor, "b d"]:
        return tokens.values.mean(dim=1)

    def features(self, images: Float[Tensor, "b c h w"]) -> list[Tokens]:
        tokens = self.embed(images)
        return [tokens, self.encode(tokens)]

    def initialize(self) -> None:
        """By each part's own `reset_parameters`; a part that has parameters and no such method is an error."""
        for name, module in self.named_modules():
            reset = getattr(module, "reset_parameters", None)
            if callable(reset):
                reset()
            elif next(_own(module), None) is not None:
                raise ConfigError(f"{self.config.name} cannot get fresh weights: {name} has no reset_parameters().")


def _own(module: nn.Module) -> Iterator[Tensor]:
    yield from module.parameters(recurse=False)
    yield from module.buffers(recurse=False)


def wrap(
    module: nn.Module,
    *,
    num_classes: int | None = None,
    image_size: tuple[int, int] | None = None,
    preprocess: Preprocess | None = None,
    head: HeadKind = "pooled",
    channels: int = 3,
) -> OutsideModel:
    """A copy of the module as a model, for as many classes as asked for.

    A linear layer that makes the module's output is its classifier: it stays where it has that many outputs, and is
    replaced by a fresh one otherwise. Without one, the output is features under a fresh classifier, unless there are as
    many of them as classes: then they are the logits. `num_classes=None` leaves the module as it is.
    """
    spec = preprocess or Preprocess(size=image_size or (224, 224))
    spec = spec if image_size is None else spec.with_size(image_size)
    name, net = type(module).__name__, copy.deepcopy(module)
    made, last = _tried(net, name, spec, channels)
    width = made.shape[-1] if made.ndim == 3 else made.shape[1]
    if head == "patches" and made.ndim == 2:
        raise ConfigError(f"{name} gives one vector per image: head='patches' needs a map [B, D, H, W] of it.")
    if last is None:
        classes = num_classes or 0
        are_logits = head == "pooled" and classes == width
        classifier = build_head(head, 0 if are_logits else classes, features=width, width=width)
    else:
        classes = last.out_features if num_classes is None else num_classes
        width = last.in_features
        classifier = last if classes == last.out_features else build_head(head, classes, features=width, width=width)
        if last is net:
            net = nn.Identity()
        else:
            put(net, last, nn.Identity())
    config = OutsideConfig(name=name, image_size=spec.size, num_classes=classes, head=head, channels=channels)
    return OutsideModel(config, spec, net, classifier.to(made.device, made.dtype), width)


@torch.no_grad()
def _tried(net: nn.Module, name: str, spec: Preprocess, channels: int) -> tuple[Tensor, nn.Linear | None]:
    """What the module makes of an image, and the linear layer that it comes out of as it is."""
    outputs: list[tuple[nn.Module, Any]] = []
    linears = [module for module in net.modules() if isinstance(module, nn.Linear)]
    hooks = [each.register_forward_hook(lambda own, _, made: outputs.append((own, made))) for each in linears]
    like = next(net.parameters(), torch.empty(0))
    try:
        with evaluating(net):
            made: Any = net(torch.zeros(1, channels, *spec.size, device=like.device, dtype=like.dtype))
    except Exception as error:
        shape = [1, channels, *spec.size]
        raise ConfigError(f"{name} takes no images {shape}: {first_line(error)}.") from error
    finally:
        for hook in hooks:
            hook.remove()
    if not isinstance(made, Tensor) or made.ndim not in (2, 3, 4) or not made.is_floating_point():
        raise ConfigError(f"{name} must make one tensor of images: [B, F], [B, N, D] or [B, D, H, W].")
    found = [own for own, output in outputs if output is made and made.ndim == 2 and isinstance(own, nn.Linear)]
    return made, found[-1] if found else None

"""Every shape on the way from an image to its logits, seen by hooks on a model without memory (the meta device)."""

import contextlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from vitlab.models.contract import AttentionTap, Model
from vitlab.models.positions import AddedPositions, RelativePositions
from vitlab.models.vit import Mlp, ViT

See: TypeAlias = Callable[[str, Tensor], None]


@dataclass(frozen=True)
class Step:
    """What one step gives for one image; `layer` counts from 1, None outside the layers."""

    name: str
    shape: tuple[int, ...]
    layer: int | None = None


def shapes_of(model: Model) -> list[Step]:
    """The steps of one image through a model on the meta device, in order.

    Families that cut patches have them one by one; of others the tokens that enter, and those that leave each layer.
    Inside a layer: queries, keys, values, attention and MLP, where a family has them. Experts have a first axis.
    """
    config, steps = model.config, list[Step]()
    images = torch.zeros(1, config.channels, *config.image_size, device="meta")
    with torch.no_grad():
        steps.append(Step("image", tuple(images.shape[1:])))
        steps += _entering(model, images)
        watched, layers = _layers(model, images)
        steps += watched
        encoded = model.encode(model.embed(images))
        steps.append(_step("encoded", encoded.values))
        if model.is_dense:
            steps.append(_step("logits of every pixel", model(images)))
            return steps
        pooled = model.pool(encoded)
        steps.append(_step("pooled", pooled))
        if config.num_classes:
            steps.append(_step("logits", model.head(pooled)))
    assert layers == len({step.layer for step in steps} - {None})
    return steps


def _entering(model: Model, images: Tensor) -> list[Step]:
    """Patches, their projection, prefix tokens and positions."""
    if not isinstance(model, ViT):
        return [_step("tokens", model.embed(images).values)] if model.has_patches else []
    seen: list[Step] = []

    def projected(_: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        seen.extend([_step("patches", inputs[0]), _step("projected patches", output)])

    with contextlib.ExitStack() as hooks:
        hooks.callback(model.projection.register_forward_hook(projected).remove)
        tokens = model.embed(images)
    if model.prefix is not None:
        one = model.config.class_token and model.config.num_prefix == 1
        seen.append(Step("class token" if one else "prefix tokens", tuple(model.prefix.shape)))
    for positions in model.positions[:1]:
        if isinstance(positions, RelativePositions):
            seen += [Step(f"positions, {name}", tuple(table.shape)) for name, table in positions.named_parameters()]
        elif isinstance(positions, AddedPositions):
            seen.append(Step("positions", tuple(positions.all_places(tokens.grid, images.device).shape)))
    return [*seen, _step("tokens", tokens.values)]


def _layers(model: Model, images: Tensor) -> tuple[list[Step], int]:
    """What hooks see while the model gives its layers' tokens, and the number of layers."""
    blocks = getattr(model, "blocks", None)
    seen: list[Step] = []
    layer = 1

    def see(name: str, value: Tensor) -> None:
        seen.append(_step(name, value, layer))

    def leave(_: nn.Module, _inputs: Any, output: Any) -> None:
        nonlocal layer
        see("layer", output[0] if isinstance(output, tuple) else output)
        layer += 1

    with contextlib.ExitStack() as hooks:
        if isinstance(blocks, nn.ModuleList):
            for tap in model.taps.attention:
                hooks.callback(tap.module.register_forward_hook(_attention(tap, see), with_kwargs=True).remove)
            for module in blocks.modules():
                if isinstance(module, Mlp):
                    hooks.callback(module.up.register_forward_hook(_output("MLP, hidden", see)).remove)
                    hooks.callback(module.register_forward_hook(_output("MLP", see)).remove)
            for block in blocks:
                hooks.callback(block.register_forward_hook(leave).remove)
        entered, *layers = model.features(images)
    if seen:
        return seen, layer - 1
    tokens = [_step("layer", each.values, number) for number, each in enumerate(layers, 1)]
    return [*([] if model.has_patches else [_step("tokens", entered.values)]), *tokens], len(layers)


def _attention(tap: AttentionTap, see: See) -> Callable[..., None]:
    project: Callable[..., tuple[Tensor, ...]] | None = getattr(tap.module, "project", None)
    taken = 0 if project is None else len(inspect.signature(project).parameters)

    def hook(_: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any], output: Tensor) -> None:
        if project is not None:
            for name, part in zip(("queries", "keys", "values"), project(*inputs[:taken]), strict=True):
                see(name, part)
        see("attention weights", tap.recompute(*inputs, **named))
        see("attention", output)

    return hook


def _output(name: str, see: See) -> Callable[..., None]:
    def hook(_: nn.Module, _inputs: Any, output: Tensor) -> None:
        see(name, output)

    return hook


def _step(name: str, value: Tensor, layer: int | None = None) -> Step:
    """Without the axis of the batch, which has one image."""
    shape = tuple(value.shape)
    return Step(name, shape[1:] if shape[:1] == (1,) else shape, layer)

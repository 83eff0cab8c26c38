"""A model's attention, layer by layer, with fused attention left on.

A fused product never forms the attention: hooks see the arguments of a layer's call, and its attention is computed once
more from them. It is handed on at once and forgotten, so that one layer's attention is in memory however many are seen.
Layers count from 0 here, as `model.taps.attention` does.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vitlab.core.errors import Error
from vitlab.models.contract import AttentionTap, Layout, Model, Tokens, evaluating

See: TypeAlias = Callable[[int, Tensor], None]  # a layer, and its attention [B, heads, N, N]


class InspectionError(Error):
    """What a model does not have, or what its attention is not."""


@contextlib.contextmanager
def watching(model: Model, see: See, layers: Sequence[int] | None = None) -> Iterator[None]:
    """`see` is called with a layer and its attention whenever the model passes it inside the block.

    `layers` are those to see, None for all. Attention covers all tokens, also where the model computes only some.
    """

    def hook(layer: int, tap: AttentionTap) -> Callable[..., None]:
        def call(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            see(layer, tap.recompute(*args, **kwargs))

        return call

    with contextlib.ExitStack() as hooks:
        for layer in chosen_layers(model, layers):
            tap = model.taps.attention[layer]
            handle = tap.module.register_forward_pre_hook(hook(layer, tap), with_kwargs=True)
            hooks.callback(handle.remove)
        yield


def attention_of(
    model: Model, images: Float[Tensor, "b c h w"], layers: Sequence[int] | None = None
) -> dict[int, Float[Tensor, "b heads n n"]]:
    """The attention of some layers, kept: one layer costs one layer's memory. To see many, use `watching`."""
    kept: dict[int, Tensor] = {}
    with evaluating(model), torch.inference_mode(), watching(model, kept.__setitem__, layers):
        model.encode(model.embed(images))
    return kept


def attention_gradients(
    model: Model,
    images: Float[Tensor, "b c h w"],
    classes: Int[Tensor, " b"] | None = None,
    layers: Sequence[int] | None = None,
) -> Iterator[tuple[int, Float[Tensor, "b heads n n"], Float[Tensor, "b heads n n"]]]:
    """For each layer its attention and the gradient of each image's score for a class with respect to it.

    `classes` are by default the most probable. The model runs fused, once forward and once backward; a layer's
    attention and its gradient come from the arguments of its call and the gradient at its output, one layer at a time.
    """
    wanted = chosen_layers(model, layers)
    taps = [model.taps.attention[layer] for layer in wanted]
    without = [layer for layer, tap in zip(wanted, taps, strict=True) if tap.attend is None]
    if without:
        raise InspectionError(f"Layer {without[0] + 1} does not say how its output follows from its attention.")
    calls: dict[int, tuple[tuple[Any, ...], dict[str, Any], Tensor]] = {}

    def hook(layer: int) -> Callable[..., None]:
        def call(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> None:
            calls[layer] = (args, kwargs, output)

        return call

    with evaluating(model), torch.inference_mode(False), torch.enable_grad():
        with contextlib.ExitStack() as hooks:
            for layer, tap in zip(wanted, taps, strict=True):
                hooks.callback(tap.module.register_forward_hook(hook(layer), with_kwargs=True).remove)
            with torch.no_grad():
                embedded = model.embed(images)
            start = embedded.values.clone().requires_grad_()  # a graph also where weights or images have none
            logits = model.head(model.pool(model.encode(embedded.with_values(start))))
        answers = logits.argmax(dim=-1) if classes is None else classes.to(logits.device)
        score = logits.gather(1, answers[:, None]).sum()
        gradients = torch.autograd.grad(score, [calls[layer][2] for layer in wanted])
    for layer, tap, gradient in zip(wanted, taps, gradients, strict=True):
        assert tap.attend is not None
        args, kwargs, _ = calls.pop(layer)
        with evaluating(model), torch.inference_mode(False), torch.no_grad():
            attention = tap.recompute(*args, **kwargs).detach()
            with torch.enable_grad():
                leaf = attention.requires_grad_()
                (change,) = torch.autograd.grad(tap.attend(leaf, *args, **kwargs), leaf, gradient)
        yield layer, attention.detach(), change


def chosen_layers(model: Model, layers: Sequence[int] | None) -> list[int]:
    """The layers that were asked for, in order, or all; an error for one that the model does not have."""
    depth = len(model.taps.attention)
    if not depth:
        raise InspectionError("The model has no attention to look at.")
    if layers is None:
        return list(range(depth))
    for layer in layers:
        if not 0 <= layer < depth:
            raise InspectionError(f"There is no layer {layer + 1}: the model has {depth} with attention.")
    return sorted(set(layers))


def misfit(layer: int, attention: Tensor, layout: Layout, batch: int) -> str | None:
    """Why attention is not between all tokens of a layout, in a sentence; None where it is."""
    tokens = layout.num_prefix + layout.grid[0] * layout.grid[1]
    if attention.ndim == 4 and attention.shape[0] == batch and attention.shape[2:] == (tokens, tokens):
        return None
    shape = " x ".join(str(side) for side in attention.shape[2:])
    kind = "inside windows" if attention.shape[0] != batch else "between other places"
    return (
        f"Layer {layer + 1} attends {kind} ({shape}) than the {layout.grid[0]} x {layout.grid[1]} grid of patches that"
        " the picture was cut into."
    )


def read_by_pool(model: Model, encoded: Tokens) -> Bool[Tensor, " n"]:
    """Which tokens the answer is read from: the class token, or all patches. Found by differentiating `pool`."""
    with torch.inference_mode(False), torch.enable_grad():
        values = encoded.values[:1].detach().clone().requires_grad_()
        pooled = model.pool(Tokens(values=values, grid=encoded.grid, num_prefix=encoded.num_prefix))
        # a random direction, for a layer norm gives one sum whatever it is given
        direction = torch.randn(pooled.shape, generator=torch.Generator().manual_seed(0)).to(pooled)
        (gradient,) = torch.autograd.grad((pooled * direction).sum(), values)
    return (gradient[0] != 0).any(dim=-1)

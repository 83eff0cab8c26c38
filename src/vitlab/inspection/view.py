"""One picture through a model: the answer, and where the model looked for it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitlab.core.errors import Error
from vitlab.core.pictures import Picture
from vitlab.inspection.capture import InspectionError, attention_gradients, misfit, read_by_pool, watching
from vitlab.inspection.rollout import Rollout
from vitlab.models.contract import Layout, Model, Tokens

Array: TypeAlias = np.ndarray[Any, Any]
TOP = 3  # classes that are told


@dataclass(frozen=True, kw_only=True)
class View:
    """A picture as the model sees it, its answer, and where it looked; maps are [rows, columns] over the patches."""

    name: str
    pixels: Array  # uint8 [H, W, 3]
    classes: tuple[tuple[str, float], ...] = ()  # the most probable, with their probabilities
    rollout: Array | None = None  # shares, together 1
    gradient: Array | None = None  # the same for the most probable class, weighted by gradients
    heads: dict[int, Array] = field(default_factory=dict)  # layer, from 1: [heads, rows, columns]
    patches: Tensor | None = None  # what the last layer holds of them, [rows, columns, d]
    predicted: "Predicted | None" = None  # what the objective that trained it says of the picture


@dataclass(frozen=True)
class Predicted:
    """Pictures of what was predicted, uint8 [H, W, 3] each with a word on it, and a sentence on them all."""

    words: str
    pictures: tuple[tuple[str, Array], ...]


@dataclass(frozen=True, kw_only=True)
class Geometry:
    """How a model cuts its pictures, and which of its tokens the answer is read from."""

    layout: Layout
    patch: tuple[float, float]  # height and width in pixels
    read: Tensor  # bool [N]


def geometry_of(model: Model) -> Geometry:
    """Found by one grey picture through the model."""
    height, width = model.preprocess.size
    embedded = model.embed(to_images(model, [Image.new("RGB", (width, height), (128, 128, 128))]))
    encoded, (rows, columns) = model.encode(embedded), embedded.grid
    patch = (height / rows, width / columns)
    side = getattr(model.config, "patch_size", None)
    if isinstance(side, int) and (math.ceil(height / side), math.ceil(width / side)) == embedded.grid:
        patch = (float(side), float(side))  # the last ones may be filled up, and then no share of the side
    read = torch.ones(embedded.values.shape[1], dtype=torch.bool)
    if model.taps.attention and encoded.values.shape[1] == len(read):
        read = read_by_pool(model, encoded)
    return Geometry(layout=embedded.layout, patch=patch, read=read)


def look(
    model: Model, name: str, picture: Picture, geometry: Geometry, layers: Sequence[int], missing: list[str]
) -> View:
    """The answer, rollout plain and weighted by gradients, and a map for each head of the layers (from 0).

    A map is what the tokens that the answer is read from attend to, their mean where there are several. Sentences on
    what the model does not allow are added to `missing`. The model is in evaluation mode.
    """
    images = to_images(model, [picture])
    rollout, heads, problems = Rollout(), dict[int, Array](), list[str]()

    def see(layer: int, attention: Tensor) -> None:
        problem = misfit(layer, attention, geometry.layout, len(images))
        if problem is not None:
            problems.append(problem)
            return
        if not problems:
            rollout.add(attention)
        if layer in layers:
            heads[layer + 1] = _map(attention[0], geometry).float().cpu().numpy()

    if model.taps.attention:
        with watching(model, see):
            encoded = model.encode(model.embed(images))
    else:
        encoded = model.encode(model.embed(images))
    classes = _classes(model, encoded)
    flow = gradient = None
    if problems:
        missing.append(f"{problems[0]} Rollout, which multiplies all layers, is left out.")
    elif rollout.flow is not None:
        flow = _shares(_map(rollout.flow[0], geometry))
        gradient = _gradient_map(model, images, geometry, missing) if classes else None
    pixels = np.asarray(model.preprocess.picture(picture))
    patches = encoded.patches[0].unflatten(0, encoded.grid).float() if encoded.present is None else None
    return View(
        name=name, pixels=pixels, classes=classes, rollout=flow, gradient=gradient, heads=heads, patches=patches
    )


def to_images(model: Model, pictures: Sequence[Picture]) -> Tensor:
    """A normalised batch where the model is, in its precision."""
    weight = next(model.parameters())
    return model.preprocess(pictures).to(weight.device, weight.dtype)


def _gradient_map(model: Model, images: Tensor, geometry: Geometry, missing: list[str]) -> Array | None:
    rollout = Rollout()
    try:
        for _, attention, gradient in attention_gradients(model, images):
            rollout.add_weighted(attention, gradient)
    except InspectionError as error:
        missing.append(f"{error} Gradient-weighted rollout is left out.")
        return None
    assert rollout.flow is not None
    start = torch.eye(rollout.flow.shape[-1], device=rollout.flow.device)
    values = _map(rollout.flow[0] - start, geometry).clamp(min=0)
    if not values.sum() > 0:
        missing.append("No attention raises the score of the answer, so gradient-weighted rollout is left out.")
        return None
    return _shares(values)


def _map(attention: Tensor, geometry: Geometry) -> Tensor:
    """What the tokens that are read take from the patches: from [..., N, N] to [..., rows, columns]."""
    taken = attention[..., geometry.read.to(attention.device), :].mean(dim=-2)
    return taken[..., geometry.layout.num_prefix :].unflatten(-1, geometry.layout.grid)


def _shares(values: Tensor) -> Array:
    return (values / values.sum()).float().cpu().numpy()


def _classes(model: Model, encoded: Tokens) -> tuple[tuple[str, float], ...]:
    if getattr(model.config, "num_classes", None) == 0 or model.is_dense:  # of a picture's pixels there is no one class
        return ()
    probabilities = model.probabilities(model.head(model.pool(encoded))[0])
    if not probabilities.isfinite().all():
        raise Error("The model's output is not finite: its weights are damaged.")
    values, indices = probabilities.sort(descending=True, stable=True)
    return tuple(
        (model.labels[index] if model.labels else f"class {index}", value)
        for value, index in zip(values[:TOP].tolist(), indices[:TOP].tolist(), strict=True)
    )

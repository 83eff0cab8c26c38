"""torchvision's VisionTransformer state dicts: a .pth file, or .safetensors with our notes."""

import dataclasses
import re
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, final

import torch
from safetensors.torch import save_file
from torch import Tensor

from vitlab.core.config import replace
from vitlab.core.errors import CannotHoldError, CheckpointError, Error
from vitlab.core.files import atomic_file
from vitlab.core.preprocess import IMAGENET_MEAN, IMAGENET_STD, Preprocess
from vitlab.models.contract import Model
from vitlab.models.create import empty_model
from vitlab.models.vit import ViTConfig
from vitlab.weights.format import (
    Contents,
    Format,
    Location,
    check_holds,
    head_count,
    image_size_of,
    layer_indices,
    plain_vit,
)
from vitlab.weights.mapping import Rule, reshaped, same, to_theirs
from vitlab.weights.metadata import Notes, notes_of, read_notes

Shapes = Mapping[str, tuple[int, ...]]

LAYER = "encoder.layers.encoder_layer_{}."
BLOCK: dict[str, tuple[str, ...]] = {  # the second ones until torchvision 0.12
    "norm1": ("ln_1.",),
    "attention.qkv": ("self_attention.in_proj_",),
    "attention.out": ("self_attention.out_proj.",),
    "norm2": ("ln_2.",),
    "mlp.up": ("mlp.0.", "mlp.linear_1."),
    "mlp.down": ("mlp.3.", "mlp.linear_2."),
}
TOP = {
    "projection": "conv_proj.",
    "norm": "encoder.ln.",
    "representation": "heads.pre_logits.",
    "head": "heads.head.",
}


def rules(config: ViTConfig, found: Collection[str] = ()) -> list[Rule]:
    """Every parameter of ours with torchvision's names for it; of several, the one that is found."""

    def name(*options: str) -> str:
        return next((option for option in options if option in found), options[0])

    return [_rule(ours, config, name) for ours in empty_model(config).state_dict()]


def _rule(ours: str, config: ViTConfig, name: Callable[..., str]) -> Rule:
    width, patch = config.width, config.patch_size
    if ours == "prefix":
        return reshaped(ours, "class_token", our_shape=(1, width), their_shape=(1, 1, width))
    if ours == "positions.0.table":
        return reshaped(ours, "encoder.pos_embedding", our_shape=(-1, width), their_shape=(1, -1, width))
    if ours == "projection.weight":
        return reshaped(ours, "conv_proj.weight", our_shape=(width, -1), their_shape=(width, 3, patch, patch))
    owner, _, leaf = ours.rpartition(".")
    block = re.fullmatch(r"blocks\.(\d+)\.(.+)", owner)
    if block:
        return same(ours, name(*(f"{LAYER.format(block[1])}{option}{leaf}" for option in BLOCK[block[2]])))
    return same(ours, f"{TOP[owner]}{leaf}")


@final
class Torchvision(Format):
    name = "torchvision"

    def recognizes(self, location: Location) -> bool:
        start = LAYER.format(0)
        return any(name.startswith(start) for name in location.tensors.shapes)

    def read(self, location: Location, hints: Mapping[str, Any]) -> Contents:
        where, found, notes = location.where, location.tensors.shapes, read_notes(location)
        assumed: list[str] = []
        config = config_of(found, notes, hints, where, assumed)
        preprocess = notes.preprocess
        if preprocess is None:
            preprocess = _default_preprocess(config.image_size)
            assumed.append(f"No preprocessing in the file: torchvision's default was assumed ({preprocess}).")
        return Contents(config, rules(config, found), preprocess, notes.labels, assumed)

    def write(self, model: Model, path: Path) -> None:
        config = plain_vit(model, self.name)
        if path.suffix not in (".pth", ".pt", ".safetensors"):
            raise Error(f"{path}: torchvision's files end in .pth or .pt (or .safetensors).")
        check_holds(self.name, config, _nearest(config))
        state = {name: value.detach().cpu() for name, value in to_theirs(rules(config), model.state_dict()).items()}
        notes = notes_of(model) if path.suffix == ".safetensors" else Notes()
        check_holds(self.name, config, _read_back(state, notes, path))
        with atomic_file(path) as partial:
            if path.suffix == ".safetensors":
                save_file(state, partial, metadata=notes.header())
            else:
                torch.save(state, partial)


def config_of(shapes: Shapes, notes: Notes, hints: Mapping[str, Any], where: str, assumed: list[str]) -> ViTConfig:
    """The configuration behind a file's shapes."""
    if "conv_proj.weight" not in shapes:
        raise CheckpointError(f"{where}: 'conv_proj.weight' is missing; convolutional stems are not plain ViTs.")
    width, channels, patch, other = _dimensions(shapes, "conv_proj.weight", 4, where)
    if patch != other or channels != 3:
        raise CheckpointError(f"{where}: 'conv_proj.weight' must have square patches of three colours.")
    hidden = "mlp.linear_1.weight" if f"{LAYER.format(0)}mlp.linear_1.weight" in shapes else "mlp.0.weight"
    representation = None
    if "heads.pre_logits.weight" in shapes:
        representation = _dimensions(shapes, "heads.pre_logits.weight", 2, where)[0]
    num_places = _dimensions(shapes, "encoder.pos_embedding", 3, where)[1] - 1
    noted = {name: value for name, value in notes.config.items() if name in ("heads", "norm_eps", "resize_rule")}
    config = ViTConfig(
        image_size=image_size_of(num_places, patch, hints, where),
        patch_size=patch,
        width=width,
        depth=layer_indices(shapes, LAYER + "ln_1.weight", where),
        mlp_dim=_dimensions(shapes, LAYER.format(0) + hidden, 2, where)[0],
        heads=1 if "heads" in noted else head_count(width, hints, assumed, where),  # noted: checked and set below
        num_classes=_dimensions(shapes, "heads.head.weight", 2, where)[0] if "heads.head.weight" in shapes else 0,
        representation=representation,
        resize_rule="torchvision",
        gelu="exact",
    )
    return replace(config, noted, where=where)


def _dimensions(shapes: Shapes, name: str, number: int, where: str) -> tuple[int, ...]:
    shape = shapes.get(name)
    if shape is None:
        raise CheckpointError(f"{where}: the tensor '{name}' is missing; the file is incomplete.")
    if len(shape) != number or min(shape) < 1:
        raise CheckpointError(f"{where}: '{name}' has an impossible shape ({list(shape)}).")
    return shape


def _default_preprocess(size: tuple[int, int]) -> Preprocess:
    """That of the weights trained at 224 px, or of the larger SWAG weights (torchvision's `weights.transforms()`)."""
    edge, large = min(size), min(size) > 224
    return Preprocess(
        size=size,
        resize="shortest",
        shortest_edge=edge if large else round(edge * 256 / 224),
        interpolation="bicubic" if large else "bilinear",
        mean=IMAGENET_MEAN,
        std=IMAGENET_STD,
    )


def _nearest(config: ViTConfig) -> ViTConfig:
    """The nearest model that torchvision's VisionTransformer can be."""
    return dataclasses.replace(
        config,
        image_size=(config.grid[0] * config.patch_size,) * 2,
        channels=3,
        class_token=True,
        distill_token=False,
        num_registers=0,
        pool="token",
        positions="learned",
        positions_at="stem",
        positions_for_prefix=1,
        norm="pre",
        norm_stem=False,
        gelu="exact",
        gated_mlp=False,
        patch_bias=True,
        qkv_bias=True,
        qk_norm=False,
        layer_scale=None,
    )


def _read_back(state: Mapping[str, Tensor], notes: Notes, path: Path) -> ViTConfig:
    shapes = {name: tuple(value.shape) for name, value in state.items()}
    try:
        return config_of(shapes, notes, {}, str(path), [])
    except CheckpointError as error:
        raise CannotHoldError(f"Write .safetensors, which can say more; such a file cannot: {error}") from error

"""Models by name, with fresh weights."""

from dataclasses import dataclass
from typing import Any

import torch

from vitlab.core.config import from_dict, replace
from vitlab.core.errors import unknown_name
from vitlab.core.preprocess import Preprocess
from vitlab.models.contract import Model
from vitlab.models.vit import ViT, ViTConfig
from vitlab.models.zoo import find_row


@dataclass(frozen=True)
class Family:
    """A family's configuration and its model."""

    config: type[Any]
    model: type[Model]


FAMILIES: dict[str, Family] = {"vit": Family(ViTConfig, ViT)}


def family_of(name: str) -> Family:
    """The family of that name, or an error."""
    if name not in FAMILIES:
        raise unknown_name("model family", name, FAMILIES, f" The families are {', '.join(FAMILIES)}.")
    return FAMILIES[name]


def family_name(config: Any) -> str:
    """The name of the family that a configuration belongs to."""
    return next(name for name, family in FAMILIES.items() if isinstance(config, family.config))


def empty_model(config: Any, preprocess: Preprocess | None = None) -> Model:
    """A model on the meta device: its shapes, without memory."""
    with torch.device("meta"):
        return FAMILIES[family_name(config)].model(config, preprocess)


def as_size(image_size: int | tuple[int, int]) -> tuple[int, int]:
    """A side, or (height, width), as (height, width)."""
    return (image_size, image_size) if isinstance(image_size, int) else image_size


def create(
    name: str,
    *,
    num_classes: int | None = None,
    image_size: int | tuple[int, int] | None = None,
    **config: Any,
) -> Model:
    """A model of the zoo with fresh weights; keywords change fields of its configuration."""
    row = find_row(name)
    built = from_dict(family_of(row.family).config, row.config, where=f"zoo row {name}")
    changes = dict(config)
    if num_classes is not None:
        changes["num_classes"] = num_classes
    if image_size is not None:
        changes["image_size"] = as_size(image_size)
    model = empty_model(replace(built, changes, where=name)).to_empty(device="cpu")
    model.initialize()
    return model

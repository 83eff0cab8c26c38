"""Models by name, with fresh weights."""

from collections.abc import Mapping
from typing import Any

import torch

from vitlab.core.config import from_dict, replace
from vitlab.core.errors import ConfigError
from vitlab.core.preprocess import Preprocess
from vitlab.core.registry import is_file_reference, permit
from vitlab.models import FAMILIES
from vitlab.models.contract import Model
from vitlab.models.family import Family
from vitlab.models.timm.build import TimmConfig, with_arguments
from vitlab.models.vit import ViTConfig
from vitlab.models.zoo.rows import find_row

_given: dict[type[Any], str] = {}  # configurations of families in files, by the name under which each was given


def family_of(name: str) -> Family:
    """The family of that name, or an error; 'mine.py:NAME' has to be given, not read from a file (`permit`)."""
    family = FAMILIES.find(name)
    if is_file_reference(name):
        taken = [each.name for each in FAMILIES if each.config is family.config]
        if taken:
            raise ConfigError(
                f"{name} has the configuration class of the family '{taken[0]}': give it a subclass of its own."
            )
        _given[family.config] = name
    return family


def family_name(config: Any) -> str:
    """The name of the family that a configuration belongs to, as it is stored with a model."""
    for family in FAMILIES:
        if type(config) is family.config:
            return family.name
    if type(config) not in _given:
        raise ConfigError(
            f"A model of {type(config).__name__} belongs to no family, so that it cannot be built from its"
            " configuration: keep its state_dict(), or describe it by a Family in a file (mine.py:NAME)."
        )
    return _given[type(config)]


def empty_model(config: Any, preprocess: Preprocess | None = None) -> Model:
    """A model on the meta device: its shapes, without memory."""
    with torch.device("meta"):
        return family_of(family_name(config)).model(config, preprocess)


def fresh_model(config: Any, preprocess: Preprocess | None = None) -> Model:
    """A model of that configuration with fresh weights."""
    model = empty_model(config, preprocess).to_empty(device="cpu")
    model.initialize()
    return model


def as_size(image_size: int | tuple[int, int]) -> tuple[int, int]:
    """A side, or (height, width), as (height, width)."""
    return image_size if isinstance(image_size, tuple | list) else (image_size, image_size)


def change(config: Any, changes: Mapping[str, Any], *, where: str) -> Any:
    """A configuration with fields changed; for a model of timm's, other names are arguments of timm's."""
    if isinstance(config, TimmConfig):
        changes = with_arguments(config, changes)
    elif isinstance(config, ViTConfig) and "positions" in changes and config.positions_at == config.usual_place:
        changes = {"positions_at": None, **changes}  # other positions may have another place
    if isinstance(config, ViTConfig) and changes.get("head") == "patches":
        changes = {"patch_dropout": 0.0, **changes}  # which the source was trained with, and this head cannot be
    return replace(config, changes, where=where)


def create(
    name: str,
    *,
    num_classes: int | None = None,
    image_size: int | tuple[int, int] | None = None,
    **config: Any,
) -> Model:
    """A model of the zoo, `timm:<name>` or `mine.py:FAMILY`, with fresh weights; keywords change its configuration."""
    return fresh_model(configured(name, num_classes=num_classes, image_size=image_size, **config))


def configured(
    name: str,
    *,
    num_classes: int | None = None,
    image_size: int | tuple[int, int] | None = None,
    **config: Any,
) -> Any:
    """The configuration of the model that `create` makes."""
    permit(name)
    row = find_row(name)
    built = from_dict(family_of(row.family).config, row.config, where=f"zoo row {name}")
    changes = dict(config)
    if num_classes is not None:
        changes["num_classes"] = num_classes
    if image_size is not None:
        changes["image_size"] = as_size(image_size)
    return change(built, changes, where=name)

"""Models by name, with fresh weights."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from vitlab.core.config import from_dict, replace
from vitlab.core.errors import unknown_name
from vitlab.core.preprocess import Preprocess
from vitlab.models.axial import AxialConfig, AxialViT
from vitlab.models.bit import BiT, BiTConfig
from vitlab.models.coatnet import CoAtNet, CoAtNetConfig
from vitlab.models.contract import Model
from vitlab.models.cvt import CvT, CvTConfig
from vitlab.models.hybrid import Hybrid, HybridConfig
from vitlab.models.local_attention import SASA, SASAConfig
from vitlab.models.non_local import NonLocalConfig, NonLocalNet
from vitlab.models.timm_adapter import TimmModel
from vitlab.models.timm_build import TimmConfig, with_arguments
from vitlab.models.vit import ViT, ViTConfig
from vitlab.models.vmoe import VMoE, VMoEConfig
from vitlab.models.zoo import find_row


@dataclass(frozen=True)
class Family:
    """A family's configuration and its model."""

    config: type[Any]
    model: type[Model]


FAMILIES: dict[str, Family] = {
    "vit": Family(ViTConfig, ViT),
    "hybrid": Family(HybridConfig, Hybrid),
    "bit": Family(BiTConfig, BiT),
    "cvt": Family(CvTConfig, CvT),
    "coatnet": Family(CoAtNetConfig, CoAtNet),
    "vmoe": Family(VMoEConfig, VMoE),
    "axial": Family(AxialConfig, AxialViT),
    "sasa": Family(SASAConfig, SASA),
    "non-local": Family(NonLocalConfig, NonLocalNet),
    "timm": Family(TimmConfig, TimmModel),
}


def family_of(name: str) -> Family:
    """The family of that name, or an error."""
    if name not in FAMILIES:
        raise unknown_name("model family", name, FAMILIES, f" The families are {', '.join(FAMILIES)}.")
    return FAMILIES[name]


def family_name(config: Any) -> str:
    """The name of the family that a configuration belongs to."""
    return next(name for name, family in FAMILIES.items() if type(config) is family.config)


def empty_model(config: Any, preprocess: Preprocess | None = None) -> Model:
    """A model on the meta device: its shapes, without memory."""
    with torch.device("meta"):
        return FAMILIES[family_name(config)].model(config, preprocess)


def fresh_model(config: Any, preprocess: Preprocess | None = None) -> Model:
    """A model of that configuration with fresh weights."""
    model = empty_model(config, preprocess).to_empty(device="cpu")
    model.initialize()
    return model


def as_size(image_size: int | tuple[int, int]) -> tuple[int, int]:
    """A side, or (height, width), as (height, width)."""
    return (image_size, image_size) if isinstance(image_size, int) else image_size


def change(config: Any, changes: Mapping[str, Any], *, where: str) -> Any:
    """A configuration with fields changed; for a model of timm's, other names are arguments of timm's."""
    return replace(config, with_arguments(config, changes) if isinstance(config, TimmConfig) else changes, where=where)


def create(
    name: str,
    *,
    num_classes: int | None = None,
    image_size: int | tuple[int, int] | None = None,
    **config: Any,
) -> Model:
    """A model of the zoo, or `timm:<name>`, with fresh weights; keywords change fields of its configuration."""
    row = find_row(name)
    built = from_dict(family_of(row.family).config, row.config, where=f"zoo row {name}")
    changes = dict(config)
    if num_classes is not None:
        changes["num_classes"] = num_classes
    if image_size is not None:
        changes["image_size"] = as_size(image_size)
    return fresh_model(change(built, changes, where=name))

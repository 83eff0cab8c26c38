"""What a checkpoint format is: how to recognise it, read its configuration, name its tensors and write it."""

import dataclasses
import itertools
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from vitlab.core.errors import CannotHoldError, CheckpointError
from vitlab.core.preprocess import Preprocess
from vitlab.models.contract import Model
from vitlab.models.vit import ViTConfig
from vitlab.weights.files.container import TensorFile
from vitlab.weights.mapping import Rule

# What a file need not say: it changes nothing about what trained weights compute at their own resolution.
NOT_STORED = {
    "positions_std",
    "residual_scale",
    "dropout",
    "attention_dropout",
    "drop_path",
    "patch_dropout",
    "checkpoint_blocks",
    "indivisible",
    "resize_rule",
}


@dataclass(frozen=True)
class Location:
    """A checkpoint on disk: its tensors, and the config.json that lies beside them where there is one."""

    tensors: TensorFile
    settings: Mapping[str, Any] | None
    folder: Path
    name: str = ""  # by which it was asked for, where that says more than its path

    @property
    def where(self) -> str:
        return self.name or str(self.tensors.path)


@dataclass(frozen=True)
class Contents:
    """What a format read about a checkpoint, tensors aside; `assumed` says what the file did not."""

    config: Any
    rules: Sequence[Rule]
    preprocess: Preprocess | None = None
    labels: tuple[str, ...] | None = None
    assumed: list[str] = field(default_factory=list)
    tensors: TensorFile | None = None  # what the rules name, where it is not the file as it is: layers unstacked, say
    multi_label: bool = False
    task: str = "classification"
    license: str | None = None  # the text
    checksum: str | None = None  # of the file of tensors, where the format keeps one


class Format(ABC):
    """A checkpoint format. `hints` are the caller's configuration fields, for what a file cannot tell."""

    name: str
    configs: ClassVar[tuple[type[Any], ...]] = (ViTConfig,)  # of the families that it writes

    @abstractmethod
    def recognizes(self, location: Location) -> bool:
        """Whether the checkpoint is of this format."""

    @abstractmethod
    def read(self, location: Location, hints: Mapping[str, Any]) -> Contents:
        """Configuration, names, preprocessing and labels."""

    @abstractmethod
    def write(self, model: Model, path: Path) -> None:
        """The model at `path`, whole or not at all; CannotHoldError where the format has no place for it."""


class FormatOf(Format):
    """One format for several families, each with names of its own; the first that recognizes a checkpoint reads it."""

    def __init__(self, *members: Format) -> None:
        self.members = members
        self.name = members[0].name

    def recognizes(self, location: Location) -> bool:
        return any(item.recognizes(location) for item in self.members)

    def read(self, location: Location, hints: Mapping[str, Any]) -> Contents:
        return next(item for item in self.members if item.recognizes(location)).read(location, hints)

    def write(self, model: Model, path: Path) -> None:
        for item in self.members:
            if type(model.config) in item.configs:
                return item.write(model, path)
        raise cannot_hold(self.name)


def cannot_hold(name: str) -> CannotHoldError:
    """What to say of a family that a format has no names for."""
    return CannotHoldError(f"The {name} format has no names for models of this family; save it with format='vitlab'.")


def plain_vit(model: Model, name: str) -> ViTConfig:
    """The configuration of a plain ViT, the only family that most public formats hold."""
    if type(model.config) is not ViTConfig:
        raise CannotHoldError(f"The {name} format holds plain ViTs; save this model with format='vitlab'.")
    return model.config


def check_holds(name: str, config: Any, read_back: Any) -> None:
    """Refuse to write what would be read back as another model."""
    assert type(config) is type(read_back)
    for item in dataclasses.fields(config):
        if item.name in NOT_STORED or getattr(config, item.name) == getattr(read_back, item.name):
            continue
        if _effective(config, item.name) != _effective(read_back, item.name):
            raise CannotHoldError(
                f"The {name} format cannot hold {item.name}={getattr(config, item.name)!r}: it would be read back as"
                f" {getattr(read_back, item.name)!r}. Use format 'vitlab', or load the model with"
                f" {item.name}={getattr(read_back, item.name)!r} first if that change is meant."
            )


def _effective(config: Any, name: str) -> Any:
    """A field as far as it changes the model: the initial layer scale, say, only matters as there or not."""
    value = getattr(config, name)
    if name == "layer_scale":
        return value is not None
    if not isinstance(config, ViTConfig):
        return value
    if name == "positions_for_prefix":
        return min(value, config.num_prefix) if config.positions in ("learned", "learned2d") else 0
    if name == "rotary_unit" and not config.rotary:
        return None
    if name == "gelu" and config.gated_mlp and config.pool != "attention":
        return None
    if name == "norm_pooled" and config.pool == "token":
        return None  # a norm of each token: before or after the choice of one is the same
    return value


def layer_indices(names: Mapping[str, Any], pattern: str, where: str) -> int:
    """How many layers per file has, from names like 'blocks.{}.norm1.weight'; gaps are an error."""
    prefix, suffix = (re.escape(part) for part in pattern.split("{}"))
    matches = (re.fullmatch(rf"{prefix}(\d{{1,9}}){suffix}", name) for name in names)
    found = {int(match[1]) for match in matches if match}
    if found != set(range(len(found))):
        missing = next(number for number in itertools.count() if number not in found)
        raise CheckpointError(f"{where}: layer {missing} is missing; the file is damaged.")
    return len(found)


KNOWN_HEADS = {192: 3, 384: 6, 512: 8, 768: 12, 1024: 16, 1152: 16, 1280: 16, 1408: 16, 1536: 24, 1664: 16}

DINOV3_HEADS = {192: 3, 384: 6, 768: 12, 1024: 16, 1280: 20, 1536: 24, 4096: 32}
GIANT_OPT = (1536, 6144)  # SigLIP's width and MLP, with 16 heads; DINOv2's giant has 24, and a gated MLP of 4096


def head_count(
    width: int, hints: Mapping[str, Any], assumed: list[str], where: str, *, mlp_dim: int = 0, dinov3: bool = False
) -> int:
    """The number of heads that a fused projection's shape cannot tell: the caller's, or the known sizes'."""
    if "heads" in hints:
        return int(hints["heads"])
    known = DINOV3_HEADS if dinov3 else {**KNOWN_HEADS, 1536: 16} if (width, mlp_dim) == GIANT_OPT else KNOWN_HEADS
    if width in known:
        return known[width]
    if width % 64 == 0:
        assumed.append(f"{where} does not say how many heads it has: {width // 64} of width 64 were assumed.")
        return width // 64
    raise CheckpointError(f"{where} does not say how many heads it has, and width {width} is unusual: give heads=N.")


def image_size_of(num_places: int, patch: int, hints: Mapping[str, Any], where: str) -> tuple[int, int]:
    """The image size behind a number of positions: square, or the caller's where that fits."""
    side = math.isqrt(num_places)
    if side * side == num_places:
        return side * patch, side * patch
    wanted = hints.get("image_size")
    if wanted is not None and math.ceil(wanted[0] / patch) * math.ceil(wanted[1] / patch) == num_places:
        return wanted
    raise CheckpointError(f"{where} has {num_places} positions, not a square grid: give image_size=(height, width).")

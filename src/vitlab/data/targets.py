"""Targets on their way to a loss: as a split stores them, and as losses take them."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from vitlab.core.errors import DataError
from vitlab.data.contract import Array, Masks, Split, Target, ValueKind, Values

TargetKind: TypeAlias = ValueKind | Literal["mask"]


class Slot(NamedTuple):
    """What a row of shared memory holds."""

    shape: tuple[int, ...]
    dtype: Any


def wanted_targets(split: Split, names: Sequence[str]) -> dict[str, Target]:
    """Targets of a split by name; an error where it lacks one."""
    for name in names:
        if name == "label":
            _ = split.label  # says so where there is none
        elif name not in split.targets:
            has = ", ".join(split.targets) or "none"
            raise DataError(f"These images have no target '{name}', and this needs it; they have {has}.")
    return {name: split.targets[name] for name in names}


def masks_of(targets: Mapping[str, Target]) -> dict[str, Masks]:
    """Those of the targets that are read from files."""
    return {name: target for name, target in targets.items() if isinstance(target, Masks)}


def mask_slot(size: tuple[int, int]) -> Slot:
    """A mask is a byte per pixel, at the size of the picture that it belongs to."""
    return Slot(size, np.uint8)


def stored(target: Values, indices: Array) -> Tensor:
    """Some of a target's values: class numbers int64 [b], all others float32."""
    return torch.from_numpy(target.values[indices].astype(np.int64 if target.kind == "class" else np.float32))


def as_target(values: Tensor, kind: TargetKind, num_classes: int) -> Tensor:
    """Stored values as losses take them.

    Classes become rows of a unit matrix, float32 [b, K]; masks int64 [b, H, W]; all others are float32 as they are.
    """
    match kind:
        case "class":
            return torch.zeros(len(values), num_classes, device=values.device).scatter_(1, values[:, None], 1.0)
        case "mask":
            return values.long()
        case "soft" | "several" | "number":
            return values.float()

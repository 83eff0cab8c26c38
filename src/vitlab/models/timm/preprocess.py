"""timm's description of how pictures are prepared, as our spec."""

import math
from collections.abc import Mapping
from typing import Any

from vitlab.core.config import from_dict
from vitlab.core.errors import CheckpointError
from vitlab.core.preprocess import FILTERS, Preprocess


def preprocess_named(named: Mapping[str, Any], size: tuple[int, int], where: str, assumed: list[str]) -> Preprocess:
    """The spec behind `mean`, `std`, `crop_pct`, `crop_mode` and `interpolation` of a pretrained_cfg of timm's."""
    mode, crop = named.get("crop_mode", "center"), named.get("crop_pct", 0.875)
    if not isinstance(crop, int | float) or not 0 < crop <= 1:
        raise CheckpointError(f"{where}: 'crop_pct' of the config.json beside it must be above 0 and at most 1.")
    interpolation = str(named.get("interpolation", "bicubic"))
    if interpolation not in FILTERS:
        assumed.append(f"vitlab has no interpolation '{interpolation}': bicubic is used.")
        interpolation = "bicubic"
    how: dict[str, Any] = {"resize": "squash"}
    if mode == "center" and size[0] == size[1]:
        how = {"resize": "shortest", "shortest_edge": math.floor(size[0] / crop)}
    elif mode != "squash" or crop != 1:
        assumed.append(f"Images are resized to {size[0]} x {size[1]} at once, not cropped ({mode}, {crop}) from more.")
    values = {"mean": named["mean"], "std": named["std"], "interpolation": interpolation}
    return from_dict(Preprocess, {"size": size, **how, **values}, where=where)

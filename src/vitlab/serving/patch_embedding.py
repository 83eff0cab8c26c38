"""What the patch embedding learned: its filters, and how similar its positions are."""

import math
from typing import Any

import torch

from vitlab.inspection.captions import NEAR, num_smooth
from vitlab.inspection.filters import as_pixels, filter_components
from vitlab.inspection.positions import nearness, position_similarity
from vitlab.models.contract import Model
from vitlab.serving.limits import Limits

DECIMALS = 4


def describe_embedding(model: Model, grid: tuple[int, int], limits: Limits) -> dict[str, Any]:
    """What GET /v1/learned says: plain lists, and null for what the model does not have or what would be too long."""
    places = grid[0] * grid[1]
    with torch.inference_mode():
        filters = None if model.taps.filters is None else model.taps.filters()
        positions = None if model.taps.positions is None else model.taps.positions()
        shown: dict[str, Any] | None = None
        if filters is not None and len(filters) > 1:
            components = filter_components(filters)
            pixels = as_pixels(components.pictures).double().cpu()
            shown = {
                "pictures": pixels.numpy().round(DECIMALS).tolist(),
                "explained": components.explained.double().cpu().numpy().round(DECIMALS).tolist(),
                "smooth": num_smooth(components),
            }
        similar: list[Any] | None = None
        near: float | None = None
        if positions is not None and len(positions) == places and places**2 <= limits.attention_values:
            similarity = position_similarity(positions, grid)
            near = nearness(similarity)
            similarity = similarity.reshape(places, places).clamp(-1, 1)
            similar = similarity.double().cpu().numpy().round(DECIMALS).tolist()
    told = None if near is None else {"correlation": round(near, DECIMALS), "clear": near >= NEAR}
    return {"grid": list(grid), "filters": shown, "positions": similar, "nearness": told}


def patch_size(model: Model, grid: tuple[int, int]) -> tuple[int, int] | None:
    """The height and width of a patch, where the picture is cut without overlap and each patch projected; else None."""
    if model.taps.filters is None:
        return None
    (height, width), (down, across) = model.preprocess.size, model.taps.filters().shape[2:]
    return (down, across) if (math.ceil(height / down), math.ceil(width / across)) == grid else None

"""Images that are unlike all others: by the mean cosine distance of their features to the nearest ones."""

from typing import Final

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int

from vitlab.evaluation.knn import QUERIES, neighbours
from vitlab.evaluation.labeled_features import Array, Examples, Progress

NEIGHBOURS: Final = 10
FENCE: Final = 1.5  # times the distance between the quartiles above the upper one: Tukey's (1977) fence


def nearest(
    features: Float[Array, "n d"], k: int, *, device: torch.device | str = "cpu", progress: Progress | None = None
) -> tuple[Float[Array, "n m"], Int[Array, "n m"]]:
    """Cosine similarities and rows of each row's k nearest others, or of all others where they are fewer."""
    bank = Examples.of(features, np.zeros(len(features), np.int64), "train")
    k = min(k, len(bank) - 1)
    similarities, rows = np.empty((len(bank), k)), np.empty((len(bank), k), np.int64)
    for first, block in bank.blocks(np.float32, device=device):
        for start in range(0, len(block), QUERIES):
            queries = F.normalize(block[start : start + QUERIES], dim=1)
            near, places = neighbours(bank, queries, k + 1)
            own = torch.arange(first + start, first + start + len(queries), device=places.device)[:, None]
            last = places == own
            last[:, -1] |= ~last.any(dim=1)  # among many equal ones it may be too far back: then the last is too many
            part = slice(first + start, first + start + len(queries))
            similarities[part] = near[~last].reshape(-1, k).cpu().numpy()
            rows[part] = places[~last].reshape(-1, k).cpu().numpy()
            if progress is not None:
                progress(part.stop, len(bank))
    return similarities, rows


def outliers(distances: Float[Array, "n"]) -> Int[Array, "m"]:
    """The rows beyond the fence, farthest first; distances have a long tail, so that their logarithms are fenced."""
    values = np.log(np.maximum(distances, 1e-6))
    low, high = np.percentile(values, [25, 75])
    found = np.flatnonzero(values > high + FENCE * (high - low))
    return found[np.argsort(-distances[found], kind="stable")]

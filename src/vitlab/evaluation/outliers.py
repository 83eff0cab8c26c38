"""Images that are unlike all others: by the mean cosine distance of their features to the nearest ones."""

from typing import Final

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int

from vitlab.evaluation.knn import QUERIES, neighbours
from vitlab.evaluation.labeled_features import Array, Examples, Progress

NEIGHBOURS: Final = 10
SHARE: Final = 0.01  # of the images, which are shown


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
    """The farthest hundredth of the rows, one at least, farthest first.

    No threshold tells what does not belong: among photos of many kinds distances have no tail (docs/results/data.md).
    """
    return np.argsort(-distances, kind="stable")[: max(round(SHARE * len(distances)), 1)]

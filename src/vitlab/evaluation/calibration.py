"""Whether a model is right as often as it says: confidences in bins, summed as images come."""

from typing import Any, final

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from vitlab.evaluation.labeled_features import Z95

DRAWS = 1000  # of the images, for the spread of the error


@final
class Calibration:
    """Bins of equal width over the confidence in [0, 1]; bin i holds [i / bins, (i + 1) / bins), the last one 1 too."""

    def __init__(self, bins: int = 15) -> None:
        self.counts = torch.zeros(bins, dtype=torch.int64)
        self.right = torch.zeros(bins, dtype=torch.int64)
        self.confidence = torch.zeros(bins, dtype=torch.float64)
        self.squares = torch.zeros(bins, dtype=torch.float64)  # of what an image adds to right - confidence
        self.edges = torch.linspace(0, 1, bins + 1, dtype=torch.float64)

    def add(self, confidence: Float[Tensor, "b"], right: Bool[Tensor, "b"]) -> None:
        """The probability of each image's predicted class, and whether it is right."""
        values = confidence.double().cpu()
        places = (torch.bucketize(values, self.edges, right=True) - 1).clamp(0, len(self.counts) - 1)
        self.counts += torch.bincount(places, minlength=len(self.counts))
        self.right += torch.bincount(places[right.cpu()], minlength=len(self.counts))
        self.confidence += torch.zeros_like(self.confidence).index_add_(0, places, values)
        self.squares += torch.zeros_like(self.squares).index_add_(0, places, (right.cpu().double() - values).square())

    def tensors(self) -> dict[str, Tensor]:
        return {
            "bin counts": self.counts,
            "bin right": self.right,
            "bin confidence": self.confidence,
            "bin squares": self.squares,
        }

    def error(self) -> float:
        """The expected calibration error: |accuracy - confidence| of the bins, weighted by their images."""
        return float((self.right - self.confidence).abs().sum() / self.counts.sum())

    def spread(self) -> float:
        """Half of the error's 95% interval, by its standard deviation over images drawn again with replacement.

        How many images of each bin a draw has is drawn; their sum, from its normal distribution, for single images are
        not kept.
        """
        counts, rng = self.counts.numpy(), np.random.default_rng(0)
        num, some = counts.sum(), counts.clip(1)
        mean = (self.right - self.confidence).numpy() / some
        variance = (self.squares.numpy() / some - mean**2).clip(0)
        drawn = rng.multinomial(num, counts / num, DRAWS)
        sums = drawn * mean + np.sqrt(drawn * variance) * rng.standard_normal(drawn.shape)
        return Z95 * float(np.abs(sums).sum(axis=1).std(ddof=1) / num)

    def bins(self) -> list[dict[str, Any]]:
        """What a reliability plot draws; a bin without images has neither accuracy nor confidence."""
        return [
            {
                "from": float(self.edges[i]),
                "to": float(self.edges[i + 1]),
                "count": (num := int(self.counts[i])),
                "accuracy": int(self.right[i]) / num if num else None,
                "confidence": float(self.confidence[i]) / num if num else None,
            }
            for i in range(len(self.counts))
        ]

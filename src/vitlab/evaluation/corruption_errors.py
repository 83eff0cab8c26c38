"""Errors under corruptions: of each, at each severity, and their means as Hendrycks and Dietterich define them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from vitlab.data.conditions import COMMON, SEVERITIES, meaning
from vitlab.data.contract import Array
from vitlab.evaluation.contract import Metric
from vitlab.evaluation.labeled_features import Z95

# AlexNet's errors, means over the five severities of ImageNet-C: the authors' table, to which the page of their
# programs links (github.com/hendrycks/robustness, "Calculating the mCE"); rounded, they are in the paper's appendix.
_OF_ALEXNET = (
    *(0.886428, 0.894468, 0.922640),  # noise
    *(0.819880, 0.826268, 0.785948, 0.798360),  # blur
    *(0.866816, 0.826572, 0.819324, 0.564592),  # weather
    *(0.853204, 0.646056, 0.717840, 0.606500),  # digital
)
ALEXNET: dict[str, float] = dict(zip(COMMON, _OF_ALEXNET, strict=True))
ALEXNET_CLEAN = 0.4348  # 43.5% in the paper; so in github.com/google-research/robustness_metrics
OVER_IMAGES = "half of the 95% interval, over images"


@final
@dataclass(frozen=True)
class CorruptionErrors:
    """For each condition, of each image 1 where the answer was wrong, 0 where it was right, NaN where there was none.

    `paired`: the n-th image of every condition is the same one, so that what images have in common can be counted.
    """

    wrong: Mapping[tuple[str, int], Array]
    paired: bool

    @classmethod
    def of(cls, conditions: Array, labels: Array, wrong: Array) -> "CorruptionErrors":
        """From all images of a corrupted set, in any order of conditions."""
        numbers = np.unique(conditions).tolist()
        rows = [np.flatnonzero(conditions == number) for number in numbers]
        paired = all(np.array_equal(labels[each], labels[rows[0]]) for each in rows)
        return cls({meaning(number): wrong[each] for number, each in zip(numbers, rows, strict=True)}, paired)

    @property
    def corruptions(self) -> list[str]:
        return list(dict.fromkeys(corruption for corruption, _ in self.wrong))

    @property
    def averaged(self) -> list[str]:
        """The corruptions that means are over: the fifteen, as far as they are there, or else all."""
        return [name for name in self.corruptions if name in COMMON] or self.corruptions

    @property
    def whole(self) -> bool:
        """Whether every corruption is there at all five severities, as AlexNet's errors are."""
        return len(self.wrong) == len(self.corruptions) * len(SEVERITIES)

    def table(self) -> dict[str, dict[str, float]]:
        """{corruption: {severity: error}}."""
        found: dict[str, dict[str, float]] = {name: {} for name in self.corruptions}
        for (corruption, severity), wrong in self.wrong.items():
            found[corruption][str(severity)] = float(np.nanmean(wrong))
        return found

    def error(self, *corruptions: str) -> Metric:
        """The mean error under some corruptions."""
        weights = {name: 1 / len(corruptions) for name in corruptions}
        return self._combined(weights, None)

    def beyond(self, clean: Array) -> Metric:
        """The mean error less the clean one, in percentage points."""
        weights = {name: 100 / len(self.averaged) for name in self.averaged}
        return self._combined(weights, clean, unit="number")

    def mce(self) -> Metric:
        """The mean corruption error in percent: each corruption's error as a part of AlexNet's, averaged."""
        weights = {name: 100 / (len(self.averaged) * ALEXNET[name]) for name in self.averaged}
        return self._combined(weights, None, unit="number")

    def relative_mce(self, clean: Array) -> Metric:
        """What each corruption adds to the clean error, as a part of what it adds to AlexNet's, averaged; percent."""
        added = {name: ALEXNET[name] - ALEXNET_CLEAN for name in self.averaged}
        weights = {name: 100 / (len(added) * of_alexnet) for name, of_alexnet in added.items()}
        return self._combined(weights, clean, unit="number")

    def _combined(self, weights: Mapping[str, float], clean: Array | None, **more: Any) -> Metric:
        """A weighted sum of corruptions' errors, less as much of the clean one; the spread is over images."""
        chosen = {key: wrong for key, wrong in self.wrong.items() if key[0] in weights}
        severities = {name: sum(corruption == name for corruption, _ in chosen) for name in weights}
        shares = {key: weights[key[0]] / severities[key[0]] for key in chosen}
        value = sum(shares[key] * float(np.nanmean(wrong)) for key, wrong in chosen.items())
        parts: list[Array] = []  # of independent images, whose means the value is a sum of
        if self.paired:
            parts.append(np.sum([shares[key] * _filled(wrong) for key, wrong in chosen.items()], axis=0))
        if clean is not None:
            less = sum(weights.values()) * _filled(clean)
            value -= float(less.mean())
            same = self.paired and len(less) == len(parts[0])
            parts = [parts[0] - less] if same else [*parts, less]
        spread = _spread(parts) if self.paired else None
        count = int(sum(np.isfinite(wrong).sum() for wrong in chosen.values()))
        return Metric(
            value=value, count=count, spread=spread, spread_of=OVER_IMAGES if spread is not None else "", **more
        )


def _filled(wrong: Array) -> Array:
    """With the mean where there is no answer."""
    return np.where(np.isnan(wrong), np.nanmean(wrong), wrong)


def _spread(parts: Sequence[Array]) -> float | None:
    """Of a sum of means of independent images."""
    if any(len(part) < 2 for part in parts):
        return None
    return Z95 * float(np.sqrt(sum(part.var(ddof=1) / len(part) for part in parts)))

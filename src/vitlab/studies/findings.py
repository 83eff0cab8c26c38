"""From scores over seeds to sentences that follow from them.

An interval of a difference is Student's, with the variance over seeds pooled over all rows that are compared: three
seeds of one row say too little of it. Seeds vary initialisation, order and augmentation; the test images are the same
for all, so that nothing here speaks of other images.
"""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

LEVEL = 0.95
HOW = "Points are differences"  # begins the sentence on what the intervals of the others are


@dataclass(frozen=True)
class Sample:
    """Scores of the same thing with several seeds."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        return statistics.fmean(self.values)

    @property
    def deviation(self) -> float | None:
        """The sample standard deviation (n - 1); None for one value."""
        return statistics.stdev(self.values) if len(self.values) > 1 else None

    def percent(self) -> str:
        """'93.1 ± 0.4': the mean and the standard deviation over seeds."""
        spread = "" if self.deviation is None else f" ± {100 * self.deviation:.1f}"
        return f"{100 * self.mean:.1f}{spread}"

    def to_json(self) -> dict[str, Any]:
        return {"mean": self.mean, "standard deviation": self.deviation, "values": list(self.values)}


@dataclass(frozen=True)
class Difference:
    """One mean minus another, and half the width of its interval; None where there is no spread to tell from."""

    value: float
    half_width: float | None

    @property
    def is_seen(self) -> bool:
        return self.half_width is not None and abs(self.value) > self.half_width

    def points(self) -> str:
        """'1.2 ± 0.4 points'; the sign is left to the words around it."""
        spread = "" if self.half_width is None else f" ± {100 * self.half_width:.1f}"
        return f"{100 * abs(self.value):.1f}{spread} points"

    def interval(self) -> str:
        """'-0.4 ± 1.1'."""
        return f"{100 * self.value:+.1f} ± {100 * (self.half_width or 0.0):.1f}"


def difference(one: Sample, other: Sample, *, among: Iterable[Sample] = (), comparisons: int = 1) -> Difference:
    """One mean minus the other, with an interval at 95% over so many comparisons together (Bonferroni).

    The variance is pooled over the two, or over `among`, where they are rows of one table.
    """
    return contrast([(1, one), (-1, other)], among=among, comparisons=comparisons)


def contrast(
    terms: Sequence[tuple[float, Sample]], *, among: Iterable[Sample] = (), comparisons: int = 1
) -> Difference:
    """A sum of means, each times its number; its interval is as for the difference of two."""
    from scipy.stats import t  # slow to import

    value = sum(times * sample.mean for times, sample in terms)
    own = [sample for _, sample in terms]
    pooled = [sample for sample in (*among,) or own if len(sample.values) > 1]
    freedom = sum(len(sample.values) - 1 for sample in pooled)
    if not freedom or any(len(sample.values) < 2 for sample in own):
        return Difference(value, None)
    variance = sum((len(sample.values) - 1) * (sample.deviation or 0.0) ** 2 for sample in pooled) / freedom
    quantile = float(t.ppf(1 - (1 - LEVEL) / 2 / comparisons, freedom))
    return Difference(value, quantile * math.sqrt(variance * sum(x**2 / len(sample.values) for x, sample in terms)))


def against(name: str, samples: Mapping[str, Sample]) -> list[str]:
    """Sentences on which of the others are above or below the one of that name, and which cannot be told from it."""
    if name not in samples or len(samples) < 2:
        return []
    base, others = samples[name], {other: sample for other, sample in samples.items() if other != name}
    found = {
        other: difference(sample, base, among=samples.values(), comparisons=len(others))
        for other, sample in others.items()
    }
    if any(each.half_width is None for each in found.values()):
        gaps = joined([f"{other} {100 * each.value:+.1f} points" for other, each in found.items()])
        return [f"Beside {name} ({base.percent()}%): {gaps}. With one seed nothing of it is sure."]
    sentences: list[str] = []
    for word, sign in (("Above", 1), ("Below", -1)):
        seen = [
            f"{other} by {each.points()}" for other, each in found.items() if each.is_seen and each.value * sign > 0
        ]
        if seen:
            sentences.append(f"{word} {name} ({base.percent()}%): {joined(seen)}.")
    same = [f"{other} ({each.interval()})" for other, each in found.items() if not each.is_seen]
    if same:
        sentences.append(f"No difference seen beside {name} ({base.percent()}%): {joined(same)}.")
    widened = f", widened for {len(found)} comparisons" if len(found) > 1 else ""
    return [*sentences, *uneven(samples), f"{HOW} with their 95% intervals over {seeds_words(samples)}{widened}."]


def uneven(samples: Mapping[str, Sample]) -> list[str]:
    """A warning where the largest variance over seeds is too large to be pooled with the others (Cochran's C, 5%)."""
    from scipy.stats import f

    number, rows = {len(sample.values) for sample in samples.values()}, len(samples)
    deviations = {row: sample.deviation or 0.0 for row, sample in samples.items()}
    if rows < 2 or len(number) != 1 or number == {1} or not any(deviations.values()):
        return []
    freedom = number.pop() - 1
    largest = max(deviations, key=lambda row: deviations[row])
    share = deviations[largest] ** 2 / sum(deviation**2 for deviation in deviations.values())
    bound = float(f.ppf(1 - (1 - LEVEL) / rows, freedom, (rows - 1) * freedom))
    if share <= 1 / (1 + (rows - 1) / bound):
        return []
    return [
        f"{largest} varies over seeds by more than the others do (± {100 * deviations[largest]:.1f} points; Cochran's"
        " test, 5%): its own intervals are too narrow, and the others' too wide."
    ]


def pair(one: str, other: str, samples: Mapping[str, Sample], *, where: str = "") -> str:
    """Which of two is above the other, or that no difference was seen."""
    found = difference(samples[one], samples[other])
    beside = f"{one} {samples[one].percent()}%, {other} {samples[other].percent()}%"
    if found.half_width is None:
        return f"{where}{beside}: one seed only, so that nothing is sure."
    if not found.is_seen:
        return f"{where}{beside}: no difference seen ({found.interval()} points)."
    above, below = (one, other) if found.value > 0 else (other, one)
    return f"{where}{beside}: {above} is above {below} by {found.points()}."


def seeds_words(samples: Mapping[str, Sample]) -> str:
    numbers = sorted({len(sample.values) for sample in samples.values()})
    if len(numbers) == 1:
        return f"{numbers[0]} seed{'s' * (numbers[0] != 1)} each"
    return f"{numbers[0]} to {numbers[-1]} seeds each"


def joined(parts: Sequence[str]) -> str:
    """'a; b; c', whose parts may have commas."""
    return "; ".join(parts)


def rank_correlation(one: Sequence[float], other: Sequence[float]) -> float:
    """Spearman's: whether two lists have the same order, from -1 to 1."""
    from scipy.stats import spearmanr

    return float(spearmanr(one, other).statistic)  # pyright: ignore[reportAttributeAccessIssue]

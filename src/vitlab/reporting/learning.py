"""What the curves of a run say of how it learned: rules on scores, their gap, the loss and the number of pictures."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import Literal, NamedTuple, TypeAlias

from vitlab.core.words import number, percent
from vitlab.evaluation.labeled_features import Z95

Points: TypeAlias = Sequence[tuple[int, float]]  # (step, value)
Cure: TypeAlias = Literal["longer", "steadier"]

WORSE = 0.02  # what a score may fall after its best without a word
GAIN = 0.01  # what a score gains at the end, from which training for longer is advised
GAP = 0.1  # between training and validation pictures, from which the former were learned by heart
RISE = 1.05  # times its lowest value, from which a loss has risen
LATE = 0.8  # of the run: what comes after is its end
BESIDE = 3  # logged values on either side of a step, by which a jump there is told
MISTAKES = 4  # on validation pictures, from which a loss that rises is no single picture's doing
COARSE = 64  # pixels of a side up to which a model sees little of a photo


class Finding(NamedTuple):
    """A sentence or two, and what the run's command would have to change."""

    text: str
    cure: Cure | None = None


@dataclass(frozen=True, kw_only=True)
class Course:
    """The curves of a finished run; scores are shares of pictures."""

    steps: int
    scores: Points  # on validation pictures
    num: int = 0  # validation pictures; 0 where it is not known
    losses: Points = ()  # on validation pictures
    train: Points = ()  # scores on training pictures, while these are not mixed with each other
    mixed: int | None = None  # the step from which on pictures are not mixed any more
    pretrained: bool = False

    @property
    def best(self) -> tuple[int, float]:
        return max(self.scores, key=lambda point: point[1])

    @property
    def last(self) -> float:
        return self.scores[-1][1]

    @property
    def train_end(self) -> float | None:
        """The score on training pictures at the end."""
        return end(self.train) if self.train else None

    @property
    def gap(self) -> float | None:
        """How much better it is on training pictures at the end."""
        return None if self.train_end is None else self.train_end - self.last

    @property
    def noise(self) -> float:
        """What a score moves by chance: half of the 95% interval of as many pictures."""
        share = min(max(self.best[1], 0.0), 1.0)
        return Z95 * math.sqrt(max(share * (1 - share), 1 / self.num) / self.num) if self.num else 0.0

    @property
    def by_heart(self) -> bool:
        """Whether it is better on training pictures by more than chance."""
        return self.gap is not None and self.gap > max(GAP, self.noise)


def end(points: Points) -> float:
    """The mean of the last tenth of what was logged: single batches scatter."""
    return fmean(value for _, value in points[-max(len(points) // 10, 1) :])


def jump(points: Points, place: int) -> tuple[float, float] | None:
    """The values before and after a step, where they differ by far more than their neighbours do; else None.

    What was logged first after it is a mean over both sides, unless it was logged at that very step.
    """
    before = [value for step, value in points if step <= place][-BESIDE:]
    after = [value for step, value in points if step > place]
    after = (after if any(step == place for step, _ in points) else after[1:])[:BESIDE]
    if min(len(before), len(after)) < BESIDE:
        return None
    usual = max(abs(b - a) for side in (before, after) for a, b in pairwise(side))
    return (before[-1], after[0]) if abs(after[0] - before[-1]) > max(3 * usual, WORSE * abs(before[-1])) else None


def findings(course: Course) -> list[Finding]:
    """What may be chance, and the first that applies of the rules that exclude each other."""
    rules: Sequence[Callable[[Course], Finding | None]] = (fell, learned_by_heart, loss_rose, still_rising)
    found = next((finding for rule in rules if (finding := rule(course)) is not None), None)
    return [finding for finding in (chance(course), found) if finding is not None]


def _drop(course: Course) -> float:
    """How much the score fell after a best that came well before the end; 0 where that is little."""
    step, best = course.best
    drop = best - course.last
    return drop if drop > WORSE and step < LATE * course.steps else 0.0


def chance(course: Course) -> Finding | None:
    """The score fell, but by no more than it does by chance."""
    drop = _drop(course)
    if not 0 < drop <= course.noise:
        return None
    return Finding(
        f"Its score was best at step {course.best[0]:,} and ended {100 * drop:.0f} percentage points lower, which is"
        f" {round(drop * course.num):,} of {course.num:,} validation pictures: with so few that may be chance."
    )


def fell(course: Course) -> Finding | None:
    """The score fell after its best: training pictures were learned by heart, or the run was unsteady."""
    step, best = course.best
    if _drop(course) <= course.noise:
        return None
    began = f"It was best at step {step:,} ({percent(best)} of validation pictures) and got worse afterwards"
    kept = "The state that was kept is the best one"
    if course.train_end is None:
        return Finding(f"{began}. {kept}.")
    if course.by_heart:
        return Finding(
            f"{began}: it began to learn the training pictures by heart ({percent(course.train_end)} of them right)."
            f" {kept}; more pictures, or pictures varied more (augmentation), would help."
        )
    return Finding(
        f"{began}, though it is hardly better on training pictures ({percent(course.train_end)}): it did not learn"
        f" them by heart, it learned unsteadily. {kept}; a lower learning rate is steadier.",
        "steadier",
    )


def learned_by_heart(course: Course) -> Finding | None:
    """Training pictures are answered much better than validation pictures."""
    if not course.by_heart:
        return None
    assert course.train_end is not None
    cures = "More pictures, pictures varied more (augmentation) or a start from trained weights"
    if course.pretrained:
        cures = "More pictures or pictures varied more (augmentation)"
    return Finding(
        f"It is right on {percent(course.train_end)} of training pictures and on {percent(course.last)} of validation"
        f" pictures: much of what it knows, it knows by heart. {cures} would help; training for longer would not."
    )


def loss_rose(course: Course) -> Finding | None:
    """The validation loss was lowest well before the end, though the score did not fall."""
    if len(course.losses) < 3:
        return None
    step, lowest = min(course.losses, key=lambda point: point[1])
    last = course.losses[-1][1]
    if step >= LATE * course.steps or last <= RISE * lowest:
        return None
    if course.num and round((1 - course.last) * course.num) < MISTAKES:
        return None
    return Finding(
        f"Its loss on validation pictures was lowest at step {step:,} ({number(lowest)}) and rose to {number(last)}"
        " since, while its score did not fall: it grew surer of its mistakes, the first sign of learning by heart. Do"
        " not take its percentages at their word; pictures varied more (augmentation) would help, training for longer"
        " would not."
    )


def still_rising(course: Course) -> Finding | None:
    """The score rose in the last part of the run; where mixing ended late, in the last part after that."""
    start = course.mixed or 0
    middle = LATE * course.steps if start < LATE * course.steps else (start + course.steps) / 2
    before = [value for step, value in course.scores if start <= step <= middle]
    after = [value for step, value in course.scores if step > middle]
    if not before or not after or max(after) - max(before) <= max(GAIN, course.noise):
        return None
    return Finding("It was still getting better towards the end: training for longer may pay.", "longer")


def coarse(seen: tuple[int, int], picture: tuple[int, int]) -> str | None:
    """That a model sees few of the pixels that pictures have; both are (height, width)."""
    if max(seen) > COARSE or min(picture) < 2 * max(seen):
        return None
    return (
        f"The model sees {seen[1]} x {seen[0]} pixels of each picture, and these pictures have many more: smaller"
        " things it cannot tell apart. A larger resolution shows it more."
    )

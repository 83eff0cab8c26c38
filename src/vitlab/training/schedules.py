"""Learning-rate schedules: pure functions from a step to a factor of the base rate."""

import math
from dataclasses import dataclass
from typing import Literal

from vitlab.core.config import check_fields
from vitlab.core.errors import ConfigError
from vitlab.training.durations import Pace, parse, steps


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Linear warm-up from zero, then a decay to `end` times the base lr.

    linear, cosine: to the end of the run. quarter-cosine: cos(a t) with t from 0 to 1 and cos(a) = end, which is
    FixMatch's cos(7 pi t / 16) with end 0.19509. rsqrt: sqrt(timescale / step), with a linear cool-down at the end.
    staircase: constant between `drops`, and times `drop` at each. A duration is like '2000 steps', '100 epochs',
    '1M images' or '5%' of the run; a bare number is steps.
    """

    kind: Literal["linear", "cosine", "quarter-cosine", "rsqrt", "constant", "staircase"] = "cosine"
    """How the lr falls after warm-up."""
    total: str = "100 epochs"  # the whole run: '100 epochs', '20k steps', '50M images'
    warmup: str = "5%"  # how long the lr rises from zero: '5%' of the run, '500 steps', '5 epochs'
    cooldown: str = "0 steps"  # rsqrt and constant: the linear fall at the end of the run, '10%' or '10k steps'
    timescale: str = "10k steps"  # rsqrt: the lr has halved three timescales after warm-up; '10k steps', '5 epochs'
    drops: tuple[str, ...] = ("30%", "60%", "90%")  # staircase: when the lr falls, such as '30%' or '30 epochs'
    drop: float = 0.1  # staircase: the factor of the lr at each drop
    end: float = 0.0  # the factor of the base lr at the end of a decay; staircase: the lowest factor

    def __post_init__(self) -> None:
        check_fields(self, "schedule.")
        if parse(self.total)[0] == 0:
            raise ConfigError(f"A run of '{self.total}' has no steps: make it longer.")
        for duration in (self.warmup, self.cooldown, self.timescale, *self.drops):
            parse(duration)
        if self.kind == "rsqrt" and parse(self.timescale)[0] == 0:
            raise ConfigError(f"schedule.timescale must be longer than '{self.timescale}': the rate would be 0.")
        if not 0 <= self.end <= 1:
            raise ConfigError(f"schedule.end is a factor of the base rate between 0 and 1, not {self.end}.")
        if not 0 < self.drop <= 1:
            raise ConfigError(f"schedule.drop is a factor above 0 and at most 1, not {self.drop}.")


@dataclass(frozen=True)
class ResolvedSchedule:
    """A schedule in steps."""

    kind: str
    total: int
    warmup: int
    cooldown: int
    timescale: int
    end: float
    drops: tuple[int, ...] = ()
    drop: float = 1.0

    def factor(self, step: int) -> float:
        """The factor for the update that takes the run from `step` to `step + 1`."""
        if step < self.warmup:
            return (step + 1) / self.warmup
        done = min((step - self.warmup) / max(self.total - self.warmup, 1), 1.0)
        if self.kind == "linear":
            return self.end + (1 - self.end) * (1 - done)
        if self.kind == "cosine":
            return self.end + (1 - self.end) * 0.5 * (1 + math.cos(math.pi * done))
        if self.kind == "quarter-cosine":
            return math.cos(math.acos(self.end) * done)
        if self.kind == "staircase":
            return max(self.drop ** sum(step >= at for at in self.drops), self.end)
        base = 1.0
        if self.kind == "rsqrt":
            base = math.sqrt(self.timescale / max(step - self.warmup + self.timescale, 1))
        left = (self.total - step) / self.cooldown if self.cooldown else 1.0
        end = min(self.end, base)  # a cool-down never rises
        return end + (base - end) * min(left, 1.0)


def resolve(schedule: Schedule, pace: Pace) -> ResolvedSchedule:
    """The schedule in steps, or an error where its parts do not fit the whole."""
    total = steps(schedule.total, pace)
    warmup = steps(schedule.warmup, pace, total=total)
    cooldown = steps(schedule.cooldown, pace, total=total)
    if total < 1:
        raise ConfigError(f"A run of '{schedule.total}' has no steps with batches of {pace.batch_size}.")
    if warmup + cooldown > total:
        raise ConfigError(
            f"Warm-up ({warmup} steps) and cool-down ({cooldown}) exceed the run ({total} steps): shorten them."
        )
    return ResolvedSchedule(
        schedule.kind,
        total,
        warmup,
        cooldown,
        max(steps(schedule.timescale, pace, total=total), 1),
        schedule.end,
        tuple(max(steps(at, pace, total=total), 1) for at in schedule.drops),
        schedule.drop,
    )

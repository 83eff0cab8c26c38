"""The one loop: step, advance, hooks, stop."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from vitlab.training.schedules import ResolvedSchedule
from vitlab.training.state import State
from vitlab.training.step import Stepper


@dataclass(frozen=True)
class Ending:
    """Why the loop ended: it was done, stopped early, or a signal came."""

    reason: str  # 'done', 'early', 'signal'
    status: int = 0


@dataclass
class Moment:
    """A step that was made, as hooks see it one after the other; the one that ends the run says why."""

    step: int
    last: bool
    factor: float = 0.0  # of the schedule, in this step
    best: bool = False  # whether it was evaluated, and is the best so far
    ending: Ending | None = None

    def due(self, interval: int) -> bool:
        """Whether something that is done every so many steps, and at the end, is to be done now."""
        return self.last or (interval > 0 and self.step % interval == 0)


class Hook:
    """Something that happens every so often; hooks are called in their order."""

    def begin(self, moment: Moment) -> None:
        """Before the first step, or when a run is resumed: what is still owed of the last one."""

    def after_step(self, moment: Moment) -> None:
        """After each step."""


def run(
    state: State, stepper: Stepper, schedule: ResolvedSchedule, hooks: Sequence[Hook], images_per_step: int
) -> Ending:
    """Train from where the state stands to the end of the schedule."""
    progress, started = state.progress, time.monotonic()
    spent = progress.seconds
    moment = Moment(progress.step, progress.step == schedule.total)
    for hook in hooks:
        hook.begin(moment)
    while moment.ending is None and progress.step < schedule.total:
        factor = schedule.factor(progress.step)
        stepper(progress.step, factor)
        progress.step, progress.images_seen = progress.step + 1, progress.images_seen + images_per_step
        progress.seconds = spent + time.monotonic() - started
        moment = Moment(progress.step, progress.step == schedule.total, factor)
        for hook in hooks:
            hook.after_step(moment)
    return moment.ending or Ending("done")

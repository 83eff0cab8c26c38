"""What happens every so often in a run: logging, stopping, evaluating, checkpoints. In this order after each step."""

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import final

import torch

from vitlab.core.errors import Error
from vitlab.training import checkpoints
from vitlab.training.distribution import World, any_of, mean_over
from vitlab.training.log import ProgressView, Sink
from vitlab.training.loop import Ending, Hook, Moment
from vitlab.training.state import State
from vitlab.training.step import Stepper


class DivergedError(Error):
    """Loss or gradients were not finite for too many steps in a row."""


@final
class Clock:
    """The time that steps take, without what is done between them."""

    def __init__(self, world: World) -> None:
        self.world, self._out = world, 0.0

    def now(self) -> float:
        """Seconds spent on steps, as far as the host knows."""
        return time.monotonic() - self._out

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """Time that does not count, from when the device has done what it was asked to."""
        if self.world.device.type == "cuda":
            torch.cuda.synchronize(self.world.device)
        begun = time.monotonic()
        try:
            yield
        finally:
            self._out += time.monotonic() - begun


@final
class Log(Hook):
    """The means since the last time, to the sinks and the terminal; `check` raises what has to end the run."""

    def __init__(
        self,
        state: State,
        stepper: Stepper,
        interval: int,
        *,
        lr: float,
        images_per_step: int,
        sinks: list[Sink],
        view: ProgressView,
        clock: Clock,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self.state, self.stepper, self.interval, self.lr, self.images = state, stepper, interval, lr, images_per_step
        self.sinks, self.view, self.clock, self.check = sinks, view, clock, check

    def begin(self, moment: Moment) -> None:
        self._begun = self._logged = moment.step
        self._since, self._warming = self.clock.now(), 0.0

    def after_step(self, moment: Moment) -> None:
        if moment.step == self._begun + 1:
            self._warming = self.clock.now() - self._since  # the first step compiles: no measure of the others
        if not moment.due(self.interval):
            self.view.update(moment.step, self._so_far(moment.step))
            return
        self.check()
        values = self._means()  # waits for the device
        now = self.clock.now()
        elapsed, num = now - self._since, moment.step - self._logged
        values["lr"] = self.lr * moment.factor
        values["skipped"] = float(self.state.progress.skipped)
        for sink in self.sinks:
            sink.write(moment.step, values | self._pace(elapsed, num))
        self.view.update(moment.step, values | self._pace(*self._warm(elapsed, num)))
        self._since, self._logged = now, moment.step

    def _so_far(self, step: int) -> dict[str, float]:
        """The pace since the last time, where the host knows it; that of the first step is none."""
        num = step - self._logged
        if not self.stepper.waits or step == self._begun + 1:
            return {}
        return self._pace(*self._warm(self.clock.now() - self._since, num))

    def _warm(self, elapsed: float, num: int) -> tuple[float, int]:
        """Seconds and steps without the first one, where there are others."""
        return (elapsed - self._warming, num - 1) if self._logged == self._begun and num > 1 else (elapsed, num)

    def _pace(self, seconds: float, steps: int) -> dict[str, float]:
        seconds = max(seconds, 1e-9)
        return {"seconds per step": seconds / steps, "images per second": steps * self.images / seconds}

    def _means(self) -> dict[str, float]:
        means, world = self.stepper.read(), self.stepper.world
        if world.size == 1 or not means:
            return means
        together = mean_over(world, torch.tensor(list(means.values()), dtype=torch.float64, device=world.device))
        return dict(zip(means, together.tolist(), strict=True))


@final
class Divergence(Hook):
    """An error after too many skipped steps in a row, with the batch that was the last of them."""

    def __init__(self, state: State, stepper: Stepper, folder: Path, limit: int) -> None:
        self.state, self.stepper, self.folder, self.limit = state, stepper, folder, limit

    def after_step(self, moment: Moment) -> None:
        skipped = self.state.progress.skipped_in_a_row
        if skipped < self.limit:
            return
        path = self.folder / f"bad_batch_rank{self.stepper.world.rank}.pt"
        batch = self.stepper.last_batch
        assert batch is not None
        targets = {name: value.cpu() for name, value in batch.targets.items()}
        torch.save({"step": moment.step, "images": batch.images.cpu(), **targets}, path)
        kept = [path for _, path in checkpoints.complete(self.folder / "checkpoints")]
        good = [path for path in kept if not checkpoints.progress_of(path).skipped_in_a_row]
        last = f"the last good checkpoint is {good[-1]}" if good else "there is no checkpoint from before them"
        raise DivergedError(
            f"Loss or gradients were not finite in {skipped} steps in a row, up to step {moment.step}: lower the rate"
            f" or clip; {last}, and the last batch is in {path}."
        )


@final
class Signals(Hook):
    """The end after a signal, which may have come to one process only."""

    def __init__(self, signalled: Callable[[], int]) -> None:
        self.signalled = signalled

    def begin(self, moment: Moment) -> None:
        self.after_step(moment)

    def after_step(self, moment: Moment) -> None:
        if moment.ending is None and (number := self.signalled()):
            moment.ending = Ending("signal", 128 + number)  # 130 for SIGINT, 143 for SIGTERM


@final
class Evaluate(Hook):
    """The score of the held-out part; the best so far saves the model. `evaluate` gives None where a signal came.

    With `first` it is also logged what the scores are before the first step; they are never the best ones.
    """

    def __init__(
        self,
        state: State,
        interval: int,
        *,
        evaluate: Callable[[], Mapping[str, float] | None],
        save_best: Callable[[], None],
        words: Callable[[Mapping[str, float]], str],
        sinks: list[Sink],
        view: ProgressView,
        clock: Clock,
        signals: Signals,
        first: bool = False,
    ) -> None:
        self.state, self.interval, self.evaluate, self.save_best = state, interval, evaluate, save_best
        self.words, self.sinks, self.view, self.clock, self.signals = words, sinks, view, clock, signals
        self.first = first

    def begin(self, moment: Moment) -> None:
        if self.first and moment.step == 0 and moment.ending is None:
            with self.clock.stopped():
                scores = self.evaluate()
            if scores is not None:
                self._log(0, scores)
                self._say(0, scores)
            self.signals.after_step(moment)
        self.after_step(moment)  # a signal may have come before it

    def after_step(self, moment: Moment) -> None:
        owed = moment.due(self.interval) and self.state.progress.evaluated < moment.step
        if moment.ending is None and owed:
            with self.clock.stopped():
                moment.best = self._score(moment.step)
            self.signals.after_step(moment)

    def _score(self, step: int) -> bool:
        """Evaluate, and say whether it is the best so far; where a signal came, it is still owed."""
        scores, progress = self.evaluate(), self.state.progress
        if scores is None:
            return False
        self._log(step, scores)
        better = progress.is_better(scores["score"], scores["loss"])
        progress.stale, progress.evaluated = 0 if better else progress.stale + 1, step
        progress.last_score = scores["score"]
        if better:
            progress.best_score, progress.best_loss, progress.best_step = scores["score"], scores["loss"], step
            self.save_best()
        self._say(step, scores, "  (best so far)" if better else "")
        return better

    def _log(self, step: int, scores: Mapping[str, float]) -> None:
        for sink in self.sinks:
            sink.write(step, {f"val {name}": value for name, value in scores.items()})

    def _say(self, step: int, scores: Mapping[str, float], more: str = "") -> None:
        words = self.words(scores)
        said = f"validation {words}, loss" if words else "validation loss"
        if not math.isfinite(scores["loss"]):
            more = ": numbers overflow; a lower --optimizer.lr or --precision float32 may help"
        self.view.say(f"step {step}: {said} {scores['loss']:.3f}{more}")


@final
class EarlyStop(Hook):
    """The end after so many evaluations without a better score."""

    def __init__(self, state: State, patience: int | None) -> None:
        self.state, self.patience = state, patience

    def begin(self, moment: Moment) -> None:
        self.after_step(moment)

    def after_step(self, moment: Moment) -> None:
        if moment.ending is None and self.patience is not None and self.state.progress.stale >= self.patience:
            moment.ending = Ending("early")


@final
class Checkpoints(Hook):
    """A checkpoint every so often, at the best score, and before the run ends for whatever reason.

    `check` raises what forbids to write one.
    """

    def __init__(
        self,
        state: State,
        stepper: Stepper,
        folder: Path,
        interval: int,
        clock: Clock,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self.state, self.stepper, self.folder, self.interval, self.clock = state, stepper, folder, interval, clock
        self.check = check

    def after_step(self, moment: Moment) -> None:
        progress = self.state.progress
        due = moment.ending is not None or moment.best or moment.due(self.interval)
        due = due and progress.skipped < progress.step  # else there is nothing yet that a step has made
        # while steps are skipped the last checkpoint is better than the weights that make them fail
        if due and progress.skipped_in_a_row and not moment.last:
            due = not any_of(self.stepper.world, bool(checkpoints.complete(self.folder)))
        if due:
            self.check()
            self.stepper.keep()
            with self.clock.stopped():
                checkpoints.write(self.folder, self.state)

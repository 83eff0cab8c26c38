"""The one loop: batches, steps, and what happens every so often."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from vitlab.core.errors import Error
from vitlab.training import checkpoints
from vitlab.training.distribution import World, any_of, mean_over
from vitlab.training.log import ProgressView, Sink
from vitlab.training.schedules import ResolvedSchedule
from vitlab.training.state import State
from vitlab.training.step import Stepper


class DivergedError(Error):
    """Loss or gradients were not finite for too many steps in a row."""


@dataclass(frozen=True)
class Intervals:
    """Every how many steps; 0: never but at the end."""

    log: int
    evaluate: int
    checkpoint: int


@dataclass(frozen=True)
class Ending:
    """Why the loop ended: it was done, stopped early, or a signal came."""

    reason: str  # 'done', 'early', 'signal'
    status: int = 0


Evaluate = Callable[[], Mapping[str, float] | None]  # None: a signal came
SaveBest = Callable[[], None]


def run(
    state: State,
    stepper: Stepper,
    schedule: ResolvedSchedule,
    rate: float,
    intervals: Intervals,
    *,
    folder: Path,
    world: World,
    signalled: Callable[[], int],
    sinks: list[Sink],
    view: ProgressView,
    check: Callable[[], None],
    evaluate: Evaluate | None,
    save_best: SaveBest,
    patience: int | None,
    max_skipped: int,
    images_a_step: int,
) -> Ending:
    """Train from where the state stands to the end of the schedule; `check` raises what has to end it before."""
    progress, kept = state.progress, folder / "checkpoints"

    def score() -> bool:
        """Evaluate, and say whether it is the best so far; where a signal came, it is still owed."""
        assert evaluate is not None
        scores = evaluate()
        if scores is None:
            return False
        for sink in sinks:
            sink.write(progress.step, {f"val {name}": value for name, value in scores.items()})
        better = progress.is_better(scores["score"], scores["loss"])
        progress.stale, progress.evaluated = 0 if better else progress.stale + 1, progress.step
        progress.last_score = scores["score"]
        if better:
            progress.best_score, progress.best_loss = scores["score"], scores["loss"]
            progress.best_step = progress.step
            save_best()
        view.say(f"step {progress.step}: {_scores(scores)}{'  (best so far)' if better else ''}")
        return better

    def owed() -> bool:
        last = progress.step == schedule.total
        due = _due(progress.step, intervals.evaluate, last)
        return evaluate is not None and due and progress.evaluated < progress.step

    def worse_for_long() -> bool:
        return patience is not None and progress.stale >= patience

    if owed():  # a signal came before it
        score()
    if number := signalled():
        return _signal(number)
    if worse_for_long():
        return Ending("early")
    started = since = time.monotonic()
    begun = logged = progress.step
    spent, warming = progress.seconds, 0.0
    while progress.step < schedule.total:
        step = progress.step
        stepper(step, rate * schedule.factor(step))
        if step == begun:
            warming = time.monotonic() - started  # the first step compiles: no measure of the others
        progress.step, progress.images_seen = step + 1, progress.images_seen + images_a_step
        progress.seconds = spent + time.monotonic() - started
        last = progress.step == schedule.total

        if _due(progress.step, intervals.log, last):
            check()
            values = _means(stepper, world)  # waits for the device
            now = time.monotonic()
            elapsed, num = now - since, progress.step - logged
            values["rate"] = rate * schedule.factor(step)
            values["skipped"] = float(progress.skipped)
            for sink in sinks:
                sink.write(progress.step, values | _pace(elapsed, num, images_a_step))
            if logged == begun and num > 1:
                elapsed, num = elapsed - warming, num - 1
            view.update(progress.step, values | _pace(elapsed, num, images_a_step))
            since, logged = now, progress.step
        if progress.skipped_in_a_row >= max_skipped:
            raise _diverged(folder, stepper, progress.step, progress.skipped_in_a_row)
        number, best = signalled(), False
        if not number and owed():
            paused = _now(world)
            best = score()
            since += time.monotonic() - paused
            number = signalled()
        early = worse_for_long()
        due = number > 0 or early or best or _due(progress.step, intervals.checkpoint, last)
        due = due and progress.skipped < progress.step  # else there is nothing yet that a step has made
        # while steps are skipped the last checkpoint is better than the weights that make them fail
        if due and progress.skipped_in_a_row and not last:
            due = not any_of(world, bool(checkpoints.complete(kept)))
        if due:
            stepper.keep()
            paused = _now(world)
            checkpoints.write(kept, state)
            since += time.monotonic() - paused
        if number:
            return _signal(number)
        if early:
            return Ending("early")
    return Ending("done")


def _signal(number: int) -> Ending:
    return Ending("signal", 128 + number)  # 130 for SIGINT, 143 for SIGTERM


def _now(world: World) -> float:
    """The time when the device has done what it was asked to."""
    if world.device.type == "cuda":
        torch.cuda.synchronize(world.device)
    return time.monotonic()


def _due(step: int, interval: int, last: bool) -> bool:
    return last or (interval > 0 and step % interval == 0)


def _pace(seconds: float, steps: int, images_a_step: int) -> dict[str, float]:
    seconds = max(seconds, 1e-9)
    return {"seconds a step": seconds / steps, "images a second": steps * images_a_step / seconds}


def _means(stepper: Stepper, world: World) -> dict[str, float]:
    means = stepper.read()
    if world.size == 1 or not means:
        return means
    together = mean_over(world, torch.tensor(list(means.values()), dtype=torch.float64, device=world.device))
    return dict(zip(means, together.tolist(), strict=True))


def _scores(scores: Mapping[str, float]) -> str:
    accuracy = f"validation accuracy {scores['accuracy']:.2%}, " if "accuracy" in scores else ""
    return f"{accuracy}loss {scores['loss']:.3f}"


def _diverged(folder: Path, stepper: Stepper, step: int, limit: int) -> DivergedError:
    path = folder / f"bad_batch_rank{stepper.world.rank}.pt"
    batch = stepper.last_batch
    assert batch is not None
    torch.save({"step": step, "images": batch.images.cpu(), "targets": batch.targets.cpu()}, path)
    kept = [path for _, path in checkpoints.complete(folder / "checkpoints")]
    good = [path for path in kept if not checkpoints.progress_of(path).skipped_in_a_row]
    last = f"the last good checkpoint is {good[-1]}" if good else "there is no checkpoint from before them"
    return DivergedError(
        f"Loss or gradients were not finite in {limit} steps in a row, up to step {step}: lower the rate or clip;"
        f" {last}, and the last batch is in {path}."
    )

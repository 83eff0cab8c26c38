"""How long a run will take on this machine, said before its first step."""

import time

import torch

from vitlab.core.errors import Error
from vitlab.core.words import about, count
from vitlab.data.batch import Batch
from vitlab.data.loading.loader_feed import LoaderFeed
from vitlab.data.streams import StreamPlan
from vitlab.training.assembly import Run, loader_feed

FEW_STEPS = 20  # below, the run tells as soon as an estimate would
ENOUGH = 0.5  # seconds in which a part of a batch is a measure of the whole
PART = 8  # the share of a batch that is tried first
LONG = 120  # seconds from which a shorter run is named
BACKWARD = 3  # times a forward pass: forward and backward together


def seconds_per_step(run: Run, streams: tuple[StreamPlan, ...]) -> float | None:
    """By a step that is computed and forgotten; None where that is no measure, or costs as much as it tells."""
    step, execution = run.state.progress.step, run.execution
    if run.world.size > 1 or execution.compile or not run.stepper.waits or run.plan.schedule.total - step < FEW_STEPS:
        return None
    loading, feed = 0.0, run.feed
    if isinstance(feed, LoaderFeed):  # whose batches are the run's: another one is read here
        feed = loader_feed(run.plan, streams, run.state.model.preprocess, run.world, 0, step)
    try:
        begun = time.perf_counter()
        batch = feed.batch(step)
        loading = (time.perf_counter() - begun) / max(execution.num_workers, 1)

        def seconds(images: Batch) -> float:
            begun = time.perf_counter()
            run.stepper.rehearse(images)
            if run.world.device.type == "cuda":
                torch.cuda.synchronize(run.world.device)
            return time.perf_counter() - begun

        part = batch if run.state.objective.whole_batch else batch.parts(PART)[0]
        try:
            seconds(part)  # the first pass takes memory and chooses kernels
        except (Error, ValueError):  # routing in groups and batch norms may want more images
            part = batch
        computing = seconds(part) * len(batch) / len(part)
        if part is not batch and computing * len(part) / len(batch) < ENOUGH:
            computing = seconds(batch)
    finally:
        if feed is not run.feed:
            feed.close()
    beside = run.world.device.type == "cuda"  # on a CPU both want the same cores
    return max(computing, loading) if beside else computing + loading


def sentence(run: Run, pace: float) -> str:
    """What a run takes from here on, evaluations included, and where that is long, what a shorter one would."""
    plan, begun = run.plan, run.state.progress.step
    left, batch, parts = plan.schedule.total - begun, plan.recipe.batch_size, plan.parts
    scored = 0 if parts.test is None else len(parts.test)
    if parts.val is not None:
        scored += len(parts.val) * (left // plan.intervals.evaluate if plan.intervals.evaluate else 1)
    seconds = pace * (left + scored / batch / BACKWARD)
    where = "GPU" if run.world.device.type == "cuda" else "CPU"
    took = f"about {about(seconds)}" if seconds >= 10 else about(seconds)
    said = f"{took.capitalize()} for {count(left, 'step')}{' that are left' if begun else ''} on this {where}"
    epochs = left * batch / len(parts.train)
    fewer = max(round(epochs / 4), 1)
    if begun or seconds < LONG or fewer >= epochs:
        return f"{said}."
    return f"{said}; --epochs {fewer} takes about {about(seconds * fewer / epochs)}."

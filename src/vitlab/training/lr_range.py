"""The learning rate by a range test (Leslie Smith, arXiv 1506.01186): a rate that grows until the loss does.

From the run's own initial weights, on its own first batches and by its own optimizer, steps are made whose lr grows
exponentially, until the loss rises far above its lowest or is not finite. All that is trained here is thrown away.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from vitlab.core.errors import Error
from vitlab.core.progress import Progressing
from vitlab.training.assembly import Run
from vitlab.training.distribution import mean_over
from vitlab.training.run import StoppedError

NUM = 100  # steps at most
DECADES = 5  # of lrs
LEAST = {"sgd": 1e-4}  # the first lr, of others 1e-5
WIDTH = 4.0  # steps: the standard deviation of the Gaussian that the loss is smoothed with
FEWEST = 10  # steps that a choice can be made from
FALL = 0.005  # of the first loss: less is no fall
RULE = "a tenth of the lr at which the smoothed loss is lowest"


class LrRangeError(Error):
    """A range test that shows no lr to train with."""


@dataclass(frozen=True)
class LrRange:
    """The rates that were tried, the loss of each one's step, and the rate that was chosen."""

    lr: float
    lrs: tuple[float, ...]
    losses: tuple[float, ...]
    rule: str = RULE


def find_lr(run: Run, *, signalled: Callable[[], int], progress: Progressing) -> LrRange:
    """Make the steps with a run that is thrown away, and choose."""
    optimizer, lrs, losses = run.plan.recipe.optimizer, list[float](), list[float]()
    least = LEAST.get(optimizer.name, 1e-5)
    for step, lr in enumerate(np.geomspace(least, least * 10**DECADES, NUM).tolist()):
        if number := signalled():
            raise StoppedError(
                "Stopped while the learning rate was looked for: nothing is trained yet, start it again.", number
            )
        made = run.stepper(step, lr / optimizer.lr)
        loss = run.stepper.read().get("loss", float("nan"))
        loss = mean_over(run.world, torch.tensor(loss, dtype=torch.float64, device=run.world.device)).item()
        if not made or not np.isfinite(loss):
            break
        lrs.append(lr)
        losses.append(loss)
        progress(step + 1, NUM)
        if risen(losses):
            break
    return LrRange(choose(lrs, losses), tuple(lrs), tuple(losses))


def risen(losses: Sequence[float]) -> bool:
    """Whether the last three lie twice as far above the lowest as the first does, and half of the first at least."""
    if len(losses) < FEWEST:
        return False
    smooth = smoothed(losses)
    first, lowest, last = float(smooth[0]), float(smooth.min()), float(np.mean(losses[-3:]))
    return last > lowest + max(2 * (first - lowest), abs(first) / 2)


def choose(lrs: Sequence[float], losses: Sequence[float]) -> float:
    """A tenth of the lr at which the smoothed loss is lowest, to two figures, so that it can be typed."""
    if len(losses) < FEWEST:
        raise LrRangeError(
            f"No learning rate was found: the loss was not finite in step {len(losses) + 1}, with the lowest."
        )
    smooth = smoothed(losses)
    if smooth[0] - smooth.min() < FALL * abs(smooth[0]):
        raise LrRangeError(
            f"No learning rate was found: none of those up to {lrs[-1]:.2g} lowered the loss ({smooth[0]:.3g}) in"
            f" {len(losses)} steps. Give one."
        )
    return float(f"{lrs[int(smooth.argmin())] / 10:.2g}")


def smoothed(losses: Sequence[float]) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    """The Gaussian mean over neighbouring steps, fewer at the ends."""
    steps = np.arange(len(losses))
    weights = np.exp(-(((steps[:, None] - steps[None]) / WIDTH) ** 2) / 2)
    return weights @ np.asarray(losses, np.float64) / weights.sum(axis=1)

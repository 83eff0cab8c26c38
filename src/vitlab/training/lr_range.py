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
from vitlab.training.run import RunError

NUM = 80  # steps at most
LEAST, MOST = 1e-6, 10.0  # lrs
WIDTH = 3.0  # steps: the standard deviation of the Gaussian that the loss is smoothed with
FEWEST = 10  # steps that a choice can be made from
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
    lrs, losses = list[float](), list[float]()
    for step, lr in enumerate(np.geomspace(LEAST, MOST, NUM).tolist()):
        if signalled():
            raise RunError("Stopped while the learning rate was looked for: nothing is trained yet, start it again.")
        made = run.stepper(step, lr / run.plan.recipe.optimizer.lr)
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
    """Whether the last losses lie twice as far above the lowest as the first do, or twice as high as these."""
    if len(losses) < FEWEST:
        return False
    smooth = smoothed(losses)
    first, lowest, last = float(smooth[0]), float(smooth.min()), float(np.mean(losses[-3:]))
    return last > lowest + 2 * max(first - lowest, first / 2)


def choose(lrs: Sequence[float], losses: Sequence[float]) -> float:
    """A tenth of the lr at which the smoothed loss is lowest, to two figures."""
    if len(losses) < FEWEST:
        raise LrRangeError(
            f"No learning rate was found: from {LEAST:g} on, the loss was not finite in step {len(losses) + 1}."
        )
    lowest = lrs[int(smoothed(losses).argmin())]
    return float(f"{lowest / 10:.2g}")


def smoothed(losses: Sequence[float]) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    """The Gaussian mean over neighbouring steps, fewer at the ends."""
    steps = np.arange(len(losses))
    weights = np.exp(-(((steps[:, None] - steps[None]) / WIDTH) ** 2) / 2)
    return weights @ np.asarray(losses, np.float64) / weights.sum(axis=1)

"""The state of a run, one object: everything that a resumed run needs to continue as if nothing had happened."""

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from vitlab.models.contract import Model
from vitlab.objectives.contract import Objective
from vitlab.training.ema import Ema
from vitlab.training.learner import Learner


@dataclass
class Progress:
    """What is counted beside the tensors."""

    step: int = 0
    skipped: int = 0  # steps left out because loss or gradients were not finite
    skipped_in_a_row: int = 0
    best_score: float | None = None
    best_loss: float | None = None
    best_step: int | None = None
    last_score: float | None = None
    stale: int = 0  # evaluations since the best one
    evaluated: int = 0  # the step of the last evaluation
    seconds: float = 0.0
    sums: dict[str, float] = field(default_factory=dict)  # of the metrics since they were last logged
    summed: int = 0  # the steps in those sums
    images_seen: int = 0

    def is_better(self, score: float, loss: float) -> bool:
        """Whether this beats the best so far: a higher score, or the same with a lower loss; NaN is worse than all."""
        if self.best_score is None or self.best_loss is None:
            return True
        return _rank(score, loss) > _rank(self.best_score, self.best_loss)


def _rank(score: float, loss: float) -> tuple[float, float]:
    return (-math.inf if math.isnan(score) else score, -math.inf if math.isnan(loss) else -loss)


@dataclass
class State:
    """The learner, its optimizers by phase, averaged weights and counters."""

    learner: Learner
    optimizers: dict[str, list[torch.optim.Optimizer]]
    ema: Ema | None = None
    progress: Progress = field(default_factory=Progress)

    @property
    def model(self) -> Model:
        return self.learner.model

    @property
    def objective(self) -> Objective:
        return self.learner.objective

    @property
    def all_optimizers(self) -> list[torch.optim.Optimizer]:
        return [optimizer for own in self.optimizers.values() for optimizer in own]

    def tensors(self) -> dict[str, Any]:
        """The tensors under full names, the same however many processes hold them."""
        self.learner.turn(None)  # torch leaves out the optimizer's state of what has no gradients just now
        weights, optimizer = get_state_dict(self.learner, self.all_optimizers)
        ema = self.ema
        averaged = {} if ema is None else dict(zip(ema.names, ema.all_values, strict=True))
        return {"model": weights, "optimiser": optimizer, "average": averaged}

    def restore(self, tensors: dict[str, Any]) -> None:
        """Take over what `tensors` gave, after it has been read back in place."""
        optimizers = self.all_optimizers
        self.learner.turn(None)
        groups = [group for optimizer in optimizers for group in optimizer.param_groups]
        settings = [{name: value for name, value in group.items() if name != "params"} for group in groups]
        set_state_dict(
            self.learner, optimizers, model_state_dict=tensors["model"], optim_state_dict=tensors["optimiser"]
        )
        groups = [group for optimizer in optimizers for group in optimizer.param_groups]
        for group, setting in zip(groups, settings, strict=True):
            group.update(setting)  # this run's own: which kernels there are depends on the device and the processes
        if self.ema is not None:
            for name, value in zip(self.ema.names, self.ema.all_values, strict=True):
                value.copy_(tensors["average"][name])

"""The state of a run, one object: everything that a resumed run needs to go on as if nothing had happened."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from vitlab.models.contract import Model
from vitlab.objectives.contract import Objective
from vitlab.training.average import Average


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
        """Whether this beats the best so far: a higher score, or the same with a lower loss."""
        if self.best_score is None or self.best_loss is None:
            return True
        return (score, -loss) > (self.best_score, -self.best_loss)


@dataclass
class State:
    """Model, objective, optimisers, averaged weights and counters."""

    model: Model
    objective: Objective
    optimisers: list[torch.optim.Optimizer]
    average: Average | None
    progress: Progress = field(default_factory=Progress)

    def tensors(self) -> dict[str, Any]:
        """The tensors under full names, the same however many processes hold them."""
        modules = _Both(self.model, self.objective)
        model, optimiser = get_state_dict(modules, self.optimisers)
        average = self.average
        averaged = {} if average is None else dict(zip(average.names, average.all_values, strict=True))
        return {"model": model, "optimiser": optimiser, "average": averaged}

    def restore(self, tensors: dict[str, Any]) -> None:
        """Take over what `tensors` gave, after it has been read back in place."""
        modules = _Both(self.model, self.objective)
        groups = [group for optimiser in self.optimisers for group in optimiser.param_groups]
        settings = [{name: value for name, value in group.items() if name != "params"} for group in groups]
        set_state_dict(
            modules, self.optimisers, model_state_dict=tensors["model"], optim_state_dict=tensors["optimiser"]
        )
        groups = [group for optimiser in self.optimisers for group in optimiser.param_groups]
        for group, setting in zip(groups, settings, strict=True):
            group.update(setting)  # this run's own: which kernels there are depends on the device and the processes
        if self.average is not None:
            for name, value in zip(self.average.names, self.average.all_values, strict=True):
                value.copy_(tensors["average"][name])


class _Both(nn.Module):
    """Model and objective under one roof, so that one optimiser over both has names for all its parameters."""

    def __init__(self, model: nn.Module, objective: nn.Module) -> None:
        super().__init__()
        self.model, self.objective = model, objective

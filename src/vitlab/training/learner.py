"""Model and objective under one roof: what is wrapped, compiled and captured."""

from collections.abc import Iterator
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.func import functional_call

from vitlab.core.errors import ConfigError
from vitlab.data.batch import Batch
from vitlab.kernels.folding import folded
from vitlab.models.contract import Model
from vitlab.objectives.contract import Metrics, Objective, Phase


@final
class Learner(nn.Module):
    """Called as `learner(batch, progress, phase)` for a phase's loss, and as `learner(images)` for the model's outputs.

    Whatever way through the model an objective takes is inside the call, so that it is compiled and synchronised, and
    with sharded parameters gathered.
    """

    def __init__(self, model: Model, objective: Objective) -> None:
        super().__init__()
        self.model, self.objective = model, objective
        self.phases: dict[str, Phase] = {phase.name: phase for phase in objective.phases(model)}
        self.norms: tuple[tuple[str, str], ...] = ()  # with the layer that reads each, to be one in a call
        self.cast_to: torch.dtype | None = None  # what the views become, where parameters are sharded in that type
        self._trained = _trained(self, list(self.phases.values()))

    def fold_norms(self) -> None:
        """Have the model's norms in the weights behind them during a call, where it is compiled and faster so.

        The names of parameters, what is saved and what the optimizers see stay as they are. An objective that looks at
        the parameters themselves would see those of the call, so that nothing is folded under it.
        """
        if self.objective.only_calls:
            self.norms = tuple((f"model.{norm}", f"model.{layer}") for norm, layer in self.model.normed_layers)

    def forward(self, batch: Batch | Tensor, progress: Tensor | None = None, phase: str | None = None) -> Any:
        if self.norms and (weights := folded(self, self.norms)):
            return functional_call(self, weights, (batch, progress, phase), tie_weights=False)
        if isinstance(batch, Tensor):
            return self.model(batch if self.cast_to is None else batch.to(self.cast_to))
        assert phase is not None
        if self.cast_to is not None:
            batch = batch.with_views_as(self.cast_to)
        return self._loss(batch, progress, self.phases[phase])

    def _loss(self, batch: Batch, progress: Tensor | None, phase: Phase) -> tuple[Tensor, Metrics]:
        assert progress is not None
        loss, metrics = phase.loss(self.model, batch, progress)
        own = self.model.auxiliary()
        return sum(own.values(), loss), {**metrics, **{name: value.detach() for name, value in own.items()}}

    def trained(self, phase: str) -> Iterator[tuple[str, nn.Parameter]]:
        """The parameters that a phase trains, by name."""
        names = self._trained[phase]
        return ((name, parameter) for name, parameter in self.named_parameters() if name in names)

    def turn(self, phase: str | None) -> None:
        """Let only a phase's parameters have gradients, or those of all phases; with one phase they always have."""
        if len(self.phases) > 1:
            names = frozenset[str]().union(*self._trained.values()) if phase is None else self._trained[phase]
            for name, parameter in self.named_parameters():
                parameter.requires_grad_(name in names)


def _trained(learner: Learner, phases: list[Phase]) -> dict[str, frozenset[str]]:
    """The names that each phase trains; what none does is frozen."""
    free = [name for name, parameter in learner.named_parameters() if parameter.requires_grad]
    own = [phase for phase in phases if phase.again is None]
    found = {phase.name: frozenset(name for name in free if phase.trains(name)) for phase in own}
    several = [name for name in free if sum(name in names for names in found.values()) > 1]
    if several:
        raise ConfigError(f"{several[0]} is trained by more than one phase of the objective: each has its own.")
    for name, parameter in learner.named_parameters():
        parameter.requires_grad_(any(name in names for names in found.values()))
    return found | {phase.name: found[phase.again] for phase in phases if phase.again is not None}

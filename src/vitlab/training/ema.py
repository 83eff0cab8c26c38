"""The exponential average of a model's weights, and what a forward pass in training changes."""

from typing import final

import torch
from torch import Tensor, nn

from vitlab.core.compiling import compile_options
from vitlab.training.mixed import by_kind


@final
class Ema:
    """Averaged copies of every parameter and of batch norm's statistics: a <- decay a + (1 - decay) w after each step.

    Early on the decay is min(decay, (1 + t) / (10 + t)), so that the average forgets the initial weights.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        statistics = {name: value for name, value in running(model).items() if value.is_floating_point()}
        named = dict(model.named_parameters())
        self.names, self.parameters = [*named, *statistics], list(named.values())
        self.statistics = list(statistics.values())  # apart: with sharded parameters they are of another kind
        self.values: list[Tensor] = [value.detach().clone() for value in self.parameters]
        self.averaged = [value.clone() for value in self.statistics]
        self._moved = _move  # or the compiled one
        self._due: Tensor | None = None  # how far the values are still to be moved towards the parameters

    @torch.no_grad()
    def update(self, step: int) -> None:
        """After the update that made the run `step` steps long."""
        weight = 1 - min(self.decay, (1 + step) / (10 + step))
        for places in by_kind(self.values):
            towards = [self.parameters[i].detach() for i in places]
            torch._foreach_lerp_([self.values[i] for i in places], towards, weight)
        if self.statistics:
            torch._foreach_lerp_(self.averaged, self.statistics, weight)

    @torch.no_grad()
    def note(self, step: Tensor, made: Tensor) -> None:
        """`update` where only the device knows the step, and whether it was made: due, and not yet done.

        Only the parameters' part waits: their next change does, while a forward pass changes batch norm's statistics.
        """
        weight = (1 - torch.clamp((1.0 + step) / (10.0 + step), max=self.decay)) * made
        if self.statistics:
            _move(self.averaged, self.statistics, weight)
        if self._due is None:
            self._due = torch.zeros_like(weight)
        self._due.copy_(weight)

    @torch.no_grad()
    def catch_up(self) -> None:
        """Do what is due, before the parameters change again."""
        if self._due is not None:
            self._moved(self.values, [p.detach() for p in self.parameters], self._due)
            self._due.zero_()

    def compile(self) -> None:
        """Make `catch_up` one pass over the weights instead of three."""
        self._moved = torch.compile(_move, options=compile_options(self.values[0].device))

    @torch.no_grad()
    def swap(self) -> None:
        """Exchange the model's weights and the averaged ones: once to evaluate, once more to continue."""
        current = [*self.parameters, *self.statistics]
        for value, own in zip(self.all_values, current, strict=True):
            held = own.detach().clone()
            own.copy_(value)
            value.copy_(held)

    @property
    def all_values(self) -> list[Tensor]:
        """The averaged tensors, in the order of `names`."""
        self.catch_up()
        return [*self.values, *self.averaged]


def running(model: nn.Module) -> dict[str, Tensor]:
    """What a forward pass in training changes and a checkpoint holds: batch norm's means, variances and counts."""
    stored = model.state_dict().keys()
    return {name: value for name, value in model.named_buffers() if name in stored}


def _move(values: list[Tensor], towards: list[Tensor], weight: Tensor) -> None:
    moves = torch._foreach_sub(towards, values)
    torch._foreach_mul_(moves, weight)
    torch._foreach_add_(values, moves)

"""The exponential average of a model's weights."""

from typing import final

import torch
from torch import Tensor, nn


@final
class Average:
    """Averaged copies of every parameter: a <- decay a + (1 - decay) w after each step.

    Early on the decay is min(decay, (1 + t) / (10 + t)), so that the average forgets the initial weights.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.parameters = list(model.parameters())
        self.values: list[Tensor] = [parameter.detach().clone() for parameter in self.parameters]

    @torch.no_grad()
    def update(self, step: int) -> None:
        """After the update that made the run `step` steps long."""
        weight = 1 - min(self.decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(self.values, [p.detach() for p in self.parameters], weight)

    @torch.no_grad()
    def update_on_device(self, step: Tensor, made: Tensor) -> None:
        """The same where only the device knows the step, and whether it was made."""
        weight = (1 - torch.clamp((1.0 + step) / (10.0 + step), max=self.decay)) * made
        moves = torch._foreach_sub([p.detach() for p in self.parameters], self.values)
        torch._foreach_mul_(moves, weight)
        torch._foreach_add_(self.values, moves)

    @torch.no_grad()
    def swap(self) -> None:
        """Exchange the model's weights and the averaged ones: once to evaluate, once more to go on."""
        for value, parameter in zip(self.values, self.parameters, strict=True):
            held = parameter.detach().clone()
            parameter.copy_(value)
            value.copy_(held)

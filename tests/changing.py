"""Recipes with some fields changed, and runs that something happens to at some step."""

import signal
from collections.abc import Callable

import pytest
import torch

from vitlab.core.config import from_dict, to_dict
from vitlab.training.recipe import Recipe
from vitlab.training.step import Stepper


def changed(recipe: Recipe, **fields: object) -> Recipe:
    """The recipe with dotted fields changed: changed(r, **{'data.workers': 0})."""
    content = to_dict(recipe)
    for name, value in fields.items():
        *path, last = name.split(".")
        place = content
        for part in path:
            place = place[part]
        place[last] = value
    return from_dict(Recipe, content, where="test")


def before_step(step: int, happens: Callable[[Stepper], None], patch: pytest.MonkeyPatch, kind: type[Stepper]) -> None:
    """Something happens before that step is made."""
    make = kind.__call__

    def changed_step(self: Stepper, at: int, factor: float) -> bool:
        if at == step:
            happens(self)
        return make(self, at, factor)

    patch.setattr(kind, "__call__", changed_step)


def lose_at(step: int, patch: pytest.MonkeyPatch, kind: type[Stepper] = Stepper) -> None:
    """The process is lost before that step is made."""

    def lost(_: Stepper) -> None:
        raise KeyboardInterrupt

    before_step(step, lost, patch, kind)


def signal_at(step: int, number: signal.Signals, patch: pytest.MonkeyPatch) -> None:
    """A signal comes before that step is made."""
    before_step(step, lambda _: signal.raise_signal(number), patch, Stepper)


def spoil_at(step: int, patch: pytest.MonkeyPatch) -> None:
    """From that step on, gradients are not finite."""

    def spoilt(stepper: Stepper) -> None:
        with torch.no_grad():
            stepper.turns[0].parameters[0].fill_(float("nan"))

    before_step(step, spoilt, patch, Stepper)

"""Recipes with some fields changed, and runs that are lost at some step."""

import pytest

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


def lose_at(step: int, patch: pytest.MonkeyPatch, kind: type[Stepper] = Stepper) -> None:
    """The process is lost before that step is made."""
    make = kind.__call__

    def lost(self: Stepper, at: int, rate: float) -> bool:
        if at == step:
            raise KeyboardInterrupt
        return make(self, at, rate)

    patch.setattr(kind, "__call__", lost)

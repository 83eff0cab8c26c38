"""Named, typed, complete configurations: the only place where hyper-parameters live."""

from collections.abc import Callable, Iterable
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from vitlab.core.errors import ConfigError, unknown_name
from vitlab.core.registry import is_file_reference, load_object, load_point, permit
from vitlab.recipes import (
    attention,
    augreg,
    bit,
    box,
    convolutional,
    deit,
    experts,
    few_labels,
    finetuning,
    generation,
    leaderboards,
    masked,
    meta_pseudo_labels,
    modern,
    pretraining,
    sam,
    scaling,
    semantic,
    small,
    views,
)
from vitlab.training.recipe import Recipe

RECIPES: dict[str, Callable[[], Recipe]] = {
    **pretraining.RECIPES,
    **finetuning.RECIPES,
    **bit.RECIPES,
    **convolutional.RECIPES,
    **modern.RECIPES,
    **augreg.RECIPES,
    **deit.RECIPES,
    **scaling.RECIPES,
    **experts.RECIPES,
    **leaderboards.RECIPES,
    **attention.RECIPES,
    **small.RECIPES,
    **box.RECIPES,
    **masked.RECIPES,
    **views.RECIPES,
    **sam.RECIPES,
    **semantic.RECIPES,
    **generation.RECIPES,
    **few_labels.RECIPES,
    **meta_pseudo_labels.RECIPES,
}


def find_recipe(name: str) -> Recipe:
    """The recipe of that name, also of an installed package's or as 'mine.py:NAME', or an error with near matches."""
    recipe = _build(name)()
    permit(*recipe.names().values())
    return recipe


def summary_of(name: str) -> str | None:
    """What a recipe says of itself."""
    return _build(name).__doc__


def recipe_names() -> list[str]:
    """All recipes' names, those of installed packages too."""
    return [*RECIPES, *(point.name for point in _points() if point.name not in RECIPES)]


def _build(name: str) -> Callable[[], Recipe]:
    if is_file_reference(name):
        return _checked(load_object(name), name)
    if name in RECIPES:
        return RECIPES[name]
    for point in _points():
        if point.name == name:
            return _checked(load_point(point), point.value)
    raise unknown_name("recipe", name, recipe_names(), " `vitlab train --list` names them all.")


def _points() -> Iterable[EntryPoint]:
    return entry_points(group="vitlab.recipes")


def _checked(build: Any, where: str) -> Callable[[], Recipe]:
    if not callable(build):
        raise ConfigError(f"{where} must be a function that gives a Recipe, not {type(build).__name__}.")

    def checked() -> Recipe:
        recipe = build()
        if not isinstance(recipe, Recipe):
            raise ConfigError(f"{where} must give a Recipe, not {type(recipe).__name__}.")
        return recipe

    checked.__doc__ = build.__doc__
    return checked

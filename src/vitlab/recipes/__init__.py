"""Named, typed, complete configurations: the only place where hyper-parameters live."""

from collections.abc import Callable

from vitlab.core.errors import unknown_name
from vitlab.recipes import attention, bit, convolutional, deit, experts, finetuning, modern, pretraining, scaling, small
from vitlab.training.recipe import Recipe

RECIPES: dict[str, Callable[[], Recipe]] = {
    **pretraining.RECIPES,
    **finetuning.RECIPES,
    **bit.RECIPES,
    **convolutional.RECIPES,
    **modern.RECIPES,
    **deit.RECIPES,
    **scaling.RECIPES,
    **experts.RECIPES,
    **attention.RECIPES,
    **small.RECIPES,
}


def find_recipe(name: str) -> Recipe:
    """The recipe of that name, or an error with near matches."""
    if name not in RECIPES:
        raise unknown_name("recipe", name, RECIPES, " `vitlab train --list` names them all.")
    return RECIPES[name]()

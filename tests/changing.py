"""Recipes with some fields changed."""

from vitlab.core.config import from_dict, to_dict
from vitlab.training.recipe import Recipe


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

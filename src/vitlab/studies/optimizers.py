"""Adam against SGD, for ResNets as in appendix D.1, and for the ViT beside them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vitlab.core.errors import ConfigError
from vitlab.studies.contract import Study, StudyResult
from vitlab.studies.findings import joined

if TYPE_CHECKING:
    from vitlab.studies.choosing import Chosen
    from vitlab.studies.context import Context

BASE = "BiT, SGD"


@dataclass(frozen=True, kw_only=True)
class OptimizersOptions:
    """Adam against SGD with momentum for BiT and ViT, each at the lr that does best on held-out images."""

    factors: tuple[float, ...] = (1 / 3, 1.0, 3.0)
    """The learning rates to choose from, as multiples of the scale's own."""


def candidates(scale: str, factors: Sequence[float]) -> dict[str, dict[str, Any]]:
    """Each family with each optimizer, at each rate."""
    import dataclasses

    from vitlab.recipes.scales import OptimizerName, scale_recipe

    found: dict[str, dict[str, Any]] = {}
    names: dict[OptimizerName, str] = {"sgd": "SGD", "adamw": "Adam"}
    for family in ("BiT", "ViT"):
        for name, word in names.items():
            recipe = scale_recipe(scale, family, optimizer=name)
            found[f"{family}, {word}"] = {
                _option(factor): dataclasses.replace(
                    recipe, optimizer=dataclasses.replace(recipe.optimizer, lr=recipe.optimizer.lr * factor)
                )
                for factor in sorted(factors)
            }
    return found


def _option(factor: float) -> str:
    return "lr" if factor == 1 else f"lr × {factor:g}" if factor > 1 else f"lr / {1 / factor:g}"


def run(context: "Context", options: OptimizersOptions) -> StudyResult:
    import dataclasses

    from vitlab.studies.ablation import ablated
    from vitlab.studies.choosing import choose
    from vitlab.studies.context import samples

    if not options.factors or min(options.factors) <= 0:
        raise ConfigError("study optimizers: factors are positive numbers, as --factors 1 3 9.")
    grid = candidates(context.scale, options.factors)
    later = [next(iter(grid[row].values())) for row in context.wanted(list(grid))] * (context.num_seeds - 1)
    chosen = choose(context, grid, what="optimizers: rates, chosen on held-out images", later=later)
    recipes = {row: choice.recipe for row, choice in chosen.items()}
    runs = context.over_seeds(recipes, what="optimizers: the chosen rates, over seeds")
    result = ablated(context, runs, samples(runs), base=BASE, title="Adam against SGD, each at the best rate tried")
    rates = "; ".join(f"{row} {choice.recipe.optimizer.lr:g}" for row, choice in chosen.items())
    selected = {row: {"lr": choice.recipe.optimizer.lr, "scores": choice.scores} for row, choice in chosen.items()}
    how = f"Rates were chosen on held-out images with one seed: {rates}."
    return dataclasses.replace(
        result,
        findings=[*result.findings, how, *_at_the_end(chosen)],
        numbers={**result.numbers, "selected": selected},
    )


def _at_the_end(chosen: "Mapping[str, Chosen]") -> list[str]:
    """A warning for rows whose rate is the lowest or the highest of those tried: their best one may lie beyond."""
    found: list[str] = []
    for word, place in (("lowest", 0), ("highest", -1)):
        rows = [row for row, choice in chosen.items() if choice.option == list(choice.scores)[place]]
        if rows:
            found.append(
                f"The {word} rate tried was chosen for {joined(rows)}: the best one may lie beyond (--factors)."
            )
    return found


STUDY = Study(
    name="optimizers",
    summary="Adam against SGD for ResNets, and for ViT",
    options=OptimizersOptions,
    run=run,
    examples=("--scale digits", "--scale digits --only 'BiT*' --factors 1 3 9"),
    published="appendix D.1: ResNets pre-trained by Adam are a little ahead, 89.3 to 88.8 over five sets",
)

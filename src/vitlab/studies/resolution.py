"""Fine-tuning at a higher resolution than that of pre-training, positions resized (section 3.2)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vitlab.studies.contract import Study, StudyResult

if TYPE_CHECKING:
    from vitlab.studies.context import Context, Trained
    from vitlab.training.recipe import Recipe

# the side of pre-training, then those of fine-tuning, in pixels; but for digits the largest is the pictures' own
SIDES = {"digits": (16, 24, 32), "cifar": (16, 24, 32), "tiny-imagenet": (32, 48, 64), "imagenet": (224, 384)}
FACTORS = (1 / 3, 1.0, 3.0)  # of the scale's rate of fine-tuning
ENLARGED = (
    "These pictures have 8 px of their own: larger ones hold no more detail, so that what could make a higher"
    " resolution better is not there. Seen is what resizing the positions costs."
)


@dataclass(frozen=True, kw_only=True)
class ResolutionOptions:
    """Resolution: a pre-trained model fine-tuned at its own size and at larger ones, beside one trained there."""


def run(context: "Context", _: ResolutionOptions) -> StudyResult:
    import dataclasses

    from vitlab.recipes.scales import TUNING, scale_recipe, tuned, with_model
    from vitlab.studies.ablation import ablated
    from vitlab.studies.context import samples

    sides = SIDES[context.scale]
    recipe, largest = (with_model(scale_recipe(context.scale), image_size=side) for side in (sides[0], sides[-1]))
    base = f"as trained at {sides[0]} px"
    rows = {base: recipe, f"from scratch at {sides[-1]} px": largest}
    fine_tuned = {f"fine-tuned at {side} px": side for side in sides}
    wanted = [row for row in context.wanted([*rows, *fine_tuned]) if row in fine_tuned]
    steps, lr = TUNING[context.scale]
    after = [tuned(recipe, steps=steps, lr=lr, image_size=fine_tuned[row]) for row in wanted]
    # a seed chooses the rate, and its run is there already
    later = after * (len(FACTORS) + context.num_seeds - 1)
    runs = context.over_seeds(rows, whole=True, what="resolution: pre-training", later=later)
    chosen = _chosen(context, {row: fine_tuned[row] for row in wanted}, runs.get(base, []))
    for row, rate in chosen.items():

        def enlarged(run: "Trained", row: str = row, rate: float = rate) -> "Recipe":
            return tuned(run.recipe, str(run.folder), steps=steps, lr=rate, image_size=fine_tuned[row])

        runs |= context.follow({row: runs[base]}, enlarged, then=row, what=f"resolution: {row}")
    own = f"fine-tuned at {sides[0]} px"
    result = ablated(context, runs, samples(runs), base=own, title="Resolution of fine-tuning")
    rates = ", ".join(f"{rate:g} at {fine_tuned[row]} px" for row, rate in chosen.items())
    notes = [f"The lr of fine-tuning was chosen on held-out images with one seed: {rates}."] if chosen else []
    notes += [ENLARGED] if context.scale == "digits" and context.data is None else []
    return dataclasses.replace(result, findings=[*result.findings, *notes])


def _chosen(context: "Context", rows: "dict[str, int]", runs: "Sequence[Trained]") -> dict[str, float]:
    """The rate of each row of fine-tuning that does best on held-out images, by the first of the runs."""
    from vitlab.recipes.scales import TUNING, tuned
    from vitlab.studies.choosing import choose

    if not rows or not runs:
        return {}
    steps, lr = TUNING[context.scale]
    first = runs[0]
    candidates = {
        row: {
            f"lr {rate:g}": tuned(first.recipe, str(first.folder), steps=steps, lr=rate, image_size=side)
            for rate in (factor * lr for factor in FACTORS)
        }
        for row, side in rows.items()
    }
    found = choose(context, candidates, what="resolution: rates of fine-tuning, chosen on held-out images")
    return {row: each.recipe.optimizer.lr for row, each in found.items()}


STUDY = Study(
    name="resolution",
    summary="fine-tuning at a higher resolution than pre-training",
    options=ResolutionOptions,
    run=run,
    examples=("--scale digits",),
    published="section 3.2: fine-tuning at a higher resolution helps; 384 px after 224",
)

"""Fine-tuning at a higher resolution than that of pre-training, positions resized (section 3.2)."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from vitlab.studies.contract import Study, StudyResult

if TYPE_CHECKING:
    from vitlab.studies.context import Context, Trained
    from vitlab.training.recipe import Recipe


@dataclass(frozen=True, kw_only=True)
class ResolutionOptions:
    """Resolution: a pre-trained model fine-tuned at its own size and at larger ones, beside one trained there."""


def larger(scale: str, size: int, patch: int) -> list[int]:
    """The sides in pixels to fine-tune at; the paper's is 384 for 224."""
    if scale == "imagenet":
        return [384]
    return [size + size // 2 // patch * patch, 2 * size]


def run(context: "Context", _: ResolutionOptions) -> StudyResult:
    import dataclasses

    from vitlab.recipes.scales import TUNING, config_of, scale_recipe, tuned, with_model
    from vitlab.studies.ablation import ablated
    from vitlab.studies.context import samples

    recipe = scale_recipe(context.scale)
    config = config_of(recipe)
    size = config.image_size[0]
    sides = larger(context.scale, size, config.patch_size)
    base = f"as trained at {size} px"
    rows = {base: recipe, f"from scratch at {sides[-1]} px": with_model(recipe, image_size=sides[-1])}
    steps, lr = TUNING[context.scale]
    later = context.num_seeds * (1 + len(sides))
    runs: dict[str, list[Trained]] = context.over_seeds(rows, whole=True, what="resolution: pre-training", later=later)
    for side in (size, *sides):

        def enlarged(run: "Trained", side: int = side) -> "Recipe":
            return tuned(run.recipe, str(run.folder), steps=steps, lr=lr, image_size=side)

        row = f"fine-tuned at {side} px"
        if row in context.wanted([*rows, *(f"fine-tuned at {each} px" for each in (size, *sides))]):
            again = context.follow({row: runs.get(base, [])}, enlarged, then=row, what=f"resolution: {row}")
            runs |= again
    result = ablated(context, runs, samples(runs), base=base, title="Resolution of fine-tuning")
    if context.scale == "imagenet":
        return result
    note = f"These pictures have no more than {size} px of their own: larger ones are the same, enlarged."
    return dataclasses.replace(result, findings=[*result.findings, note])


STUDY = Study(
    name="resolution",
    summary="fine-tuning at a higher resolution than pre-training",
    options=ResolutionOptions,
    run=run,
    examples=("--scale digits",),
    published="section 3.2: fine-tuning at a higher resolution helps; 384 px after 224",
)

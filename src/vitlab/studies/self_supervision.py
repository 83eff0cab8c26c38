"""Pre-training without labels, then few of them: masked patches and MAE beside scratch and supervision (B.1.2)."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vitlab.studies.contract import Study, StudyResult

if TYPE_CHECKING:
    from vitlab.studies.context import Context, Trained
    from vitlab.training.recipe import Recipe

SCRATCH, SUPERVISED, MASKED, MAE = "from scratch", "supervised", "masked patches", "MAE"
DECODERS = {"digits": (32, 1, 4), "cifar": (96, 2, 3), "tiny-imagenet": (96, 2, 3), "imagenet": (512, 8, 16)}


@dataclass(frozen=True, kw_only=True)
class SelfSupervisionOptions:
    """Self-supervision: pre-trained on all images without labels, fine-tuned on few labelled ones."""

    labelled: float = 0.1
    """The fraction of each class of train whose labels are used in fine-tuning."""
    pretrain_times: int = 2
    """How many times as long as the scale's own run the pre-training is."""


def run(context: "Context", options: SelfSupervisionOptions) -> StudyResult:
    import dataclasses

    from vitlab.recipes.scales import on_part, scale_recipe, steps_times
    from vitlab.studies.ablation import ablated
    from vitlab.studies.context import samples
    from vitlab.studies.paper import published

    recipe = scale_recipe(context.scale)
    few = on_part(recipe, options.labelled)
    starts = _starts(context.scale, steps_times(recipe, options.pretrain_times))
    wanted = context.wanted([SCRATCH, *starts])
    before = context.over_seeds(
        {row: start for row, start in starts.items() if row in wanted},
        whole=True,
        what="self-supervision: pre-training",
        later=[few] * (context.num_seeds * len(wanted)),
    )

    def continued(run: "Trained") -> "Recipe":
        model = dataclasses.replace(few.model, source=str(run.folder), pretrained=True, set=())
        return dataclasses.replace(few, model=model, seed=run.recipe.seed)

    scratch = {SCRATCH: few} if SCRATCH in wanted else {}
    runs = context.over_seeds(scratch, whole=True, what="self-supervision: from scratch") if scratch else {}
    runs |= context.follow(before, continued, then="fine-tuned", what="self-supervision: fine-tuning on few labels")
    result = ablated(
        context,
        runs,
        samples(runs),
        base=SCRATCH,
        title=f"Fine-tuned on {100 * options.labelled:g}% of the labels",
        published=published("self-supervision"),
    )
    part = f"{100 * options.labelled:g}%"
    note = f"Supervised pre-training saw the labels of all training images, the others {part} of them."
    return dataclasses.replace(result, findings=[*result.findings, note])


def _starts(scale: str, recipe: Any) -> dict[str, Any]:
    """What is pre-trained, on all of train."""
    import dataclasses

    from vitlab.core.config import Choice

    width, depth, heads = DECODERS[scale]
    decoder = {"decoder_width": width, "decoder_depth": depth, "decoder_heads": heads}
    plain = dataclasses.replace(recipe, model=dataclasses.replace(recipe.model, representation=False))
    return {
        SUPERVISED: plain,
        MASKED: dataclasses.replace(plain, objective=Choice("masked-patches")),
        MAE: dataclasses.replace(plain, objective=Choice("mae", decoder)),
    }


STUDY = Study(
    name="self-supervision",
    summary="masked patches and MAE, then few labels, beside scratch and supervision",
    options=SelfSupervisionOptions,
    run=run,
    examples=("--scale digits", "--scale digits --labelled 0.02 --seeds 5"),
    published="section 4.6: 79.9 by masked patches, 2 points over scratch, 4 under supervised pre-training",
)

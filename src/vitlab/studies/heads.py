"""How the answer is read, class token or mean (appendix D.3, figure 9), and how many attention heads there are."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vitlab.studies.contract import Study, StudyResult

if TYPE_CHECKING:
    from vitlab.studies.context import Context

BASE = "class token"
THIRD = ", lr / 3"
MEAN: dict[str, Any] = {"pool": "mean", "class_token": "false"}
NUM_HEADS = {"digits": (1, 2, 8, 16), "cifar": (1, 6, 12), "tiny-imagenet": (1, 6, 12), "imagenet": (3, 6, 24)}


@dataclass(frozen=True, kw_only=True)
class HeadsOptions:
    """Heads: class token, mean of patches or attention pooling, a hidden layer; and how many attention heads."""


def rows(scale: str) -> dict[str, Any]:
    import dataclasses

    from vitlab.recipes.scales import scale_recipe, with_model

    recipe = scale_recipe(scale)
    plain = dataclasses.replace(recipe, model=dataclasses.replace(recipe.model, representation=False))
    slow = dataclasses.replace(plain, optimizer=dataclasses.replace(plain.optimizer, lr=plain.optimizer.lr / 3))
    found = {
        BASE: plain,
        BASE + THIRD: slow,
        "mean of patches": with_model(plain, **MEAN),
        "mean of patches" + THIRD: with_model(slow, **MEAN),
        "attention pooling": with_model(plain, pool="attention", class_token="false"),
        f"{BASE}, hidden layer": dataclasses.replace(
            plain, model=dataclasses.replace(plain.model, representation=True)
        ),
    }
    for heads in NUM_HEADS[scale]:
        found[f"{heads} attention head{'s' * (heads != 1)}"] = with_model(plain, heads=heads)
    return found


def run(context: "Context", _: HeadsOptions) -> StudyResult:
    from vitlab.recipes.scales import config_of, scale_recipe
    from vitlab.studies.ablation import ablation

    own = config_of(scale_recipe(context.scale)).heads
    title = f"How the answer is read, and attention heads ({own} where no number is said)"
    return ablation(context, rows(context.scale), base=BASE, title=title)


STUDY = Study(
    name="heads",
    summary="class token, mean of patches or attention pooling; the number of attention heads",
    options=HeadsOptions,
    run=run,
    examples=("--scale digits", "--scale digits --only 'mean*'"),
    published="appendix D.3: class token and mean of patches do alike, each at a rate of its own",
)

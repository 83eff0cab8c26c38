"""How much data each family needs: ViT, BiT and a hybrid on growing parts of train (figures 3 and 4)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vitlab.core.errors import ConfigError
from vitlab.studies.contract import Study, StudyResult, Table

if TYPE_CHECKING:
    from vitlab.studies.choosing import Chosen
    from vitlab.studies.context import Context, Trained
    from vitlab.studies.findings import Difference, Sample
    from vitlab.training.recipe import Recipe

# what the paper tunes for each size (section 4.3): weight decay, dropout, label smoothing
REGULARISED: dict[str, tuple[float, float, float]] = {"little": (0.01, 0.0, 0.0), "much": (0.1, 0.1, 0.1)}
L2 = 1e-3  # SGD's counterpart of a weight decay of 1, times it
AS_TRAINED, FEWSHOT, TUNED = "as trained", "few-shot", "fine-tuned"


@dataclass(frozen=True, kw_only=True)
class DataSizeOptions:
    """Pre-training on growing parts of train: ViT, BiT and a hybrid, few-shot and fine-tuned on all of train."""

    fractions: tuple[float, ...] = (0.05, 0.2, 1.0)
    """The fractions of each class of train; a larger one contains a smaller one."""
    families: tuple[str, ...] = ("ViT", "BiT", "hybrid")
    """Which to compare: ViT, BiT, hybrid."""
    shots: int = 5
    """Images per class of the linear few-shot classifier on frozen features."""


def run(context: "Context", options: DataSizeOptions) -> StudyResult:
    from vitlab.recipes.scales import TUNING, tuned
    from vitlab.studies.cells import Measure
    from vitlab.studies.choosing import choose

    steps, lr = TUNING[context.scale]
    grid = {_row(family, part): (family, part) for family in options.families for part in options.fractions}
    candidates = {row: _candidates(context.scale, *where) for row, where in grid.items()}
    measure = Measure(protocol="fewshot", options={"shots": [options.shots]}, data=_whole(context))
    wanted = [next(iter(candidates[row].values())) for row in context.wanted(list(grid))]
    brief = [tuned(recipe, steps=steps, lr=lr) for recipe in wanted]
    # the first seed of what is chosen is there already; then a fine-tuning of every run
    later = wanted * (context.num_seeds - 1) + brief * context.num_seeds
    chosen = choose(context, candidates, what="data-size: regularisation, chosen on held-out images", later=later)
    recipes = {row: choice.recipe for row, choice in chosen.items()}
    runs = context.over_seeds(recipes, measures=[measure], what="data-size: the chosen ones, over seeds")
    after = _fine_tuned(context, runs)
    found = {row: _scores(own, after.get(row, []), measure, options.shots) for row, own in runs.items()}
    return _result(context, options, grid, runs, chosen, found)


def _whole(context: "Context") -> str:
    """All of train, whatever part of it a run saw: the few images are the same for all."""
    from vitlab.data.open import open_data
    from vitlab.data.sources.arranged import arranged_name
    from vitlab.recipes.scales import scale_recipe

    source = context.data or scale_recipe(context.scale).data.source
    test = "test" if "test" in open_data(source, val_fraction=0).splits else "val"
    return arranged_name(source, train=("train",), test=(test,))


def _row(family: str, part: float) -> str:
    return f"{family}, {100 * part:g}%"


def _candidates(scale: str, family: Any, part: float) -> dict[str, Any]:
    """The family's recipe on a part of train, with little and with much regularisation."""
    import dataclasses

    from vitlab.recipes.scales import FAMILIES, on_part, scale_recipe

    if family not in FAMILIES:
        raise ConfigError(f"study data-size: families are {', '.join(FAMILIES)}, not '{family}'.")
    recipe = on_part(scale_recipe(scale, family), part)
    found: dict[str, Any] = {}
    for name, (decay, dropout, smoothing) in REGULARISED.items():
        sgd = recipe.optimizer.name == "sgd"
        changed = {"l2": decay * L2} if sgd else {"weight_decay": decay}
        found[name] = dataclasses.replace(
            recipe,
            model=dataclasses.replace(recipe.model, dropout=None if family == "BiT" else dropout),
            loss=dataclasses.replace(recipe.loss, label_smoothing=smoothing),
            optimizer=dataclasses.replace(recipe.optimizer, **changed),
        )
    return found


def _fine_tuned(context: "Context", runs: "dict[str, list[Trained]]") -> "dict[str, list[Trained]]":
    """Each run's model fine-tuned on all of train, briefly, with the seed that it was trained with."""
    import dataclasses

    from vitlab.recipes.scales import TUNING, tuned

    steps, lr = TUNING[context.scale]

    def on_all(run: "Trained") -> "Recipe":
        recipe = tuned(run.recipe, str(run.folder), steps=steps, lr=lr)
        return dataclasses.replace(recipe, loss=dataclasses.replace(recipe.loss, label_smoothing=0.0))

    return context.follow(runs, on_all, then="fine-tuned", what="data-size: fine-tuning on all of train")


def _scores(runs: "Sequence[Trained]", tuned: "Sequence[Trained]", measure: Any, shots: int) -> "dict[str, Sample]":
    from vitlab.studies.context import sample
    from vitlab.studies.findings import Sample

    scores = {
        AS_TRAINED: sample(runs),
        FEWSHOT: Sample(tuple(run.metric(measure, f"{shots}-shot").value for run in runs)),
    }
    return scores | ({TUNED: sample(tuned)} if tuned else {})


def _result(
    context: "Context",
    options: DataSizeOptions,
    grid: dict[str, tuple[str, float]],
    runs: "dict[str, list[Trained]]",
    chosen: "dict[str, Chosen]",
    found: "dict[str, dict[str, Sample]]",
) -> StudyResult:
    from vitlab.studies.drawing import lines

    images = {row: len(context.opened(own[0].recipe).splits["train"]) for row, own in runs.items()}
    rows = [
        [
            row,
            f"{images[row]:,}",
            chosen[row].option,
            *(found[row][what].percent() if what in found[row] else "–" for what in (AS_TRAINED, FEWSHOT, TUNED)),
        ]
        for row in found
    ]
    columns = ["", ">images", "regularisation", ">as trained %", f">{options.shots}-shot %", ">fine-tuned %"]
    panels = {
        what: {
            family: [(images[row], found[row][what]) for row in found if grid[row][0] == family and what in found[row]]
            for family in options.families
        }
        for what in (AS_TRAINED, FEWSHOT, TUNED)
    }
    numbers = {row: {what: each.to_json() for what, each in own.items()} for row, own in found.items()}
    selected = {row: {"option": choice.option, "scores": choice.scores} for row, choice in chosen.items()}
    return StudyResult(
        tables=(Table("ViT, BiT and a hybrid on growing parts of train", columns, rows),),
        findings=_findings(options, found),
        figure=lines(panels, across="training images", label="test accuracy, percent"),
        numbers={"scores": numbers, "images": images, "selected": selected},
    )


def _findings(options: DataSizeOptions, found: "dict[str, dict[str, Sample]]") -> list[str]:
    """ViT beside each other family at the smallest and the largest part, and whether that is the paper's order."""
    from vitlab.studies.findings import pair

    sentences: list[str] = []
    ends = dict.fromkeys((min(options.fractions), max(options.fractions)))
    for other in (family for family in options.families if family != "ViT"):
        pairs: list[tuple[Sample, Sample]] = []
        for part in ends:
            names = (_row("ViT", part), _row(other, part))
            if all(name in found for name in names):
                scores = {name: found[name][AS_TRAINED] for name in names}
                sentences.append(pair(*names, scores))
                pairs.append((scores[names[0]], scores[names[1]]))
        if len(pairs) == 2:
            sentences.append(order(other, *pairs))
    how = "Regularisation was chosen for each row on held-out images with one seed; all runs have the same steps."
    return [*sentences, how]


def order(other: str, least: "tuple[Sample, Sample]", most: "tuple[Sample, Sample]") -> str:
    """The paper's finding is that a ViT (the first of each two) is below on little data and above on much."""
    from vitlab.studies.findings import contrast, difference

    on_little, on_much = (_sign(difference(*each)) for each in (least, most))
    if (on_little, on_much) == (-1, 1):
        return f"The paper's order holds against the {other}: the ViT is below on little data and above on much."
    if (on_little, on_much) in ((-1, 0), (0, 1)):
        halves = "below on little data, and level on much" if on_little else "level on little data, and above on much"
        return f"Half of the paper's order holds against the {other}: the ViT is {halves}."
    if on_little == on_much == -1:
        change = contrast([(1, most[0]), (-1, most[1]), (-1, least[0]), (1, least[1])])
        moved = {1: "it comes nearer", 0: "no change is seen", -1: "it falls further behind"}[_sign(change)]
        return (
            f"The ViT is behind the {other} on the least data and on the most; with more data {moved}"
            f" ({change.interval()} points). It overtakes nowhere here."
        )
    return f"The paper's order (the ViT below on little data, above on much) is not seen here against the {other}."


def _sign(gap: "Difference") -> int:
    return 0 if not gap.is_seen else 1 if gap.value > 0 else -1


STUDY = Study(
    name="data-size",
    summary="ViT, BiT and a hybrid on growing parts of train: few-shot and fine-tuned",
    options=DataSizeOptions,
    run=run,
    examples=("--scale digits", "--scale digits --fractions 0.1 1 --families ViT BiT --seeds 5"),
    published="figures 3 and 4: ViT below BiT on little data, above on much",
)

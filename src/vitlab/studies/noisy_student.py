"""Rounds of Noisy Student: a supervised teacher, its student, the student's student, and so on, with every seed."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from vitlab.core.bounds import Fraction, PositiveInt, Probability
from vitlab.core.config import Choice, check_fields
from vitlab.studies.contract import Study, StudyResult

if TYPE_CHECKING:
    from vitlab.studies.context import Context
    from vitlab.training.recipe import Recipe

SUPERVISED, ALONE = "supervised", "supervised as students are"
RECIPES = {"digits": "digits", "cifar": "cifar10"}  # the recipes few-labels-... and noisy-student-... of each scale
SHORTER = {"cifar": ("1500 steps", 0.996)}  # the study's own length and ema, with the scale's ViT, not compiled


@dataclass(frozen=True, kw_only=True)
class NoisyStudentOptions:
    """Self-training in rounds: each student learns from the labels and its predecessor's predictions, with noise."""

    rounds: PositiveInt = 3  # the number of students, one after the other
    labelled: Fraction | None = None  # the fraction of train that has labels; by default the recipe's
    student: tuple[str, ...] = ()  # fields of the students' model, such as 'depth=6 width=96': equal or larger
    labels: Literal["soft", "hard"] = "soft"  # the teacher's probabilities, or its most probable class
    threshold: Probability | None = None  # below this confidence no prediction is a label; by default the recipe's
    quota: PositiveInt | None = None  # unlabelled images per class; by default the recipe's

    def __post_init__(self) -> None:
        check_fields(self)


def run(context: "Context", options: NoisyStudentOptions) -> StudyResult:
    from vitlab.studies.ablation import ablated
    from vitlab.studies.context import Trained, samples
    from vitlab.studies.findings import pair

    supervised, student = _recipes(context.scale, options)
    alone = replace(supervised, model=student.model, augmentation=student.augmentation)
    starts = {SUPERVISED: supervised} | ({ALONE: alone} if alone != supervised else {})
    rounds = [f"round {number}" for number in range(1, options.rounds + 1)]
    wanted = context.wanted([*starts, *rounds])
    later = [student] * (options.rounds * context.num_seeds)
    rows: dict[str, list[Trained]] = context.over_seeds(
        {row: recipe for row, recipe in starts.items() if row == SUPERVISED or row in wanted},
        whole=True,
        what="noisy-student: labels alone",
        later=later,
    )
    teachers = {run.recipe.seed: run for run in rows.get(SUPERVISED, [])}
    for number, row in enumerate(rounds, 1):
        left = [student] * ((options.rounds - number) * context.num_seeds)
        cells = [
            context.cell(f"{row}, seed {seed}", replace(_changed(student, teacher=str(teacher.folder)), seed=seed))
            for seed, teacher in teachers.items()
        ]
        found = context.map(cells, what=f"noisy-student: {row}", later=left) if cells else {}
        teachers = {run.recipe.seed: run for run in found.values()}
        rows |= {row: list(found.values())} if found else {}
    rows = {row: rows[row] for row in wanted if row in rows}
    scores = samples(rows)
    title = f"Noisy Student with labels for {supervised.data.labelled:.1%} of train"
    result = ablated(context, rows, scores, base=SUPERVISED, title=title)
    more = [pair(rounds[0], rounds[-1], scores)] if len({rounds[0], rounds[-1]} & scores.keys()) == 2 else []
    note = [f"{ALONE}: the students' model and augmentation, without a teacher."] if ALONE in rows else []
    return replace(result, findings=[*result.findings, *more, *note])


def _recipes(scale: str, options: NoisyStudentOptions) -> "tuple[Recipe, Recipe]":
    """The supervised recipe and a student's, by the options."""
    from vitlab.recipes import find_recipe

    found = (find_recipe(f"{kind}-{RECIPES[scale]}") for kind in ("few-labels", "noisy-student"))
    supervised, student = (_shorter(recipe, scale) if scale in SHORTER else recipe for recipe in found)
    if options.labelled is not None:
        data = replace(supervised.data, labelled=options.labelled)
        supervised, student = replace(supervised, data=data), replace(student, data=data)
    asked = {"labels": options.labels, "threshold": options.threshold, "quota": options.quota}
    given = {name: value for name, value in asked.items() if value is not None}
    own = {field.partition("=")[0] for field in options.student}
    kept = (field for field in student.model.set if field.partition("=")[0] not in own)
    model = replace(student.model, set=(*kept, *options.student))
    return supervised, _changed(replace(student, model=model), **given)


def _shorter(recipe: "Recipe", scale: str) -> "Recipe":
    """The recipe with the scale's own ViT, which keeps what else the recipe changes of a model."""
    from vitlab.recipes.scales import scale_recipe

    own, (total, ema) = scale_recipe(scale).model, SHORTER[scale]
    return replace(
        recipe,
        model=replace(recipe.model, source=own.source, set=(*recipe.model.set, *own.set)),
        optimizer=replace(recipe.optimizer, ema=ema),
        schedule=replace(recipe.schedule, total=total),
        compile=False,
        evaluate_every="0 steps",
        checkpoint_every="50%",
    )


def _changed(student: "Recipe", **options: Any) -> "Recipe":
    """The recipe with other options of its objective."""
    return replace(student, objective=Choice(student.objective.name, {**student.objective.options, **options}))


STUDY = Study(
    name="noisy-student",
    summary="self-training in rounds with few labels: each student learns from the one before it",
    options=NoisyStudentOptions,
    run=run,
    scales=tuple(RECIPES),
    examples=("--scale digits", "--scale digits --rounds 2 --labelled 0.05 --student depth=6"),
    published="the authors' SVHN: 97.9 supervised, 98.6 ± 0.1 with rounds",
)

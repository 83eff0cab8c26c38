"""Transfer by group of tasks, natural, specialised and structured: figure 2's bars.

The small scale has three tasks of its own, one for each group, made of the embedded digits; the others need VTAB-1k.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitlab.studies.contract import Study, StudyError, StudyResult, Table

if TYPE_CHECKING:
    from vitlab.studies.context import Context, Trained
    from vitlab.studies.findings import Sample
    from vitlab.training.recipe import Recipe

FAMILIES = ("ViT", "BiT", "hybrid")
STEPS, LR = 2500, 0.01  # VTAB's row of the paper's table 4
FEW_STEPS, FEW_LR = 120, 0.03  # of the small scale
CANVAS, PLACES = 16, (0, 4, 8)  # px; where a digit may stand in each direction
NUM_TRAIN = 1000


@dataclass(frozen=True, kw_only=True)
class VtabGroupsOptions:
    """Transfer by group of tasks: ViT, BiT and a hybrid, pre-trained at the scale, fine-tuned on a thousand images."""

    vtab: str | None = None
    """The folder that holds the tasks of VTAB-1k; without one, at the scale digits, three tasks made of digits."""


def made_tasks(folder: Path) -> dict[str, dict[str, str]]:
    """By group a task made of digits: which digit it is, how much ink it has, and where it stands."""
    import numpy as np
    from sklearn.datasets import load_digits

    from vitlab.core.files import atomic_file

    values, labels = load_digits(return_X_y=True)
    pictures = np.rint(np.asarray(values).reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
    rng = np.random.default_rng(0)
    order = rng.permutation(len(pictures))
    pictures, digits = pictures[order], np.asarray(labels, np.int64)[order]
    ink = pictures.reshape(len(pictures), -1).sum(axis=1)
    amount = np.searchsorted(np.quantile(ink, (1 / 3, 2 / 3)), ink)
    place = rng.integers(0, len(PLACES) ** 2, len(pictures))
    middle = np.full(len(pictures), len(PLACES) ** 2 // 2)
    made = {
        "natural": ("which digit", digits, middle),
        "specialised": ("how much ink", amount, middle),
        "structured": ("where it stands", place, place),
    }
    tasks: dict[str, dict[str, str]] = {}
    for group, (task, answer, where) in made.items():
        canvas = np.zeros((len(pictures), CANVAS, CANVAS), np.uint8)
        for number, (picture, spot) in enumerate(zip(pictures, where, strict=True)):
            top, left = PLACES[spot // len(PLACES)], PLACES[spot % len(PLACES)]
            canvas[number, top : top + 8, left : left + 8] = picture
        path = folder / "tasks" / f"{group}.npz"
        if not path.exists():
            with atomic_file(path) as partial:
                np.savez(
                    partial,
                    x_train=canvas[:NUM_TRAIN],
                    y_train=answer[:NUM_TRAIN],
                    x_test=canvas[NUM_TRAIN:],
                    y_test=answer[NUM_TRAIN:],
                )
        tasks[group] = {task: str(path)}
    return tasks


def _tasks(context: "Context", options: VtabGroupsOptions) -> dict[str, dict[str, str]]:
    """The tasks' data by group."""
    from vitlab.data.sources.published.vtab import GROUPS, find_tasks

    if options.vtab is None:
        if context.scale != "digits":
            raise StudyError("The study vtab-groups needs the folder of VTAB-1k's tasks at this scale: give --vtab.")
        return made_tasks(context.folder)
    found = find_tasks(Path(options.vtab))
    grouped = {group: {name: str(found[name]) for name in names if name in found} for group, names in GROUPS.items()}
    return {group: tasks for group, tasks in grouped.items() if tasks}


def run(context: "Context", options: VtabGroupsOptions) -> StudyResult:
    import dataclasses

    from vitlab.recipes.scales import scale_recipe, tuned
    from vitlab.studies.context import sample
    from vitlab.studies.paper import vtab_groups

    groups = _tasks(context, options)
    steps, lr = (FEW_STEPS, FEW_LR) if options.vtab is None else (STEPS, LR)
    number = sum(len(tasks) for tasks in groups.values())
    later = len(context.wanted(FAMILIES)) * context.num_seeds * number
    before = context.over_seeds(
        {family: scale_recipe(context.scale, family) for family in FAMILIES},
        what="vtab-groups: pre-training",
        later=later,
    )
    scores: dict[str, dict[str, Sample]] = {family: {} for family in before}
    for tasks in groups.values():
        for task, source in tasks.items():

            def on_task(run: "Trained", source: str = source) -> "Recipe":
                recipe = tuned(run.recipe, str(run.folder), steps=steps, lr=lr)
                parts = "" if options.vtab is None else "train=train+val,test=test"
                data = dataclasses.replace(recipe.data, source=source, parts=parts, val_fraction=0.0, division="hash")
                return dataclasses.replace(recipe, data=data)

            for family, own in context.follow(before, on_task, then=task, what=f"vtab-groups: {task}").items():
                scores[family][task] = sample(own)
    return _result(groups, scores, {} if options.vtab is None else vtab_groups())


def group_means(groups: Mapping[str, Mapping[str, str]], own: "Mapping[str, Sample]") -> "dict[str, Sample]":
    """For each seed the mean over a group's tasks; a group that lacks a task has none."""
    from vitlab.studies.findings import Sample

    found: dict[str, Sample] = {}
    for group, tasks in groups.items():
        if all(task in own for task in tasks):
            by_seed = zip(*(own[task].values for task in tasks), strict=False)
            found[group] = Sample(tuple(sum(values) / len(values) for values in by_seed))
    return found


def _result(
    groups: Mapping[str, Mapping[str, str]],
    scores: "Mapping[str, Mapping[str, Sample]]",
    published: Mapping[str, Mapping[str, float]],
) -> StudyResult:
    from vitlab.studies.drawing import bars
    from vitlab.studies.findings import HOW, against

    means = {family: group_means(groups, own) for family, own in scores.items()}
    rows: list[Sequence[str]] = []
    for group, tasks in groups.items():
        cells: Any = [means[family][group].percent() if group in means[family] else "–" for family in means]
        cells += [f"{100 * own[group]:.1f}" for own in published.values()]
        rows.append([f"{group} ({', '.join(tasks) if len(tasks) < 3 else f'{len(tasks)} tasks'})", *cells])
    findings: list[str] = []
    for group in groups:
        sentences = against("ViT", {family: own[group] for family, own in means.items() if group in own})
        how = [sentence for sentence in sentences if sentence.startswith(HOW)]
        findings = [each for each in findings if not each.startswith(HOW)]  # said once, at the end
        findings += [*(f"{group}: {sentence}" for sentence in sentences if sentence not in how), *how]
    grouped = {group: {family: own[group] for family, own in means.items() if group in own} for group in groups}
    columns = ["", *(f">{family}" for family in means), *(f">{model}, published" for model in published)]
    return StudyResult(
        tables=(Table("Transfer by group of tasks, test percent", columns, rows),),
        findings=findings,
        figure=bars(grouped, label="test accuracy, percent"),
        numbers={family: {task: each.to_json() for task, each in own.items()} for family, own in scores.items()},
    )


STUDY = Study(
    name="vtab-groups",
    summary="transfer to natural, specialised and structured tasks, by family",
    options=VtabGroupsOptions,
    run=run,
    examples=("--scale digits", "--scale imagenet --vtab vtab-1k/ --seeds 1"),
    published="figure 2: ViT-H/14 leads on natural and structured tasks, level on specialised ones",
)

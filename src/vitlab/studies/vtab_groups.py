"""Transfer by group of tasks, natural, specialised and structured: figure 2's bars.

The small scales have three tasks of their own, one for each group, made of their own pictures; imagenet needs VTAB-1k.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitlab.studies.contract import Study, StudyError, StudyResult, Table

if TYPE_CHECKING:
    from vitlab.data.contract import DataSet
    from vitlab.studies.context import Context, Trained
    from vitlab.studies.findings import Sample
    from vitlab.training.recipe import Recipe

FAMILIES = ("ViT", "BiT", "hybrid")
STEPS, LR = 2500, 0.01  # VTAB's row of the paper's table 4
NUM_TRAIN = 1000
NUM_PLACES = 3  # in each direction
MADE = {"natural": "which class", "specialised": "how bright", "structured": "where it stands"}
NOTE = (
    "Each group is one task made of the pictures of pre-training, at half the model's side on black: which class it is"
    " (the question of pre-training), how bright it is, where it stands. This is not VTAB, and one task says little of"
    " a group."
)


@dataclass(frozen=True, kw_only=True)
class VtabGroupsOptions:
    """Transfer by group of tasks: ViT, BiT and a hybrid, pre-trained at the scale, fine-tuned on a thousand images."""

    vtab: str | None = None
    """The folder that holds tasks of VTAB-1k; without one, three tasks made of the scale's own data."""


def make_tasks(tasks: Mapping[str, Mapping[str, str]], dataset: "DataSet", canvas: int) -> None:
    """Write the made tasks: pictures of half the canvas's side, in its middle or, where that is asked, somewhere.

    They are a thousand images of train, and all of test, which pre-training did not see.
    """
    import numpy as np
    from PIL import Image

    from vitlab.core.files import atomic_file
    from vitlab.data.decoding import read_picture

    rng, side = np.random.default_rng(0), canvas // 2
    arrays: dict[str, dict[str, Any]] = {group: {} for group in tasks}
    limits: Any = None
    for part in ("train", "test"):  # in this order: what is bright is told by the training images
        split = dataset.splits[part]
        chosen = rng.permutation(len(split))[: NUM_TRAIN if part == "train" else None]
        read = (read_picture(split.images.read(int(n)), split.images.where(int(n))) for n in chosen)
        pictures = np.stack([np.asarray(each.resize((side, side), Image.Resampling.BOX)) for each in read])
        light = pictures.mean(axis=(1, 2, 3))
        limits = np.quantile(light, (1 / 3, 2 / 3)) if limits is None else limits
        place = rng.integers(0, NUM_PLACES**2, len(pictures))
        middle = np.full(len(pictures), NUM_PLACES**2 // 2)
        answers = {
            "natural": (split.labels[chosen], middle),
            "specialised": (np.searchsorted(limits, light), middle),
            "structured": (place, place),
        }
        for group, (answer, where) in answers.items():
            arrays[group] |= {f"x_{part}": _placed(pictures, where, canvas), f"y_{part}": answer}
    for group, own in tasks.items():
        (path,) = own.values()
        with atomic_file(Path(path)) as partial:
            np.savez(partial, **arrays[group])


def _placed(pictures: Any, where: Any, canvas: int) -> Any:
    """Each picture on black, at the place that is asked for it, numbered by rows."""
    import numpy as np

    side, step = canvas // 2, canvas // 2 // (NUM_PLACES - 1)
    made = np.zeros((len(pictures), canvas, canvas, 3), np.uint8)
    for number, (picture, spot) in enumerate(zip(pictures, where, strict=True)):
        top, left = step * (spot // NUM_PLACES), step * (spot % NUM_PLACES)
        made[number, top : top + side, left : left + side] = picture
    return made


def _tasks(context: "Context", options: VtabGroupsOptions, dataset: "DataSet") -> dict[str, dict[str, str]]:
    """Where the tasks' data are, by group; made ones are known by the data that they are made of."""
    from vitlab.data.sources.published.vtab import GROUPS, find_tasks
    from vitlab.studies.cells import digest

    if options.vtab is None:
        if context.scale == "imagenet":
            raise StudyError("The study vtab-groups needs the folder of VTAB-1k's tasks at this scale: give --vtab.")
        folder, mark = context.folder / "tasks", digest(dataset.fingerprint)
        return {group: {task: str(folder / f"{group}-{mark}.npz")} for group, task in MADE.items()}
    found = find_tasks(Path(options.vtab))
    grouped = {group: {name: str(found[name]) for name in names if name in found} for group, names in GROUPS.items()}
    return {group: tasks for group, tasks in grouped.items() if tasks}


def run(context: "Context", options: VtabGroupsOptions) -> StudyResult:
    import dataclasses

    from vitlab.data.augmentation import Augmentation
    from vitlab.recipes.scales import TUNING, config_of, scale_recipe, tuned
    from vitlab.studies.context import sample
    from vitlab.studies.paper import vtab_groups

    recipes = {family: scale_recipe(context.scale, family) for family in FAMILIES}
    dataset = context.opened(context.on_data(recipes["ViT"]))
    groups, made = _tasks(context, options, dataset), options.vtab is None
    brief, lr = TUNING[context.scale]
    steps, lr = (2 * brief, lr) if made else (STEPS, LR)  # twice: the questions are others
    number = context.num_seeds * sum(len(tasks) for tasks in groups.values())
    later = [tuned(recipes[family], steps=steps, lr=lr) for family in context.wanted(FAMILIES)] * number
    before = context.over_seeds(recipes, what="vtab-groups: pre-training", later=later)
    if made and not all(Path(path).exists() for tasks in groups.values() for path in tasks.values()):
        make_tasks(groups, dataset, config_of(recipes["ViT"]).image_size[0])
    scores: dict[str, dict[str, Sample]] = {family: {} for family in before}
    for tasks in groups.values():
        for task, source in tasks.items():

            def on_task(run: "Trained", source: str = source) -> "Recipe":
                recipe = tuned(run.recipe, str(run.folder), steps=steps, lr=lr)
                parts = "" if made else "train=train+val,test=test"
                data = dataclasses.replace(recipe.data, source=source, parts=parts, val_fraction=0.0, division="hash")
                still = Augmentation(crop="resize", flip=0.0)  # which would move what stands somewhere
                return dataclasses.replace(recipe, data=data, augmentation=still if made else recipe.augmentation)

            for family, own in context.follow(before, on_task, then=task, what=f"vtab-groups: {task}").items():
                scores[family][task] = sample(own)
    result = _result(groups, scores, {} if made else vtab_groups(groups))
    return dataclasses.replace(result, findings=[*result.findings, NOTE]) if made else result


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

"""What a run is to do, from its recipe and its data: found out, and refused, before anything is computed."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from vitlab.core.config import Choice
from vitlab.core.errors import ConfigError, DataError, Error
from vitlab.core.random import torch_seed
from vitlab.core.registry import is_permitted
from vitlab.data.contract import UNLABELLED, DataSet, Split
from vitlab.data.open import hold_out, open_data
from vitlab.data.sources.arranged import PREFIX, arrange
from vitlab.data.sources.holdout import divide_by_class, fraction_of_train, labelled_part_of_train
from vitlab.data.sources.published.imagenet import REPORTED_ON_VAL
from vitlab.models.contract import Model
from vitlab.objectives import OBJECTIVES, collapse
from vitlab.objectives.contract import Criterion, Objective, Setting
from vitlab.tasks import TASKS
from vitlab.tasks.contract import Task
from vitlab.training.durations import Pace, steps
from vitlab.training.recipe import GIVEN, Recipe, chosen
from vitlab.training.run import RunError
from vitlab.training.schedules import ResolvedSchedule, resolve


@dataclass(frozen=True)
class Parts:
    """What is trained on, what selects, and what is only reported on."""

    train: Split  # for an objective without labels, the unlabelled images where there are some
    val: Split | None
    test: Split | None
    labelled: Split | None = None  # the set's train part, where the run is trained on unlabelled images instead

    @property
    def neighbours(self) -> Split:
        """Training images, with their labels where they have any."""
        return self.labelled or self.train


@dataclass(frozen=True)
class Intervals:
    """Every how many steps; 0: never but at the end."""

    log: int
    evaluate: int
    checkpoint: int


@dataclass(frozen=True)
class Given:
    """What the caller hands over as objects; a run that was started with them needs them again."""

    model: Model | torch.nn.Module | None = None
    objective: Objective | None = None


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A run before it is computed."""

    recipe: Recipe
    folder: Path
    dataset: DataSet
    task: Task
    parts: Parts
    schedule: ResolvedSchedule
    intervals: Intervals
    mixed: int  # steps in which images are mixed, where they are at all
    given: Given

    @property
    def scores_task(self) -> bool:
        """Whether the model is to answer the task; else it has no head, and the objective's loss selects."""
        return _objective_type(self.recipe, self.given).scores_task

    def words(self, scores: Mapping[str, float]) -> str:
        """The scores of an evaluation, or the metrics of steps, that are worth a word besides the loss."""
        return self.task.words(scores) if self.scores_task else collapse.words(scores)

    def model_fields(self) -> dict[str, Any]:
        """The fields of the model's configuration that follow from the task."""
        return self.task.fields(self.dataset) if self.scores_task else {"num_classes": 0}

    def objective(self, model: Model) -> Objective:
        """The recipe's objective for a model, or the one that was given; fresh parts are initialised by the seed."""
        recipe = self.recipe
        if self.given.objective is not None:
            return self.given.objective
        kind, options = chosen(OBJECTIVES, recipe.objective, where="objective")

        def criterion() -> Criterion:
            return self.task.criterion(recipe.loss, self.dataset, self.parts.train)

        setting = Setting(
            model=model, dataset=self.dataset, target=self.task.target, criterion=criterion, folder=self.folder
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(torch_seed(recipe.seed, "objective"))
            return kind.build(options, setting)


def _objective_type(recipe: Recipe, given: Given) -> type[Objective]:
    if not recipe.objective.name.startswith(GIVEN):
        return chosen(OBJECTIVES, recipe.objective, where="objective")[0].objective
    if given.objective is None:
        raise RunError(
            f"This run's objective ({recipe.objective.name.removeprefix(GIVEN)}) was given as an object: give it again,"
            " as vitlab.resume(run, objective=...)."
        )
    return type(given.objective)


def with_given(recipe: Recipe, given: Given) -> Recipe:
    """The recipe that says which parts were handed over as objects; a model of vitlab's has its own resolution."""
    if given.model is not None:
        name = f"{GIVEN}{type(given.model).__name__}"
        size = None if isinstance(given.model, Model) else recipe.model.image_size
        model = dataclasses.replace(recipe.model, source=name, pretrained=False, image_size=size)
        recipe = dataclasses.replace(recipe, model=model)
    if given.objective is not None:
        recipe = dataclasses.replace(recipe, objective=Choice(f"{GIVEN}{type(given.objective).__name__}"))
    return recipe


def make_plan(recipe: Recipe, folder: Path, dataset: DataSet, given: Given) -> Plan:
    """The plan of a run over a data set that was opened for it."""
    task, objective = task_of(recipe), _objective_type(recipe, given)
    parts = divide(dataset, labels=objective.scores_task)
    if objective.scores_task:
        task.check(dataset)
    if objective.needs_unlabelled and UNLABELLED not in dataset.splits:
        raise DataError(
            f"{recipe.objective.name} learns from images without labels too, and {dataset.name} has none: keep a part"
            " of the labels only (--data.labelled 0.1), or put images into a folder unlabelled/ beside train/."
        )
    if recipe.model.train_only == "head" and not objective.scores_task:
        raise ConfigError(
            f"model.train_only=head freezes all but the head, and {recipe.objective.name} trains a model without one:"
            " leave it out, or choose model.lora."
        )
    if recipe.data.balanced and "label" not in parts.train.targets:
        raise ConfigError(
            f"data.balanced draws every class equally often, and the images of {dataset.name} that"
            f" {recipe.objective.name} trains on have no labels: leave it out."
        )
    if recipe.patience is not None and parts.val is None:
        raise ConfigError("patience waits for a better score on a held-out part, and there is none: hold one out.")
    pace = Pace(recipe.batch_size, len(parts.train))
    schedule = resolve(recipe.schedule, pace)
    every = {
        name: steps(getattr(recipe, f"{name}_every"), pace, total=schedule.total)
        for name in ("log", "evaluate", "checkpoint")
    }
    return Plan(
        recipe=recipe,
        folder=folder,
        dataset=dataset,
        task=task,
        parts=parts,
        schedule=schedule,
        intervals=Intervals(**every),
        mixed=steps(recipe.augmentation.mix_until, pace, total=schedule.total),
        given=given,
    )


def task_of(recipe: Recipe) -> Task:
    """What a recipe's model is for."""
    kind, options = chosen(TASKS, recipe.task, where="task")
    return kind.build(options)


def divide(dataset: DataSet, *, labels: bool = True) -> Parts:
    """The parts of a set, of which there is one to train on; without labels, the unlabelled images where it has any."""
    train = dataset.splits.get("train")
    if train is None or len(train) == 0:
        raise Error(f"{dataset.name} has no training images.")
    val, test, unlabelled = (dataset.splits.get(name) for name in ("val", "test", UNLABELLED))
    return Parts(train, val, test) if labels or not unlabelled else Parts(unlabelled, val, test, labelled=train)


def open_parts(recipe: Recipe) -> DataSet:
    """The recipe's data: all parts that it needs, of train the fraction that it wants, and of that the labels."""
    dataset = _all_parts(recipe)
    if "train" not in dataset.splits:
        return dataset
    seed = recipe.data.subset_seed
    return labelled_part_of_train(fraction_of_train(dataset, recipe.data.fraction, seed), recipe.data.labelled, seed)


def _all_parts(recipe: Recipe) -> DataSet:
    """A set without parts is divided by class, and one without a validation part held out from.

    Of a set whose results are reported on its val part, that one is test, unless nothing is held out.
    """
    data = recipe.data
    source = f"{PREFIX}{data.parts}:{data.source}" if data.parts else data.source
    by_class = data.division == "class"
    dataset = open_data(source, val_fraction=0 if by_class else data.val_fraction)
    if by_class and dataset.undivided:
        return divide_by_class(dataset, data.val_fraction)
    only_val = dataset.splits.keys() - {UNLABELLED} == {"train", "val"}
    if dataset.name in REPORTED_ON_VAL and recipe.data.val_fraction and only_val:
        dataset = arrange(dataset, {"train": ("train",), "test": ("val",)})
    if "val" not in dataset.splits and "train" in dataset.splits:
        dataset = hold_out(dataset, recipe.data.val_fraction)
    return dataset


def planned_steps(recipe: Recipe, dataset: DataSet) -> tuple[int, int | None]:
    """How many steps a recipe makes over a data set, and after which of them nothing is mixed any more, if any."""
    name = recipe.objective.name
    known = is_permitted(name) and not name.startswith(GIVEN)  # of another's objective no more is known here
    parts = divide(dataset, labels=not known or _objective_type(recipe, Given()).scores_task)
    pace, how = Pace(recipe.batch_size, len(parts.train)), recipe.augmentation
    total = resolve(recipe.schedule, pace).total
    mixed = steps(how.mix_until, pace, total=total)
    return total, mixed if (how.mixup or how.cutmix) and 0 < mixed < total else None

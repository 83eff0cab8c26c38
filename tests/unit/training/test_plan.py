"""What a run is to do, refused before anything is computed; and recipes of earlier versions."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from torch import Tensor, nn

from changing import changed
from short_runs import short, small_set
from vitlab.core.config import Choice, to_dict
from vitlab.core.errors import ConfigError, DataError, Error, UnknownNameError
from vitlab.data.augmentation import Augmentation
from vitlab.data.batch import Batch
from vitlab.data.contract import DataSet, Split
from vitlab.models.contract import Model
from vitlab.models.create import create
from vitlab.objectives.contract import Metrics, Objective
from vitlab.objectives.supervised import Supervised
from vitlab.training.assembly import main_stream
from vitlab.training.model import build_model, check_model
from vitlab.training.plan import Given, Intervals, Plan, make_plan, open_parts, planned_steps, with_given
from vitlab.training.recipe import ModelChoice, Recipe, read_recipe
from vitlab.training.run import RunError
from vitlab.weights.load import save

__all__ = ["short", "small_set"]
HERE = Path("a run")


class Alone(Objective):
    """Learns from images alone."""

    scores_task = False

    def loss(self, model: Model, batch: Batch, progress: Tensor) -> tuple[Tensor, Metrics]:
        return model(batch.images).mean() + progress, {}


def plan_of(recipe: Recipe, given: Given | None = None) -> Plan:
    return make_plan(recipe, HERE, open_parts(recipe), given or Given())


@pytest.fixture
def unlabelled(short: Recipe, tmp_path: Path) -> Recipe:
    (tmp_path / "pictures").mkdir()
    for i in range(12):
        Image.new("RGB", (8, 8), (i, i, i)).save(tmp_path / "pictures" / f"{i}.png")
    return changed(short, **{"data.source": str(tmp_path / "pictures"), "data.val_fraction": 0.0})


def test_durations_become_steps(short: Recipe) -> None:
    """92 of 120 images are trained on, in batches of 16: 5.75 steps per epoch."""
    plan = plan_of(changed(short, **{"schedule.total": "5 epochs", "evaluate_every": "1 epoch", "log_every": "10%"}))
    assert (len(plan.parts.train), plan.schedule.total, plan.schedule.warmup) == (92, 29, 4)
    assert plan.intervals == Intervals(log=3, evaluate=6, checkpoint=8)
    assert planned_steps(plan.recipe, plan.dataset) == (29, None)


@pytest.mark.parametrize(("until", "places"), [("100%", None), ("50%", 14 * 16), ("10 steps", 160)])
def test_mixing_ends_with_a_part_of_the_run(short: Recipe, until: str, places: int | None) -> None:
    """29 steps of 16 images; half of them, rounded to an even number, are 14."""
    recipe = changed(
        short, **{"schedule.total": "5 epochs", "augmentation.mixup": 0.5, "augmentation.mix_until": until}
    )
    plan = plan_of(recipe)
    assert main_stream(plan, plan.parts.train, build_model(plan).preprocess).mix_until == places
    assert planned_steps(recipe, plan.dataset) == (29, None if places is None else places // 16)


def test_a_classifier_needs_labels(unlabelled: Recipe) -> None:
    with pytest.raises(DataError, match="has no labels, and a classifier learns from labels"):
        plan_of(unlabelled)


def test_a_classifier_needs_classes(short: Recipe) -> None:
    train = open_parts(short).splits["train"]
    ages = Split.labelled(train.images, np.linspace(0, 1, len(train), dtype=np.float32), "number")
    with pytest.raises(DataError, match="ages has numbers as labels, and a classifier learns classes"):
        make_plan(short, HERE, DataSet("ages", (), {"train": ages}, ""), Given())


def test_an_objective_that_needs_none_takes_images_alone(unlabelled: Recipe) -> None:
    given = Given(objective=Alone())
    plan = plan_of(with_given(unlabelled, given), given)
    assert not plan.scores_task
    assert plan.model_fields() == {"num_classes": 0}
    model = build_model(plan)
    assert model.config.num_classes == 0
    assert plan.objective(model) is given.objective


class Both(Alone):
    """Reads images without labels beside those with."""

    needs_unlabelled = True
    scores_task = True


def test_few_labels_are_an_epoch_and_without_labels_all_images_are(short: Recipe) -> None:
    """92 images of train, of which 9 keep their labels; a step is 16 images."""
    few = changed(short, **{"data.labelled": 0.1, "schedule.total": "40 epochs"})
    labelled = plan_of(few)
    other = plan_of(changed(few, **{"data.subset_seed": 1}))
    assert len(other.parts.train) == 9
    assert other.dataset.fingerprint != labelled.dataset.fingerprint
    assert (len(labelled.parts.train), len(labelled.parts.neighbours), labelled.schedule.total) == (9, 9, 22)
    assert len(labelled.dataset.splits["unlabelled"]) == 92
    given = Given(objective=Alone())
    bare = plan_of(with_given(few, given), given)
    assert (len(bare.parts.train), len(bare.parts.neighbours), bare.schedule.total) == (92, 9, 230)
    assert bare.parts.train.targets == {}
    assert planned_steps(few, labelled.dataset) == (22, None)
    assert planned_steps(dataclasses.replace(few, objective=Choice("mae")), labelled.dataset) == (230, None)


def test_who_reads_unlabelled_images_needs_some(short: Recipe) -> None:
    given = Given(objective=Both())
    recipe = with_given(short, given)
    with pytest.raises(DataError, match=r"has none: keep a part of the labels only \(--data\.labelled 0\.1\), or put"):
        plan_of(recipe, given)
    plan_of(changed(recipe, **{"data.labelled": 0.5}), given)


def test_a_model_that_is_given_keeps_its_resolution(short: Recipe) -> None:
    """A module sees pictures of any size; the recipe does not say of a model what is not so."""
    sized = changed(short, **{"model.image_size": 16, "model.train_only": "head"})
    of_model = with_given(sized, Given(model=create("vit-digits"))).model
    assert (of_model.source, of_model.image_size, of_model.train_only) == ("given:ViT", None, "head")
    assert with_given(sized, Given(model=nn.Flatten())).model.image_size == 16


@pytest.mark.parametrize("value", [0.0, -0.1, 1.5, float("nan")])
def test_a_labelled_part_is_a_fraction(short: Recipe, value: float) -> None:
    with pytest.raises(ConfigError, match="labelled must be above 0 and at most 1"):
        changed(short, **{"data.labelled": value})


def test_the_tasks_head_and_loss_are_the_datas(short: Recipe) -> None:
    plan = plan_of(short)
    assert plan.scores_task
    assert plan.model_fields() == {"num_classes": 3}
    model = build_model(plan)
    assert (model.config.num_classes, model.labels) == (3, ("0", "1", "2"))
    assert isinstance(plan.objective(model), Supervised)


def test_patience_needs_a_held_out_part(short: Recipe) -> None:
    with pytest.raises(ConfigError, match="patience waits for a better score on a held-out part, and there is none"):
        plan_of(changed(short, patience=2, **{"data.val_fraction": 0.0}))
    assert plan_of(changed(short, patience=2)).parts.val is not None


@pytest.mark.parametrize("drawn", [{"data.repeats": 3}, {"data.balanced": True}])
def test_each_held_out_image_is_seen_once_however_training_images_are_drawn(
    short: Recipe, drawn: dict[str, object]
) -> None:
    plan = plan_of(changed(short, objective=Choice("simclr"), augmentation=Augmentation(), **drawn))
    assert plan.parts.val is not None
    held, trained = (
        main_stream(plan, split, create("vit-digits").preprocess).order for split in (plan.parts.val, plan.parts.train)
    )
    assert sorted(held.index(place) for place in range(held.num)) == list(range(len(plan.parts.val)))
    assert len({trained.index(place) for place in range(trained.num)}) < len(plan.parts.train)


def test_classes_cannot_be_drawn_alike_where_images_have_none(short: Recipe) -> None:
    few = {"data.balanced": True, "data.labelled": 0.5, "augmentation": Augmentation()}
    with pytest.raises(ConfigError, match=r"data.balanced draws .* simclr trains on have no labels: leave it out"):
        plan_of(changed(short, objective=Choice("simclr"), **few))
    assert plan_of(changed(short, objective=Choice("fixmatch"), **few)).recipe.data.balanced


def test_a_head_alone_is_refused_where_there_is_none(short: Recipe) -> None:
    recipe = changed(short, **{"model.train_only": "head", "objective": Choice("simclr")})
    with pytest.raises(ConfigError, match="simclr trains a model without one"):
        plan_of(recipe)
    assert plan_of(changed(short, **{"model.train_only": "head"})).scores_task


def test_a_given_objective_is_given_again(short: Recipe) -> None:
    recipe = with_given(short, Given(objective=Alone()))
    assert recipe.objective == Choice("given:Alone")
    with pytest.raises(RunError, match=r"objective \(Alone\) was given as an object: give it again, as vitlab\.resume"):
        plan_of(recipe)
    assert read_recipe(to_dict(recipe), where="recipe.json") == recipe


def test_a_given_model_is_given_again(short: Recipe) -> None:
    with pytest.raises(RunError, match=r"model \(Net\) was given as an object: give it again, as vitlab\.resume"):
        build_model(plan_of(changed(short, **{"model.source": "given:Net"})))


@pytest.mark.parametrize("splits", [{}, {"train": 0}])
def test_nothing_to_train_on_is_refused(short: Recipe, splits: dict[str, int]) -> None:
    dataset = open_parts(short)
    none = {name: dataset.splits["train"].take(np.arange(num)) for name, num in splits.items()}
    with pytest.raises(Error, match="empty has no training images"):
        make_plan(short, HERE, DataSet("empty", dataset.classes, none, ""), Given())


def test_classes_that_are_too_small_are_refused(short: Recipe) -> None:
    dataset = open_parts(short)
    train = dataset.splits["train"]
    rows = np.concatenate([np.flatnonzero(train.labels != 2), np.flatnonzero(train.labels == 2)[:1]])
    few = DataSet("few", dataset.classes, {"train": Split(train.take(rows).images, train.take(rows).targets)}, "")
    with pytest.raises(Error, match="the class '2' has fewer than two images"):
        make_plan(short, HERE, few, Given())


def old(short: Recipe, teacher: dict[str, Any]) -> dict[str, Any]:
    """A recipe as an earlier version wrote it."""
    fields = to_dict(short)
    del fields["objective"], fields["task"]
    return {**fields, "teacher": teacher}


def test_an_old_recipe_with_a_teacher_is_a_distillation(short: Recipe) -> None:
    teacher = {"source": "runs/big", "kind": "soft", "alpha": 0.1, "tau": 2.0}
    recipe = read_recipe(old(short, teacher), where="recipe.json")
    options = {"teacher": "runs/big", "kind": "soft", "alpha": 0.1, "tau": 2.0}
    assert recipe == changed(short, objective={"name": "distillation", **options})
    assert recipe.objective == Choice("distillation", options)


def test_an_old_recipe_without_a_teacher_is_supervised(short: Recipe) -> None:
    teacher = {"source": None, "kind": "hard", "alpha": 0.5, "tau": 3.0}
    assert read_recipe(old(short, teacher), where="recipe.json") == short


@pytest.mark.parametrize(
    ("objective", "error", "sentence"),
    [
        ("supervise", UnknownNameError, "There is no objective named 'supervise'. Did you mean supervised?"),
        ({"name": "distillation", "alfa": 1}, ConfigError, "objective: there is no field 'alfa'. Did you mean alpha?"),
        ({"name": "distillation", "kind": "mild"}, ConfigError, "objective: kind must be hard | soft, not 'mild'."),
    ],
)
def test_an_objective_is_checked_with_the_recipe(
    short: Recipe, objective: Any, error: type[Error], sentence: str
) -> None:
    with pytest.raises(error) as caught:
        changed(short, objective=objective)
    assert str(caught.value) == sentence


def test_options_that_are_not_given_are_filled_in(short: Recipe) -> None:
    recipe = changed(short, objective={"name": "distillation", "teacher": "x"})
    assert recipe.objective.options == {"teacher": "x", "kind": "hard", "alpha": 0.5, "tau": 3.0}
    assert to_dict(recipe)["objective"] == {"name": "distillation", **recipe.objective.options}


def test_weights_that_are_not_asked_for_are_pointed_at(tmp_path: Path) -> None:
    """A folder or the package's model as the source of an architecture: what is meant is its weights."""
    save(create("vit-digits"), tmp_path / "model")
    for source in (str(tmp_path / "model"), "vitlab/tiny"):
        with pytest.raises(ConfigError, match=rf"'{source}' is no model of the zoo.* add --model.pretrained"):
            check_model(ModelChoice(source=source))
        check_model(ModelChoice(source=source, pretrained=True))
    with pytest.raises(UnknownNameError, match="There is no model named 'vit-digit'. Did you mean"):
        check_model(ModelChoice(source="vit-digit"))

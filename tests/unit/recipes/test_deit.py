"""DeiT's change of resolution against the command in its authors' README."""

import pytest

from vitlab.core.config import Choice
from vitlab.recipes import find_recipe
from vitlab.recipes.deit import AUGMENTATION, deit_finetuning
from vitlab.training.durations import Pace
from vitlab.training.schedules import resolve


@pytest.mark.parametrize("name", ["deit-b16-384-imagenet", "deit-b16-384-imagenet-distilled"])
def test_thirty_epochs_at_a_constant_rate(name: str) -> None:
    recipe = find_recipe(name)
    assert (recipe.model.image_size, recipe.model.pretrained, recipe.model.keep_head) == (384, True, True)
    assert (recipe.optimizer.lr, recipe.optimizer.weight_decay, recipe.batch_size) == (5e-6, 1e-8, 512)
    assert recipe.augmentation == AUGMENTATION
    assert recipe.data.repeats == 3
    schedule = resolve(recipe.schedule, Pace(recipe.batch_size, 1_281_167))
    assert schedule.total == pytest.approx(30 * 1_281_167 / 512, abs=1)
    assert schedule.factor(schedule.warmup) == schedule.factor(schedule.total - 1) == 1


def test_only_the_distilled_one_has_a_teacher() -> None:
    assert find_recipe("deit-b16-384-imagenet").objective == Choice("supervised")
    distilled = find_recipe("deit-b16-384-imagenet-distilled").objective
    assert (distilled.name, distilled.options["kind"]) == ("distillation", "hard")


def test_the_rate_follows_the_batch() -> None:
    recipe = deit_finetuning("x", "deit-s16-224.in1k", objective=Choice("supervised"), batch_size=64)
    assert recipe.optimizer.lr == pytest.approx(5e-6 / 8)

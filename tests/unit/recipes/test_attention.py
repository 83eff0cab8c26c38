"""The recipes of the related families: what sets them apart from a ViT's."""

import pytest

from vitlab.recipes import find_recipe
from vitlab.training.durations import Pace
from vitlab.training.schedules import resolve


@pytest.mark.parametrize("patch", [16, 32])
def test_axial_is_trained_as_the_vit_of_its_size(patch: int) -> None:
    axial, vit = find_recipe(f"axial-vit-b{patch}-jft"), find_recipe(f"vit-b{patch}-jft")
    assert axial.model.source == f"axial-vit-b{patch}-224"
    assert (axial.optimiser, axial.schedule, axial.loss) == (vit.optimiser, vit.schedule, vit.loss)
    assert axial.schedule.total == "7 epochs"


@pytest.mark.parametrize("layers", [26, 38, 50])
def test_stand_alone_attention(layers: int) -> None:
    recipe = find_recipe(f"sasa-{layers}-imagenet")
    assert (recipe.optimiser.name, recipe.optimiser.nesterov, recipe.optimiser.momentum) == ("sgd", True, 0.9)
    schedule = resolve(recipe.schedule, Pace(recipe.batch_size, 1_281_167))
    assert (schedule.warmup, schedule.total) == (3128, 40_662)  # 10 and 130 epochs of 312.8 steps
    assert schedule.factor((schedule.warmup + schedule.total) // 2) == pytest.approx(0.5, abs=1e-3)


def test_non_local_has_a_rate_of_a_tenth_for_256_images() -> None:
    recipe = find_recipe("nonlocal-r50-imagenet")
    assert recipe.optimiser.rate / recipe.batch_size == pytest.approx(0.1 / 256)
    assert recipe.optimiser.weight_decay == 0  # what decays is in the gradient: l2
    assert recipe.optimiser.l2 == 1e-4

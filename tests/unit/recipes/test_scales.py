"""The recipes of studies: lengths, parts of train, and models that can be built."""

import dataclasses
from typing import Any

import pytest
import torch

from vitlab.core.errors import ConfigError
from vitlab.models.counts import count_flops
from vitlab.models.create import empty_model
from vitlab.recipes.scales import FAMILIES, config_of, on_part, scale_recipe, steps_times, with_batches, with_model
from vitlab.training.durations import Pace
from vitlab.training.schedules import resolve

IMAGES = 1_281_167


@pytest.mark.parametrize("scale", ["digits", "cifar", "tiny-imagenet", "imagenet"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_part_of_train_has_the_steps_of_all(scale: str, family: str) -> None:
    recipe = scale_recipe(scale, family)  # pyright: ignore[reportArgumentType]
    part = on_part(recipe, 0.05)
    assert part.data.fraction == 0.05
    whole = resolve(recipe.schedule, Pace(recipe.batch_size, IMAGES))
    some = resolve(part.schedule, Pace(recipe.batch_size, round(0.05 * IMAGES)))
    assert some.total == pytest.approx(whole.total, rel=1e-4)
    assert some.drops == pytest.approx(whole.drops, rel=1e-3)
    longer = resolve(steps_times(recipe, 2).schedule, Pace(recipe.batch_size, IMAGES))
    assert longer.total == pytest.approx(2 * whole.total, rel=1e-4)
    assert longer.drops == pytest.approx([2 * drop for drop in whole.drops], rel=1e-3)


@pytest.mark.parametrize("scale", ["digits", "cifar"])
def test_smaller_batches_have_so_many_times_the_steps(scale: str) -> None:
    recipe = scale_recipe(scale)
    small = with_batches(recipe, 4, factor=3)
    steps = [resolve(each.schedule, Pace(each.batch_size, 49_000)).total for each in (recipe, small)]
    assert small.batch_size == 4
    assert steps[1] == pytest.approx(3 * steps[0], rel=1e-3)


def test_families_cost_alike_on_cifar() -> None:
    """As the paper compares them; the first unit of a ResNet sees the pictures' own 32 px, as ResNets for CIFAR do."""
    models: dict[str, Any] = {family: empty_model(config_of(scale_recipe("cifar", family))) for family in FAMILIES}
    costs = [count_flops(model) for model in models.values()]
    assert max(costs) < 1.1 * min(costs)
    for family in ("BiT", "hybrid"):
        assert models[family].root(torch.zeros(1, 3, 32, 32, device="meta")).shape[-2:] == (32, 32)


def test_changes_of_the_model() -> None:
    recipe = with_model(scale_recipe("digits"), depth=7, image_size=24)
    assert (config_of(recipe).depth, config_of(recipe).image_size, config_of(recipe).width) == (7, (24, 24), 32)
    assert config_of(with_model(recipe, depth=2)).depth == 2


def test_families_have_their_optimizers() -> None:
    assert [scale_recipe("digits", family).optimizer.name for family in FAMILIES] == ["adamw", "sgd", "adamw"]
    assert scale_recipe("cifar", "BiT", optimizer="adamw").optimizer.name == "adamw"
    assert dataclasses.asdict(scale_recipe("imagenet"))["batch_size"] == 4096
    with pytest.raises(ConfigError, match="There is no scale 'jft': digits, cifar, tiny-imagenet, imagenet"):
        scale_recipe("jft")

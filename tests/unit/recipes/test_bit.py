"""BiT's pre-training against its paper's figures, and BiT-HyperRule against those of its authors' code."""

import pytest

from vitlab.recipes import find_recipe
from vitlab.recipes.bit import bit_recipe, hyperrule
from vitlab.training.durations import Pace
from vitlab.training.schedules import resolve


@pytest.mark.parametrize(
    ("num_images", "supports", "mixup"),  # the end of warm-up, three drops, the end
    [
        (19_999, (100, 200, 300, 400, 500), 0.0),
        (20_000, (500, 3000, 6000, 9000, 10_000), 0.1),
        (499_999, (500, 3000, 6000, 9000, 10_000), 0.1),
        (500_000, (500, 6000, 12_000, 18_000, 20_000), 0.1),
    ],
)
def test_the_schedule_follows_the_number_of_images(num_images: int, supports: tuple[int, ...], mixup: float) -> None:
    recipe = bit_recipe("x", "bit-r50x1.in21k", num_images=num_images, picture=(100, 100))
    schedule = resolve(recipe.schedule, Pace(recipe.batch_size, num_images))
    assert (schedule.warmup, *schedule.drops, schedule.total) == supports
    lrs = [recipe.optimizer.lr * schedule.factor(step) for step in supports[:-1]]
    assert lrs == pytest.approx([0.003, 0.0003, 0.00003, 0.000003])
    assert recipe.augmentation.mixup == mixup


@pytest.mark.parametrize(
    ("picture", "sizes"),
    [((32, 32), (160, 128)), ((95, 96), (160, 128)), ((96, 96), (512, 480)), ((64, 500), (512, 480))],
)
def test_the_resolution_follows_the_pictures(picture: tuple[int, int], sizes: tuple[int, int]) -> None:
    rule = hyperrule(1000, picture)
    assert (rule.resize, rule.crop) == sizes


def test_named_recipes() -> None:
    cifar = find_recipe("bit-cifar10")
    assert (cifar.model.image_size, cifar.augmentation.crop_part, cifar.batch_size) == (128, 0.8, 512)
    assert (cifar.optimizer.name, cifar.optimizer.momentum, cifar.optimizer.weight_decay) == ("sgd", 0.9, 0.0)
    pets = find_recipe("bit-pets")
    assert (pets.model.image_size, pets.schedule.total, pets.augmentation.mixup) == (480, "500 steps", 0.0)


@pytest.mark.parametrize(
    ("data", "num_images", "epochs"),
    [
        ("imagenet", 1_281_167, (30, 60, 80, 90)),
        ("imagenet21k", 14_000_000, (30, 60, 80, 90)),
        ("jft", 303_000_000, (10, 23, 30, 37, 40)),
    ],
)
def test_pretraining_drops_after_the_papers_epochs(data: str, num_images: int, epochs: tuple[int, ...]) -> None:
    recipe = find_recipe(f"bit-r152x4-{data}")
    assert recipe.model.source == "bit-r152x4"
    schedule = resolve(recipe.schedule, Pace(recipe.batch_size, num_images))
    assert [*schedule.drops, schedule.total] == pytest.approx([epoch * num_images / 4096 for epoch in epochs], abs=1)
    assert (schedule.warmup, schedule.drop) == (5000, 0.1)
    assert recipe.optimizer.lr == pytest.approx(0.03 * 16)  # .03 for each 256 of 4096
    assert (recipe.optimizer.name, recipe.optimizer.momentum, recipe.optimizer.l2) == ("sgd", 0.9, 1e-4)


@pytest.mark.parametrize("data", ["imagenet", "imagenet21k"])
def test_the_sizes_of_vits_figures_are_there(data: str) -> None:
    """BiT's own five of figure 3, and the ResNets of figure 5."""
    for size in ("r50x1", "r101x1", "r50x3", "r101x3", "r152x4", "r50x2", "r152x1", "r152x2", "r200x3"):
        recipe = find_recipe(f"bit-{size}-{data}")
        assert (recipe.model.source, recipe.data.source) == (f"bit-{size}", data)
        assert recipe.loss.kind == ("auto" if data == "imagenet" else "sigmoid")
    for name, model in (("bit-r152x2-jft-14ep", "bit-r152x2"), ("bit-r200x3-jft", "bit-r200x3")):
        assert (find_recipe(name).model.source, find_recipe(name).schedule.total) == (model, "14 epochs")

"""CoAtNet's recipes against its paper's table 10: pre-training, and fine-tuning on ImageNet."""

import pytest

from vitlab.recipes import find_recipe
from vitlab.training.durations import Pace
from vitlab.training.recipe import Recipe
from vitlab.training.schedules import resolve


@pytest.mark.parametrize(
    ("data", "num_images", "drop_paths", "lrs"),
    [
        ("imagenet", 1_281_167, {0: 0.2, 1: 0.3, 2: 0.5, 3: 0.7}, (1e-3, 1e-3, 1e-3, 1e-3)),
        ("imagenet21k", 14_000_000, {2: 0.3, 3: 0.5, 4: 0.7}, (1e-3, 1e-3, 1e-3)),
        ("jft", 303_000_000, {3: 0.0, 4: 0.1, 5: 0.0, 6: 0.0, 7: 0.0}, (1e-3, 5e-4, 5e-4, 5e-4, 5e-4)),
    ],
)
def test_sizes_of_coatnet(data: str, num_images: int, drop_paths: dict[int, float], lrs: tuple[float, ...]) -> None:
    for (number, drop_path), lr in zip(drop_paths.items(), lrs, strict=True):
        recipe = find_recipe(f"coatnet-{number}-{data}")
        assert (recipe.model.drop_path, recipe.optimizer.lr, recipe.batch_size) == (drop_path, lr, 4096)
        assert (recipe.optimizer.clip, recipe.optimizer.ema) == (1.0, None)  # no averaging in pre-training
        schedule = resolve(recipe.schedule, Pace(recipe.batch_size, num_images))
        assert lr * schedule.factor(schedule.warmup) == pytest.approx(lr)
        assert lr * schedule.factor(schedule.total) == pytest.approx(1e-5)


@pytest.mark.parametrize(
    ("name", "kind", "total", "warmup", "weight_decay", "loss", "smoothing", "magnitude", "mixup"),
    [
        ("coatnet-2-imagenet", "cosine", "300 epochs", "10k steps", 0.05, "auto", 0.1, 15, 0.8),
        ("coatnet-2-imagenet21k", "linear", "90 epochs", "5 epochs", 0.01, "sigmoid", 1e-4, None, 0.0),
        ("coatnet-3-jft", "linear", "14 epochs", "20k steps", 0.01, "sigmoid", 1e-4, 5, 0.0),
    ],
)
def test_sets_of_coatnet(
    name: str,
    kind: str,
    total: str,
    warmup: str,
    weight_decay: float,
    loss: str,
    smoothing: float,
    magnitude: float | None,
    mixup: float,
) -> None:
    recipe = find_recipe(name)
    assert (recipe.schedule.kind, recipe.schedule.total, recipe.schedule.warmup) == (kind, total, warmup)
    assert recipe.optimizer.weight_decay == weight_decay
    assert (recipe.loss.kind, recipe.loss.label_smoothing) == (loss, smoothing)
    assert recipe.augmentation.mixup == mixup
    check_randaugment(recipe, magnitude)


def check_randaugment(recipe: Recipe, magnitude: float | None) -> None:
    """Two operations of this magnitude; or none."""
    aug = recipe.augmentation
    if magnitude is None:
        assert aug.policy == "none"
    else:
        assert (aug.policy, aug.num_ops, aug.magnitude) == ("randaugment-official", 2, magnitude)


@pytest.mark.parametrize(
    ("name", "drop_path", "magnitude", "mixup", "batch"),
    [
        ("coatnet-0-384-imagenet", 0.2, 15, 0.8, 512),
        ("coatnet-1-384-imagenet", 0.3, 15, 0.8, 512),
        ("coatnet-2-384-imagenet", 0.5, 15, 0.8, 512),
        ("coatnet-3-384-imagenet", 0.7, 20, 0.8, 512),  # 20 by the table's footnote
        ("coatnet-2-384-imagenet-from-imagenet21k", 0.3, None, 0.0, 1024),
        ("coatnet-3-384-imagenet-from-imagenet21k", 0.5, None, 0.0, 1024),
        ("coatnet-4-384-imagenet-from-imagenet21k", 0.7, None, 0.0, 1024),
        ("coatnet-3-384-imagenet-from-jft", 0.1, 5, 0.0, 512),
        ("coatnet-4-512-imagenet-from-jft", 0.3, 5, 0.0, 512),
        ("coatnet-5-512-imagenet-from-jft", 0.2, 5, 0.0, 512),
        ("coatnet-6-512-imagenet-from-jft", 0.2, 5, 0.0, 512),  # as 5: the table ends there
        ("coatnet-7-512-imagenet-from-jft", 0.2, 5, 0.0, 512),
    ],
)
def test_fine_tuning_of_coatnet(name: str, drop_path: float, magnitude: float | None, mixup: float, batch: int) -> None:
    recipe = find_recipe(name)
    _, number, size, *_ = name.split("-")
    before = name.rpartition("-from-")[2] if "-from-" in name else "imagenet"
    assert find_recipe(recipe.model.source.removeprefix("runs/")).name == f"coatnet-{number}-{before}"
    assert (recipe.model.pretrained, recipe.model.keep_head) == (True, False)
    assert (recipe.model.image_size, recipe.data.source) == (int(size), "imagenet")
    assert (recipe.model.drop_path, recipe.augmentation.mixup, recipe.batch_size) == (drop_path, mixup, batch)
    check_randaugment(recipe, magnitude)
    assert (recipe.loss.kind, recipe.loss.label_smoothing) == ("auto", 0.1)
    optimizer = recipe.optimizer
    assert (optimizer.name, optimizer.weight_decay, optimizer.clip, optimizer.ema) == ("adamw", 1e-8, 1.0, 0.9999)
    schedule = resolve(recipe.schedule, Pace(batch, 1_281_167))
    assert schedule.total == pytest.approx(30 * 1_281_167 / batch, abs=1)
    assert {optimizer.lr * schedule.factor(step) for step in (0, 1, 1000, schedule.total)} == {5e-5}  # no warm-up


def test_cvt_w24_is_pretrained_and_tuned_as_its_paper_says() -> None:
    """Section 4.1: weight decay .1, batches of 2048 at 224 px; then ViT's fine-tuning at 384 px."""
    before = find_recipe("cvt-w24-imagenet21k")
    assert (before.model.source, before.model.image_size, before.data.source) == ("cvt-w24", 224, "imagenet21k")
    assert (before.optimizer.name, before.optimizer.weight_decay, before.batch_size) == ("adamw", 0.1, 2048)
    for name, steps in (("cvt-w24-384-imagenet", "20000 steps"), ("cvt-w24-384-cifar100", "10000 steps")):
        tuned = find_recipe(name)
        assert (tuned.model.source, tuned.model.image_size) == ("runs/cvt-w24-imagenet21k", 384)
        assert (tuned.optimizer.name, tuned.optimizer.momentum, tuned.batch_size) == ("sgd", 0.9, 512)
        assert tuned.schedule.total == steps
    assert find_recipe("cvt-13-imagenet").model.image_size is None

"""Later recipes against their authors' public configurations."""

from pathlib import Path

import pytest

from changing import changed
from short_runs import small_set
from vitlab.data.open import open_data
from vitlab.models.create import create
from vitlab.models.vit import ViTConfig
from vitlab.recipes import find_recipe
from vitlab.training.durations import Pace
from vitlab.training.model import build_model
from vitlab.training.plan import Given, make_plan
from vitlab.training.schedules import resolve
from vitlab.weights.load import save

__all__ = ["small_set"]  # a fixture


@pytest.mark.parametrize("epochs", [90, 300])
def test_vit_s16_sees_what_its_authors_configuration_says(epochs: int) -> None:
    """decode_jpeg_and_inception_crop(224)|flip_lr|randaug(2,10), mixup of .2."""
    aug = find_recipe(f"vit-s16-imagenet-{epochs}ep").augmentation
    assert (aug.policy, aug.num_ops, aug.magnitude) == ("randaugment-official", 2, 10.0)
    assert (aug.crop, aug.crop_area, aug.flip) == ("paper", (0.05, 1.0), 0.5)
    assert (aug.mixup, aug.cutmix, aug.erase, aug.jitter) == (0.2, 0.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("name", "size", "lr", "drop_path"),
    [("deit3-s16-imagenet", 224, 4e-3, 0.05), ("deit3-b16-imagenet", 192, 3e-3, 0.2)],
)
def test_deit3_has_the_figures_of_its_authors_commands(name: str, size: int, lr: float, drop_path: float) -> None:
    recipe = find_recipe(name)
    assert (recipe.model.image_size, recipe.model.drop_path) == (size, drop_path)
    assert (recipe.optimizer.name, recipe.optimizer.lr, recipe.optimizer.weight_decay) == ("lamb", lr, 0.05)
    assert (recipe.batch_size, recipe.data.repeats, recipe.loss.label_smoothing) == (2048, 3, 0.0)
    assert (recipe.augmentation.mixup, recipe.augmentation.cutmix, recipe.augmentation.jitter) == (0.8, 1.0, 0.3)
    schedule = resolve(recipe.schedule, Pace(recipe.batch_size, 1_281_167))
    assert schedule.total == pytest.approx(800 * 1_281_167 / 2048, abs=1)
    assert lr * schedule.factor(schedule.total) == pytest.approx(1e-5)  # their code's min-lr


@pytest.mark.parametrize(
    ("name", "before", "size", "drop_path"),
    [
        ("deit3-b16-224-imagenet", "deit3-b16-imagenet", 224, 0.2),
        ("deit3-s16-384-imagenet", "deit3-s16-imagenet", 384, 0.0),
    ],
)
def test_deit3_goes_on_as_its_authors_commands_do(name: str, before: str, size: int, drop_path: float) -> None:
    """--batch 64 on 8 GPUs --lr 1e-5 --epochs 20 --weight-decay 0.1 --reprob 0.0 --smoothing 0.1 --no-repeated-aug."""
    recipe, aug = find_recipe(name), find_recipe(name).augmentation
    assert recipe.model.source == f"runs/{find_recipe(before).name}"
    assert (recipe.model.pretrained, recipe.model.keep_head, recipe.model.image_size) == (True, True, size)
    assert (recipe.optimizer.name, recipe.optimizer.lr, recipe.optimizer.weight_decay) == ("adamw", 1e-5, 0.1)
    assert (recipe.batch_size, recipe.data.repeats, recipe.optimizer.clip) == (512, 1, None)
    assert (recipe.loss.kind, recipe.loss.label_smoothing) == ("auto", 0.1)  # no --bce-loss
    assert (aug.policy, aug.magnitude, aug.magnitude_std, aug.op_prob) == ("randaugment", 9.0, 0.5, 0.5)
    assert (aug.erase, aug.mixup, aug.cutmix, aug.jitter, aug.crop_area) == (0.0, 0.8, 1.0, 0.0, (0.08, 1.0))
    schedule = resolve(recipe.schedule, Pace(recipe.batch_size, 1_281_167))
    assert schedule.total == pytest.approx(20 * 1_281_167 / 512, abs=1)
    assert schedule.warmup == pytest.approx(5 * 1_281_167 / 512, abs=1)
    assert schedule.factor(schedule.total - 1) == 1
    assert recipe.model.drop_path == drop_path


def test_a_drop_path_of_zero_replaces_the_sources(small_set: Path, tmp_path: Path) -> None:
    save(create("vit-digits", num_classes=3, drop_path=0.05), tmp_path / "trained")
    recipe = find_recipe("deit3-s16-384-imagenet")
    recipe = changed(recipe, **{"model.source": str(tmp_path / "trained"), "model.image_size": 16})
    dataset = open_data(str(small_set), val_fraction=0.0)
    model = build_model(make_plan(recipe, tmp_path, dataset, Given()))
    assert isinstance(model.config, ViTConfig)
    assert model.config.drop_path == 0


@pytest.mark.parametrize("epochs", [90, 300])
def test_vit_s16_has_the_hidden_layer_of_big_visions_configuration(epochs: int) -> None:
    recipe = find_recipe(f"vit-s16-imagenet-{epochs}ep")
    assert recipe.model.representation  # rep_size=True
    assert set(recipe.model.set) == {"positions=sincos2d", "class_token=false", "pool=mean"}
    assert recipe.optimizer.weight_decay == pytest.approx(1e-4 / 1e-3)  # theirs is not multiplied by the rate
    assert (recipe.optimizer.lr, recipe.optimizer.clip, recipe.batch_size) == (1e-3, 1.0, 1024)

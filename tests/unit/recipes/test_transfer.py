"""The resolution at which a model is fine-tuned on a GPU."""

from typing import Any

import pytest

from vitlab.core.config import from_dict
from vitlab.data.augmentation import Augmentation
from vitlab.models.bit import BiTConfig
from vitlab.models.create import change, empty_model, family_of
from vitlab.models.timm.build import TimmConfig
from vitlab.models.zoo.rows import ZOO, find_row
from vitlab.recipes.transfer import SMALL, transfer_recipe
from vitlab.training.recipe import Recipe

TINY = {"embed_dim": 24, "depth": 2, "num_heads": 3}


def chosen(config: Any, **given: Any) -> int | None:
    data: dict[str, Any] = {"num_images": 56, "picture": (16, 16), "on_gpu": True, "held_out": 0.1}
    return transfer_recipe("data", "model", config, **(data | given)).model.image_size


def config_of(name: str) -> Any:
    row = find_row(name)
    return from_dict(family_of(row.family).config, row.config, where=name)


@pytest.mark.parametrize("name", ZOO)
def test_every_model_takes_its_side_and_none_is_lowered(name: str) -> None:
    config = config_of(name)
    side = chosen(config)
    if isinstance(config, BiTConfig):
        assert side == 128  # by its own rule
    elif side is not None:
        change(config, {"image_size": (side, side)}, where=name)
        assert side >= 384
        assert min(config.image_size) >= 224
        assert max(config.image_size) < side
    assert chosen(config, on_gpu=False) is None


@pytest.mark.parametrize(
    ("name", "side"),
    [
        *(("vit-b16-224", 384), ("vit-b32-224", 384), ("vit-h14-224", 392), ("vit-s14-224", 392), ("vit-b28-224", 392)),
        *(("vit-b14-518", None), ("vit-l16-512", None), ("vit-b16-384", None), ("vit-digits", None), ("cvt-13", 384)),
    ],
)
def test_the_papers_side_or_the_next_that_patches_divide(name: str, side: int | None) -> None:
    assert chosen(config_of(name)) == side


@pytest.mark.parametrize(
    ("name", "size", "arguments", "side"),
    [
        ("vit_tiny_patch16_224", 224, TINY, 384),
        ("eva02_tiny_patch14_224", 224, {"depth": 1}, 392),
        ("test_vit", 224, {}, 384),  # any size in each pass
        ("test_vit", 160, {}, None),
        ("vit_tiny_patch16_384", 384, TINY, None),
        ("test_resnet", 256, {}, 384),
        ("levit_128s", 224, {"embed_dim": [16, 24, 32], "num_heads": [2, 2, 2]}, None),  # biases of one size
        ("efficientformer_l1", 224, {}, None),
    ],
)
def test_a_model_of_timms_that_cannot_change_its_size_keeps_it(
    name: str, size: int, arguments: dict[str, Any], side: int | None
) -> None:
    config = TimmConfig(name=name, image_size=(size, size), arguments=arguments)
    assert chosen(config) == side
    if side is not None:
        empty_model(change(config, {"image_size": (side, side)}, where=name))


def recipe_of(config: Any, **given: Any) -> Recipe:
    data: dict[str, Any] = {"num_images": 240, "picture": (500, 400), "on_gpu": False, "held_out": 0.1}
    return transfer_recipe("data", "model", config, **(data | given))


def test_small_vits_have_a_recipe_of_their_own() -> None:
    small = change(config_of("vit-ti16-224"), {"image_size": (96, 96), "patch_size": 8}, where="test")
    recipe = recipe_of(small)
    assert (recipe.optimizer.name, recipe.optimizer.layer_decay < 1) == ("adamw", True)
    assert recipe.model.image_size is None
    least, most = SMALL.steps_on_cpu
    for num_images in (20, 240, 5_000, 1_000_000):
        total = int(recipe_of(small, num_images=num_images).schedule.total.split()[0])
        assert least <= total <= most
    assert recipe_of(small, lr=0.1).optimizer.lr == 0.1
    assert recipe_of(small, steps=7).schedule.total == "7 steps"
    assert recipe_of(small, epochs=2.0, batch_size=16).schedule.total == "30 steps"
    large = recipe_of(small, num_images=100_000, on_gpu=True)
    assert large.batch_size == SMALL.batch_size
    assert large.optimizer.lr == pytest.approx(SMALL.lr * (SMALL.batch_size / 32) ** 0.5)


def test_coarse_pictures_are_cropped_less_and_narrow_models_learn_faster() -> None:
    """As a small crop of 8 x 8 pixels holds nothing, and weights of a narrow model have to move farther."""
    digits, photos = config_of("vit-digits"), change(config_of("vit-ti16-224"), {"image_size": (64, 64)}, where="test")
    recipe, usual = recipe_of(digits), recipe_of(photos)
    assert recipe.optimizer.name == usual.optimizer.name == "adamw"
    assert recipe.augmentation.crop_area == (0.6, 1.0)
    assert usual.augmentation.crop_area == Augmentation().crop_area
    assert recipe.optimizer.lr == pytest.approx(usual.optimizer.lr * 256 / digits.width)
    assert recipe_of(digits, lr=0.1).optimizer.lr == 0.1
    wide = change(config_of("vit-b16-224"), {"image_size": (64, 64)}, where="test")
    assert recipe_of(wide).optimizer.name == "sgd"


@pytest.mark.parametrize("name", ["vit-ti16-224", "vit-b16-224", "bit-r50x1"])
def test_others_keep_the_papers(name: str) -> None:
    assert recipe_of(config_of(name)).optimizer.name == "sgd"
    assert recipe_of(config_of(name), epochs=3.0, batch_size=24).schedule.total == "30 steps"

"""AugReg's recipes against the authors' configurations, big_vision's vit_i1k.py and vit_i21k.py."""

import pytest

from vitlab.recipes import find_recipe

RANDAUG = {"none": None, "light1": 0, "light2": 10, "medium1": 15, "medium2": 15}
MIXUP = {"none": 0.0, "light1": 0.0, "light2": 0.2, "medium1": 0.2, "medium2": 0.5}


@pytest.mark.parametrize(
    ("data", "size", "strength"),
    [
        ("imagenet", "ti16", "light1"), ("imagenet", "s32", "medium1"), ("imagenet", "s16", "medium2"),
        ("imagenet", "b32", "medium2"), ("imagenet", "b16", "medium2"), ("imagenet", "l16", "medium2"),
        ("imagenet21k", "ti16", "none"), ("imagenet21k", "s32", "none"), ("imagenet21k", "s16", "light1"),
        ("imagenet21k", "b32", "light2"), ("imagenet21k", "b16", "light2"), ("imagenet21k", "l16", "medium2"),
    ],
)  # fmt: skip
def test_each_size_has_its_augmentation(data: str, size: str, strength: str) -> None:
    recipe = find_recipe(f"augreg-{size}-{data}")
    augmentation, magnitude = recipe.augmentation, RANDAUG[strength]
    assert recipe.model.source == f"vit-{size}-224"
    assert augmentation.mixup == MIXUP[strength]
    if magnitude is None:
        assert augmentation.policy == "none"
    else:
        assert (augmentation.policy, augmentation.num_ops) == ("randaugment-official", 2)
        assert augmentation.magnitude == magnitude


@pytest.mark.parametrize(("data", "bias"), [("imagenet", -6.9), ("imagenet21k", -10.0)])
def test_what_all_sizes_share(data: str, bias: float) -> None:
    recipe = find_recipe(f"augreg-b16-{data}")
    assert (recipe.loss.kind, recipe.loss.head_bias, recipe.batch_size) == ("sigmoid", bias, 4096)
    assert (recipe.schedule.kind, recipe.schedule.total, recipe.schedule.warmup) == (
        "cosine",
        "300 epochs",
        "10k steps",
    )
    # decay of 1e-4 times the schedule alone, where ours is times the rate of 1e-3 as well
    assert recipe.optimizer.lr * recipe.optimizer.weight_decay == pytest.approx(1e-4)
    assert recipe.optimizer.clip == 1.0
    assert recipe.model.representation == (data == "imagenet")
    assert recipe.model.set == (() if data == "imagenet" else ("pool=mean", "class_token=false"))

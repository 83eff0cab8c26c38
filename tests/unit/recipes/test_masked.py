"""The masked recipes' figures are those of the papers, and the small ones have the supervised recipes' models."""

import pytest

from vitlab.recipes import find_recipe


def test_masked_patches_as_the_appendix_has_it() -> None:
    recipe = find_recipe("masked-patches-b16-jft")
    assert (recipe.optimizer.lr, recipe.batch_size, recipe.schedule.total) == (2e-4, 4096, "1M steps")
    assert (recipe.schedule.kind, recipe.schedule.warmup, recipe.model.source) == ("cosine", "10k steps", "vit-b16-224")
    assert recipe.objective.options == {"fraction": 0.5, "mask_share": 0.8, "random_share": 0.1, "target": "color"}


@pytest.mark.parametrize("size", ["b16", "l16", "h14"])
def test_mae_as_its_authors_have_it(size: str) -> None:
    recipe = find_recipe(f"mae-{size}-imagenet")
    assert recipe.optimizer.lr == pytest.approx(1.5e-4 * 4096 / 256)
    assert (recipe.batch_size, recipe.optimizer.betas, recipe.optimizer.weight_decay) == (4096, (0.9, 0.95), 0.05)
    assert (recipe.schedule.total, recipe.schedule.warmup) == ("800 epochs", "40 epochs")
    assert (recipe.augmentation.crop_area, recipe.augmentation.policy) == ((0.2, 1.0), "none")
    decoder = {"decoder_width": 512, "decoder_depth": 8, "decoder_heads": 16}
    assert recipe.objective.options == {**decoder, "mask_ratio": 0.75, "target": "normalized"}
    tuned = find_recipe(f"mae-{size}-imagenet-finetuned")
    base, decay = (5e-4, 0.65) if size == "b16" else (1e-3, 0.75)
    assert tuned.optimizer.lr == pytest.approx(base * 1024 / 256)
    assert (tuned.optimizer.layer_decay, tuned.batch_size) == (decay, 1024)
    assert tuned.model.source == f"runs/mae-{size}-imagenet"


@pytest.mark.parametrize("data", ["cifar10", "tiny-imagenet"])
@pytest.mark.parametrize("objective", ["mae", "masked-patches"])
def test_small_ones_have_the_supervised_recipes_model(objective: str, data: str) -> None:
    own, supervised = find_recipe(f"{objective}-{data}"), find_recipe(data)
    assert own.objective.name == objective
    assert (own.model.source, own.model.set, own.model.image_size) == (
        supervised.model.source,
        supervised.model.set,
        supervised.model.image_size,
    )
    assert own.data == supervised.data
    assert not own.augmentation.mixes

"""The recipes of the related families: what sets them apart from a ViT's."""

import pytest

from vitlab.recipes import find_recipe
from vitlab.training.durations import Pace
from vitlab.training.schedules import resolve


@pytest.mark.parametrize("patch", [16, 32])
def test_axial_is_trained_as_the_vit_of_its_size(patch: int) -> None:
    axial, vit = find_recipe(f"axial-vit-b{patch}-jft"), find_recipe(f"vit-b{patch}-jft")
    assert axial.model.source == f"axial-vit-b{patch}-224"
    assert (axial.optimizer, axial.schedule, axial.loss) == (vit.optimizer, vit.schedule, vit.loss)
    assert axial.schedule.total == "7 epochs"


@pytest.mark.parametrize("layers", [26, 38, 50])
def test_stand_alone_attention_has_its_papers_figures(layers: int) -> None:
    """Appendix A.2 of arXiv 1906.05909; the decay is that of Axial-DeepLab's code."""
    recipe = find_recipe(f"sasa-{layers}-imagenet")
    optimizer = recipe.optimizer
    assert (optimizer.name, optimizer.nesterov, optimizer.momentum, optimizer.l2) == ("sgd", True, 0.9, 8e-5)
    assert (optimizer.lr, optimizer.ema, recipe.batch_size, recipe.data.val_fraction) == (1.6, 0.9999, 4096, 0.04)
    schedule = resolve(recipe.schedule, Pace(recipe.batch_size, 1_281_167))
    assert (schedule.warmup, schedule.total) == (3128, 40_662)  # 10 and 130 epochs of 312.8 steps
    assert schedule.factor((schedule.warmup + schedule.total) // 2) == pytest.approx(0.5, abs=1e-3)


def test_non_local_is_trained_as_its_authors_train_the_resnet() -> None:
    """Drops after 150,150 and 300,300 of 450,450 steps in their code, which counts 5005 steps per epoch."""
    recipe = find_recipe("nonlocal-r50-imagenet")
    schedule = resolve(recipe.schedule, Pace(recipe.batch_size, 5005 * 256))
    assert (schedule.warmup, *schedule.drops, schedule.total) == (0, 150_150, 300_300, 450_450)
    lrs = [recipe.optimizer.lr * schedule.factor(step) for step in (0, 150_149, 150_150, 300_300, 450_449)]
    assert lrs == pytest.approx([0.1, 0.1, 0.01, 0.001, 0.001])
    assert (recipe.optimizer.name, recipe.optimizer.nesterov, recipe.optimizer.momentum) == ("sgd", True, 0.9)
    assert recipe.optimizer.weight_decay == 0  # what decays is in the gradient: l2
    assert recipe.optimizer.l2 == 1e-4

"""V-MoE's recipe on ImageNet-21k against its authors' configuration, pretrain_imagenet21k.py."""

from vitlab.recipes import find_recipe


def test_imagenet21k_is_trained_with_randaug_2_20() -> None:
    """decode_jpeg_and_inception_crop(224)|flip_lr|randaug(2,20), mixup of concentration .5."""
    recipe = find_recipe("vmoe-b16-imagenet21k")
    aug = recipe.augmentation
    assert (aug.policy, aug.num_ops, aug.magnitude) == ("randaugment-official", 2, 20.0)
    assert (aug.crop, aug.flip, aug.mixup, aug.cutmix) == ("paper", 0.5, 0.5, 0.0)
    assert (recipe.schedule.total, recipe.schedule.warmup) == ("300 epochs", "10k steps")
    assert (recipe.optimizer.lr, recipe.optimizer.weight_decay, recipe.optimizer.clip) == (8e-4, 0.1, 1.0)

"""The leaderboards' fine-tunings against the papers and the authors' configurations."""

import pytest

from vitlab.models.create import configured, empty_model
from vitlab.objectives import OBJECTIVES
from vitlab.recipes import find_recipe
from vitlab.training.durations import Pace
from vitlab.training.schedules import resolve


@pytest.mark.parametrize(
    ("name", "source", "side"),
    [
        ("vit-l16-512-imagenet", "runs/vit-l16-jft", 512),
        ("vit-h14-518-imagenet", "runs/vit-h14-jft", 518),
        ("vit-gigantic14-518-imagenet", "runs/vit-gigantic14-jft", 518),
    ],
)
def test_the_papers_best_are_larger_and_averaged(name: str, source: str, side: int) -> None:
    """Section 4.1: 512 px for L/16, 518 px for H/14, Polyak averaging by .9999; else table 4's row for ImageNet."""
    recipe = find_recipe(name)
    assert (recipe.model.source, recipe.model.image_size, recipe.optimizer.ema) == (source, side, 0.9999)
    assert (recipe.optimizer.name, recipe.optimizer.momentum, recipe.optimizer.clip) == ("sgd", 0.9, 1.0)
    assert (recipe.batch_size, recipe.schedule.total, recipe.schedule.warmup) == (512, "20000 steps", "500 steps")
    assert recipe.optimizer.lr in (0.003, 0.01, 0.03, 0.06)
    patch = configured(find_recipe(source.removeprefix("runs/")).model.source).patch_size
    assert side % patch == 0


def test_patches_divide_the_resolutions_on_cifar() -> None:
    for name, patch in (("vit-h14-392-cifar100", 14), ("vit-l16-384-cifar100", 16), ("vit-b16-21kp-cifar100", 16)):
        recipe = find_recipe(name)
        assert recipe.model.image_size is not None
        assert recipe.model.image_size % patch == 0
        assert (recipe.optimizer.ema, recipe.schedule.total, recipe.data.source) == (None, "10000 steps", "cifar100")


def test_experts_are_tuned_as_the_authors_configuration_says() -> None:
    """google-research/vmoe, vmoe_b16_imagenet21k_randaug_strong_ft_ilsvrc2012.py."""
    recipe = find_recipe("vmoe-15b-560-imagenet")
    optimizer = recipe.optimizer
    assert (optimizer.name, optimizer.momentum, optimizer.lr, optimizer.clip) == ("sgd", 0.9, 0.003, 10.0)
    schedule = resolve(recipe.schedule, Pace(recipe.batch_size, 1_281_167))
    assert (recipe.batch_size, schedule.total, schedule.warmup) == (1024, 10_000, 500)
    assert optimizer.lr * schedule.factor(schedule.total) == pytest.approx(1e-5)
    changed = configured("vmoe-15b", image_size=560, num_classes=1000, capacity=1.5)
    assert empty_model(changed).config.grid == (40, 40)


def test_sam_is_the_authors_command() -> None:
    """google-research/sam, README: --learning_rate 0.1 --batch_size 512 --num_epochs 10 --gradient_clipping 1.0
    --label_smoothing 0.1 --sam_rho 0.1, of efficientnet-l2-475."""
    for data in ("imagenet", "cifar100"):
        recipe = find_recipe(f"efficientnet-l2-sam-{data}")
        assert (recipe.optimizer.sam, recipe.optimizer.lr, recipe.optimizer.clip) == (0.1, 0.1, 1.0)
        assert (recipe.batch_size, recipe.schedule.total, recipe.loss.label_smoothing) == (512, "10 epochs", 0.1)
        assert (recipe.model.image_size, recipe.data.source) == (475, data)


def test_meta_pseudo_labels_is_the_authors_command_for_imagenet() -> None:
    """google-research/meta_pseudo_labels, README, ImageNet-10%: --uda_data=15 --uda_steps=50000 --uda_temp=0.5
    --uda_weight=20. --train_batch_size=1024 --num_train_steps=700000 --mpl_student_lr=0.1 --mpl_teacher_lr=0.15
    --mpl_student_lr_wait_steps=20000 --augment_magnitude=17 --grad_bound=5. --weight_decay=1e-4 --ema_decay=0.999;
    common_utils.py: rates are times batch / 256, momentum is Nesterov's."""
    recipe = find_recipe("meta-pseudo-labels-l2-imagenet")
    optimizer, options = recipe.optimizer, OBJECTIVES.find("meta-pseudo-labels").options(**recipe.objective.options)
    schedule = resolve(recipe.schedule, Pace(recipe.batch_size, 1_281_167))
    assert (recipe.batch_size, schedule.total, schedule.warmup) == (1024, 700_000, 5000)
    assert (options.ratio, options.temperature, options.threshold, options.weight) == (15, 0.5, 0.6, 20)
    assert (options.ramp * schedule.total, options.wait * schedule.total) == pytest.approx((50_000, 20_000))
    assert (options.magnitude, options.num_ops) == (17, 2)
    assert (256 / 1024 * optimizer.lr, 256 / 1024 * optimizer.lr * options.teacher_lr) == pytest.approx((0.1, 0.15))
    assert (optimizer.nesterov, optimizer.l2, optimizer.clip, optimizer.ema) == (True, 1e-4, 5.0, 0.999)
    assert (recipe.loss.label_smoothing, recipe.model.dropout, recipe.model.pretrained) == (0.1, 0.1, False)


def test_the_cifar_model_is_trained_as_it_is() -> None:
    """65 tokens of 128 numbers with a class token, nothing of the row changed but dropout."""
    recipe = find_recipe("cifar10-d128")
    assert (recipe.model.source, recipe.model.set, recipe.model.image_size) == ("vit-cifar-d128", (), None)
    config = configured("vit-cifar-d128")
    assert (config.class_token, config.pool, config.patch_size, config.width) == (True, "token", 4, 128)
    assert config.grid == (8, 8)


def test_vit_b_32_halves_every_dimension_of_b_32() -> None:
    half, whole = (configured(name) for name in ("vit-bhalf32-224", "vit-b32-224"))
    assert (2 * half.width, 2 * half.mlp_dim, half.depth) == (whole.width, whole.mlp_dim, whole.depth)
    recipe = find_recipe("vit-bhalf32-jft")
    assert (recipe.model.source, recipe.optimizer.lr) == ("vit-bhalf32-224", find_recipe("vit-b32-jft").optimizer.lr)

"""Values that no run can mean are refused when they are given."""

import math
from typing import Any

import pytest

from vitlab.core.errors import ConfigError
from vitlab.data.augmentation import Augmentation
from vitlab.models.bit import BiTConfig
from vitlab.models.vit import ViTConfig
from vitlab.objectives.cross_entropy import Loss
from vitlab.objectives.distillation import DistillationOptions
from vitlab.recipes.transfer import transfer_recipe
from vitlab.training.durations import Pace
from vitlab.training.optimizers import Optimizer
from vitlab.training.recipe import DataChoice, ModelChoice, Recipe
from vitlab.training.schedules import Schedule, resolve

TINY = {"image_size": (8, 8), "patch_size": 4, "width": 8, "depth": 1, "mlp_dim": 8, "heads": 1}
DATA: dict[str, Any] = {"num_images": 1000, "picture": (64, 64), "on_gpu": False, "held_out": 0.1}


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (Recipe, {"batch_size": [0, -3], "accumulate": [0], "patience": [0], "max_skipped": [0], "seed": [-1, 2**64]}),
        (Recipe, {"evaluate_every": ["never"], "checkpoint_every": ["-1 steps"], "log_every": [""]}),
        (Recipe, {"batch_size": ["8", 8.0, True, None], "seed": [1.5, None], "keep": ["worst"], "precision": ["fp16"]}),
        (Recipe, {"evaluate_every": [2], "name": [5], "strategy": ["foo"], "tracker": ["foo"], "patience": ["a"]}),
        (ModelChoice, {"train_only": ["hed"], "lora": [2.5, "4", True], "image_size": [(8, 8)], "source": [None]}),
        (Optimizer, {"name": ["adam"], "betas": [(0.9,), 0.9], "lr": ["x", None], "nesterov": [1]}),
        (Schedule, {"total": [4], "kind": ["poly"], "drops": ["30%"]}),
        (Augmentation, {"crop": ["some"], "mixup": ["a", None], "flip": ["yes"]}),
        (Loss, {"kind": ["hinge"], "label_smoothing": ["a"]}),
        (DistillationOptions, {"kind": ["medium"], "alpha": [None]}),
        (DataChoice, {"source": [7], "val_fraction": ["a", None], "resident": ["yes"]}),
        (DataChoice, {"val_fraction": [-0.1, 1.0, math.nan], "repeats": [0], "max_unreadable": [-0.1, 1.1]}),
        (DataChoice, {"workers": [-1]}),
        (Optimizer, {"lr": [0.0, -1.0, math.nan, math.inf], "betas": [(0.9, 1.0), (-0.1, 0.9)], "eps": [0.0]}),
        (Optimizer, {"momentum": [-0.1, 1.0], "clip": [0.0, -1.0], "update_clip": [0.0], "sam": [0.0, math.nan]}),
        (Optimizer, {"sam_kind": ["asam", "gsam", "esam"], "sam_rho_min": [0.0, 0.1], "sam_alpha": [-0.1, math.inf]}),
        (Optimizer, {"ema": [0.0, 1.0], "weight_decay": [-0.1], "head_weight_decay": [-0.1], "l2": [-0.1]}),
        (Optimizer, {"layer_decay": [0.0, 1.1], "head_lr_scale": [0.0, -1.0]}),
        (Schedule, {"total": ["0 steps", "soon"], "warmup": ["-5%"], "drops": [("later",)], "end": [2.0]}),
    ],
)
def test_nonsense_is_one_sentence(kind: type, values: dict[str, list[Any]]) -> None:
    kind()
    for name, wrong in values.items():
        for value in wrong:
            with pytest.raises(ConfigError, match=r"^[^\n]+\.( Did you mean [^\n]+\?)?$"):
                kind(**{name: value})


def test_the_limits_themselves_are_taken() -> None:
    Recipe(batch_size=1, accumulate=1, patience=None, max_skipped=1, seed=2**64 - 1, evaluate_every="0 steps")
    DataChoice(val_fraction=0.0, workers=0, max_unreadable=1.0)
    Optimizer(lr=1e30, betas=(0.0, 0.0), momentum=0.0, layer_decay=1.0, update_clip=None)


def test_what_contradicts_itself() -> None:
    with pytest.raises(ConfigError, match="choose one of them"):
        Recipe(data=DataChoice(balanced=True), loss=Loss(class_weights=True))
    with pytest.raises(ConfigError, match="needs a momentum"):
        Optimizer(name="sgd", nesterov=True, momentum=0.0)
    with pytest.raises(ConfigError, match="without weight decay"):
        Optimizer(name="sgd", weight_decay=0.1)
    with pytest.raises(ConfigError, match="without weight decay"):
        Optimizer(name="sgd", head_weight_decay=0.1)
    Optimizer(name="sgd", head_weight_decay=0.0)
    with pytest.raises(ConfigError, match=r"sam_kind gsam needs a radius: set optimizer\.sam"):
        Optimizer(sam_kind="gsam")
    with pytest.raises(ConfigError, match="sam_rho_min is GSAM's"):
        Optimizer(sam=0.1, sam_rho_min=0.05)
    with pytest.raises(ConfigError, match=r"sam_rho_min \(0\.2\) is above the largest radius.*\(0\.1\): exchange them"):
        Optimizer(sam=0.1, sam_kind="gsam", sam_rho_min=0.2)


def test_a_timescale_is_a_step_at_least() -> None:
    with pytest.raises(ConfigError, match=r"schedule\.timescale"):
        Schedule(kind="rsqrt", timescale="0 steps")
    Schedule(kind="cosine", timescale="0 steps")  # which has none
    short = Schedule(kind="rsqrt", total="10 steps", warmup="0 steps", timescale="1%")
    assert resolve(short, Pace(1, 10)).factor(1) > 0


@pytest.mark.parametrize("config", [ViTConfig(**TINY), BiTConfig()])
def test_what_is_given_to_finetune_is_taken_or_refused(config: ViTConfig | BiTConfig) -> None:
    nonsense: list[dict[str, Any]] = [{"steps": 0}, {"steps": -1}, {"batch_size": 0}, {"batch_size": -3}, {"lr": 0.0}]
    nonsense += [{"batch_size": 0, "epochs": 1}, {"batch_size": -3, "lr": 0.1}]
    for wrong in nonsense:
        with pytest.raises(ConfigError):
            transfer_recipe("data", "model", config, **DATA, **wrong)
    recipe = transfer_recipe("data", "model", config, **DATA, steps=10, batch_size=4, lr=0.5)
    assert (recipe.schedule.total, recipe.batch_size, recipe.optimizer.lr) == ("10 steps", 4, 0.5)
    assert transfer_recipe("data", "model", config, **DATA, image_size=0).model.image_size == 0  # the model refuses it

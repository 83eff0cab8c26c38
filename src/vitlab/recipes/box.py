"""`vitlab/tiny`, the model in the package: a teacher and its student, each on Tiny-ImageNet at 64 px, then at 96 px.

Four runs, one after the other. The student is as plain as the paper's models, so that every format can hold it and
every figure can be shown on it: a class token, learned positions that start at N(0, .02), nothing rotary. Most epochs
see 64 px, a grid of 8 x 8 patches; the last ones 96 px, a grid of 12 x 12, which costs two and a half times as much
per image.
"""

import dataclasses
from collections.abc import Callable

from vitlab.core.config import Choice
from vitlab.data.augmentation import Augmentation
from vitlab.recipes.small import tiny_imagenet
from vitlab.training.optimizers import Optimizer
from vitlab.training.recipe import DataChoice, Loss, ModelChoice, Recipe
from vitlab.training.schedules import Schedule

AUGMENTATION = Augmentation(crop="paper", crop_area=(0.4, 1.0), policy="randaugment", mixup=0.8, cutmix=1.0)


def vitlab_tiny_teacher_64() -> Recipe:
    """vitlab/tiny's teacher, part 1: the ViT-S of the recipe tiny-imagenet, with more cropping, mixed to the end.

    Command: vitlab train vitlab-tiny-teacher-64 --data.source PATH
    Hardware and time: one H200, 321 s for the whole command, with compilation and report.
    Score: 61.79% on Tiny-ImageNet's published val part, one run (docs/results/box.md).
    """
    recipe = tiny_imagenet()
    return dataclasses.replace(
        recipe,
        name="vitlab-tiny-teacher-64",
        augmentation=dataclasses.replace(AUGMENTATION, erase=0.25),
        optimizer=dataclasses.replace(recipe.optimizer, ema=0.9993),
        schedule=dataclasses.replace(recipe.schedule, total="62 epochs"),
        evaluate_every="31 epochs",
        checkpoint_every="31 epochs",
    )


def vitlab_tiny_teacher() -> Recipe:
    """vitlab/tiny's teacher, part 2: its last epochs, at 96 px.

    Command: vitlab train vitlab-tiny-teacher --model.source RUN --data.source PATH
    Hardware and time: one H200, 235 s for the whole command, with compilation and report.
    Score: 67.85% on Tiny-ImageNet's published val part, one run (docs/results/box.md).
    """
    recipe = vitlab_tiny_teacher_64()
    return dataclasses.replace(
        recipe,
        name="vitlab-tiny-teacher",
        model=_continued("vitlab-tiny-teacher-64", drop_path=0.2),
        augmentation=dataclasses.replace(AUGMENTATION, erase=0.1, mix_until="60%"),
        optimizer=dataclasses.replace(recipe.optimizer, lr=5e-4, ema=0.997),
        schedule=Schedule(kind="cosine", total="14 epochs", warmup="1 epoch"),
        evaluate_every="7 epochs",
        checkpoint_every="7 epochs",
    )


def vitlab_tiny_64() -> Recipe:
    """vitlab/tiny, part 1: the student of 7M parameters at 64 px in patches of 8, with the teacher of 64 px.

    Command: vitlab train vitlab-tiny-64 --objective.teacher RUN --data.source PATH
    Hardware and time: one H200, 383 s for the whole command, with tests running beside it.
    Score: 62.53% on Tiny-ImageNet's published val part, one run (docs/results/box.md).
    """
    sizes = ("patch_size=8", "width=256", "depth=9", "heads=4", "mlp_dim=1024")
    return Recipe(
        name="vitlab-tiny-64",
        model=ModelChoice(source="vit-ti16-224", image_size=64, drop_path=0.05, set=(*sizes, "residual_scale=0")),
        data=DataChoice(source="tiny-imagenet", val_fraction=0.02),
        augmentation=dataclasses.replace(AUGMENTATION, erase=0.1),
        objective=Choice("distillation", {"kind": "soft", "alpha": 0.7, "tau": 2.0}),
        loss=Loss(label_smoothing=0.1),
        optimizer=Optimizer(name="muon", lr=2e-3, momentum=0.95, weight_decay=0.05, clip=1.0, ema=0.999),
        schedule=Schedule(kind="cosine", total="80 epochs", warmup="4%"),
        batch_size=1024,
        compile=True,
        evaluate_every="20 epochs",
        checkpoint_every="20 epochs",
        log_every="100 steps",
        keep="last",
    )


def vitlab_tiny() -> Recipe:
    """vitlab/tiny, part 2: the student's last epochs, at 96 px, with the teacher of 96 px.

    Command: vitlab train vitlab-tiny --model.source RUN --objective.teacher RUN --data.source PATH
    Hardware and time: one H200, 241 s for the whole command, with tests running beside it.
    Score: 67.60% on Tiny-ImageNet's published val part, one run (docs/results/box.md).
    """
    recipe = vitlab_tiny_64()
    return dataclasses.replace(
        recipe,
        name="vitlab-tiny",
        model=_continued("vitlab-tiny-64", drop_path=0.05),
        augmentation=dataclasses.replace(recipe.augmentation, mix_until="70%"),
        optimizer=dataclasses.replace(recipe.optimizer, lr=1e-3, ema=0.996),
        schedule=Schedule(kind="cosine", total="18 epochs", warmup="1 epoch"),
        evaluate_every="11 epochs",
        checkpoint_every="11 epochs",
    )


def _continued(run: str, *, drop_path: float) -> ModelChoice:
    """The model of a run of 64 px, whose head is kept, at 96 px."""
    return ModelChoice(source=f"runs/{run}", pretrained=True, keep_head=True, image_size=96, drop_path=drop_path)


RECIPES: dict[str, Callable[[], Recipe]] = {
    "vitlab-tiny-teacher-64": vitlab_tiny_teacher_64,
    "vitlab-tiny-teacher": vitlab_tiny_teacher,
    "vitlab-tiny-64": vitlab_tiny_64,
    "vitlab-tiny": vitlab_tiny,
}

"""The fine-tuning recipe that fits a model and a data set: the paper's, a BiT's own rule, or that of small models."""

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any

from vitlab.core.bounds import PositiveInt
from vitlab.core.config import check_value
from vitlab.core.errors import Error
from vitlab.data.augmentation import Augmentation
from vitlab.models.bit import BiTConfig
from vitlab.models.timm.adapter import size_from
from vitlab.models.timm.build import TimmConfig
from vitlab.models.vit import ViTConfig
from vitlab.objectives.cross_entropy import Loss
from vitlab.recipes.bit import bit_recipe
from vitlab.recipes.finetuning import budget, finetune_recipe
from vitlab.training.optimizers import Optimizer
from vitlab.training.recipe import Recipe

SIDE, LEAST = 384, 224  # px: the paper's side for fine-tuning, and the smallest model that goes to it


@dataclass(frozen=True)
class Small:
    """How a small ViT of under 224 px is fine-tuned, as vitlab/tiny is: AdamW, slower in the layers below the head.

    Many passes over few images, few over many: so many epochs, in steps neither below nor above these.
    """

    epochs: float = 20
    steps: tuple[int, int] = (240, 10_000)
    steps_on_cpu: tuple[int, int] = (240, 800)
    batch_size: int = 128  # at most
    batch_size_on_cpu: int = 16  # with which 300 photos take some minutes on two cores
    lr: float = 5e-4  # for batches of 32; it grows with the square root of the batch
    weight_decay: float = 0.05
    layer_decay: float = 0.75
    warmup: str = "10%"
    label_smoothing: float = 0.1
    augmentation: Augmentation = field(default_factory=lambda: Augmentation(crop="paper", flip=0.5))
    coarse: int = 64  # px of a side, below which a small crop holds nothing, and models are narrow
    coarse_area: tuple[float, float] = (0.6, 1.0)
    width: int = 256  # that of the models for which the lr is; of those for coarse pictures it falls with theirs

    def fits(self, config: Any) -> bool:
        """Whether this is the recipe for a model: not for large ones at a low resolution."""
        return isinstance(config, ViTConfig) and min(config.image_size) < LEAST and config.width <= 384

    def lr_for(self, config: ViTConfig, batch_size: int) -> float:
        """The lr for batches of so many images."""
        lr = self.lr * (batch_size / 32) ** 0.5
        return lr * self.width / config.width if min(config.image_size) < self.coarse else lr

    def augmentation_for(self, config: ViTConfig) -> Augmentation:
        """How training images are varied."""
        coarse = min(config.image_size) < self.coarse
        return dataclasses.replace(self.augmentation, crop_area=self.coarse_area) if coarse else self.augmentation


SMALL = Small()


def transfer_recipe(
    data: str,
    model: str,
    config: Any,
    *,
    num_images: int,
    picture: tuple[int, int],
    on_gpu: bool,
    held_out: float,
    steps: int | None = None,
    epochs: float | None = None,
    lr: float | None = None,
    batch_size: int | None = None,
    image_size: int | None = None,
) -> Recipe:
    """For the model that `config` describes and `num_images` images of the size `picture`; None follows from them.

    Without a GPU the resolution stays the model's own, and batches are small. With one, models of 224 px or more go to
    the paper's 384 px, or the next size above that patches divide (392 px for H/14); a model that is as large already,
    or cannot change its resolution, keeps its own. The 518 px of the paper's best H/14 are for --image-size. Small ViTs
    of under 224 px have a recipe of their own.
    """
    if batch_size is not None:  # the number of steps follows from it, before a recipe is there to refuse it
        check_value(PositiveInt, batch_size, "batch_size")
    spent = budget(num_images, on_gpu=on_gpu)
    batch = spent.batch_size if batch_size is None else batch_size
    if SMALL.fits(config) and batch_size is None:
        batch = min(batch, SMALL.batch_size if on_gpu else SMALL.batch_size_on_cpu)
    if epochs is not None:
        steps = max(round(epochs * num_images / batch), 1)
    if SMALL.fits(config):
        return _small(
            data, model, config, num_images, batch, steps, lr, on_gpu=on_gpu, held_out=held_out, side=image_size
        )
    if isinstance(config, BiTConfig):
        rule = bit_recipe(data, model, num_images=num_images, picture=picture, held_out=held_out, name="finetune")
        recipe = dataclasses.replace(rule, batch_size=batch, keep="best")
        if image_size is None and on_gpu:
            image_size = rule.model.image_size
        if lr is None:
            lr = rule.optimizer.lr * (batch / rule.batch_size) ** 0.5
        schedule = rule.schedule
        if steps is not None:
            schedule = dataclasses.replace(schedule, total=f"{steps} steps", warmup="20%")
        return dataclasses.replace(
            recipe,
            model=dataclasses.replace(rule.model, image_size=image_size),
            optimizer=dataclasses.replace(rule.optimizer, lr=lr),
            schedule=schedule,
        )
    if image_size is None and on_gpu:
        image_size = _larger(config)
    total_steps = spent.steps if steps is None else steps
    return finetune_recipe(
        data,
        model,
        steps=total_steps,
        lr=spent.lr if lr is None else lr,
        warmup=min(spent.warmup, total_steps // 5),
        held_out=held_out,
        image_size=image_size,
        batch_size=batch,
    )


def _small(
    data: str,
    model: str,
    config: ViTConfig,
    num_images: int,
    batch: int,
    steps: int | None,
    lr: float | None,
    *,
    on_gpu: bool,
    held_out: float,
    side: int | None,
) -> Recipe:
    least, most = SMALL.steps if on_gpu else SMALL.steps_on_cpu
    total = min(max(round(SMALL.epochs * num_images / batch), least), most) if steps is None else steps
    recipe = finetune_recipe(
        data, model, steps=total, lr=1.0, warmup=0, held_out=held_out, image_size=side, batch_size=batch
    )
    return dataclasses.replace(
        recipe,
        augmentation=SMALL.augmentation_for(config),
        loss=Loss(label_smoothing=SMALL.label_smoothing),
        optimizer=Optimizer(
            name="adamw",
            lr=SMALL.lr_for(config, batch) if lr is None else lr,
            weight_decay=SMALL.weight_decay,
            layer_decay=SMALL.layer_decay,
            clip=1.0,
        ),
        schedule=dataclasses.replace(recipe.schedule, warmup=SMALL.warmup),
    )


def varied(augmentation: Augmentation, how: str) -> Augmentation:
    """A recipe's own augmentation (light), none of it, or with RandAugment and erasing."""
    if how == "none":
        return Augmentation(crop="resize", flip=0.0)
    if how == "strong":
        return dataclasses.replace(augmentation, policy="randaugment", erase=0.25)
    if how != "light":
        raise Error(f"augment must be none, light or strong, not {how!r}.")
    return augmentation


def _larger(config: Any) -> int | None:
    """The side at which a model is fine-tuned where it is not its own."""
    if min(config.image_size) < LEAST or max(config.image_size) >= SIDE:
        return None
    if isinstance(config, TimmConfig):
        return size_from(config, SIDE)
    unit = config.patch_size if isinstance(config, ViTConfig) else 1
    return math.ceil(SIDE / unit) * unit

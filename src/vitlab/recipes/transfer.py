"""The fine-tuning recipe that fits a model and a data set: the paper's, or for a BiT its own rule."""

import dataclasses
from typing import Any

from vitlab.models.bit import BiTConfig
from vitlab.recipes.bit import bit_recipe
from vitlab.recipes.finetuning import budget, finetune_recipe
from vitlab.training.recipe import Recipe


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
    rate: float | None = None,
    batch_size: int | None = None,
    image_size: int | None = None,
) -> Recipe:
    """For the model that `config` describes and so many images like that picture; what is None follows from them.

    Without a GPU the resolution stays the model's own, and batches are small.
    """
    spent = budget(num_images, on_gpu=on_gpu)
    batch = spent.batch_size if batch_size is None else batch_size
    if isinstance(config, BiTConfig):
        rule = bit_recipe(data, model, num_images=num_images, picture=picture, held_out=held_out, name="finetune")
        recipe = dataclasses.replace(rule, batch_size=batch, keep="best")
        if image_size is None and on_gpu:
            image_size = rule.model.image_size
        if rate is None:
            rate = rule.optimiser.rate * (batch / rule.batch_size) ** 0.5
        schedule = rule.schedule
        if steps is not None:
            schedule = dataclasses.replace(schedule, total=f"{steps} steps", warmup="20%")
        return dataclasses.replace(
            recipe,
            model=dataclasses.replace(rule.model, image_size=image_size),
            optimiser=dataclasses.replace(rule.optimiser, rate=rate),
            schedule=schedule,
        )
    if image_size is None and on_gpu and min(config.image_size) >= 224:
        image_size = 384
    total_steps = spent.steps if steps is None else steps
    return finetune_recipe(
        data,
        model,
        steps=total_steps,
        rate=spent.rate if rate is None else rate,
        warmup=min(spent.warmup, total_steps // 5),
        held_out=held_out,
        image_size=image_size,
        batch_size=batch,
    )

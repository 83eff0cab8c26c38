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
    batch = batch_size or spent.batch_size
    if isinstance(config, BiTConfig):
        recipe = bit_recipe(data, model, num_images=num_images, picture=picture, held_out=held_out, name="finetune")
        size = image_size or (recipe.model.image_size if on_gpu else None)
        factor = (batch / recipe.batch_size) ** 0.5
        schedule = recipe.schedule
        if steps is not None:
            schedule = dataclasses.replace(schedule, total=f"{steps} steps", warmup="20%")
        return dataclasses.replace(
            recipe,
            model=dataclasses.replace(recipe.model, image_size=size),
            optimiser=dataclasses.replace(recipe.optimiser, rate=rate or recipe.optimiser.rate * factor),
            schedule=schedule,
            batch_size=batch,
            keep="best",
        )
    if image_size is None and on_gpu and min(config.image_size) >= 224:
        image_size = 384
    total_steps = steps or spent.steps
    return finetune_recipe(
        data,
        model,
        steps=total_steps,
        rate=rate or spent.rate,
        warmup=min(spent.warmup, total_steps // 5),
        held_out=held_out,
        image_size=image_size,
        batch_size=batch,
    )

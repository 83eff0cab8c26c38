"""Transfer of trained weights to a data set."""

import dataclasses
import logging
import math
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

from vitlab.api.given import check_module, source_name
from vitlab.api.train import train
from vitlab.core.devices import choose_device
from vitlab.core.errors import DataError, Error
from vitlab.core.registry import permit
from vitlab.data.decoding import StrPath
from vitlab.models.contract import Model
from vitlab.weights.box import DEFAULT
from vitlab.weights.load import read_configuration

if TYPE_CHECKING:
    from torch import nn

    from vitlab.data.contract import DataSet, Split
    from vitlab.training.finish import RunOutcome
    from vitlab.training.recipe import Recipe

log = logging.getLogger("vitlab")


def finetune(
    data: StrPath,
    model: "StrPath | Model | nn.Module" = DEFAULT,
    *,
    task: str = "classification",
    out: StrPath | None = None,
    steps: int | None = None,
    epochs: float | None = None,
    lr: float | Literal["auto"] | None = None,
    batch_size: int | None = None,
    image_size: int | None = None,
    augment: Literal["none", "light", "strong"] = "light",
    balanced: bool = False,
    freeze: Literal["none", "backbone"] = "none",
    lora: int | None = None,
    val_fraction: float = 0.1,
    patience: int | None = None,
    tracker: Literal["none", "mlflow", "wandb"] = "none",
    seed: int = 0,
    adjust: "Callable[[Recipe], Recipe] | None" = None,
    device: str | None = None,
    show: bool = False,
) -> "RunOutcome":
    """Transfer trained weights to a data set as the paper does; what is None follows from the data's size.

    `model` is a source for `load` (by default vitlab/tiny), a model, or a module that gives logits, features or maps of
    images; `task` classification, segmentation, or one's own as 'mine.py:NAME'. Without a GPU the resolution stays the
    model's own; with one, models of 224 px up to 384 are trained at 384, or at the next size that their patches divide.
    A BiT and a small ViT of under 224 px have rules of their own. lr="auto" is a range test. `adjust` gets the recipe
    that was chosen, and gives the one to train by.
    """
    from vitlab.core.config import Choice
    from vitlab.recipes.transfer import transfer_recipe, varied
    from vitlab.training.plan import divide, open_parts

    device, data, given = choose_device(device), source_name(data, "data"), None
    if not isinstance(model, str | os.PathLike):
        given, model = _handed_over(model, image_size), "given"
    source, known_lr = source_name(model, "model"), None if lr == "auto" else lr
    permit(task, data)
    _check_finetuning(freeze, steps, epochs)
    own: dict[str, Any] = {"patience": patience, "seed": seed, "task": Choice(task), "tracker": tracker}
    draft = dataclasses.replace(_draft(data, source, steps, known_lr, val_fraction, batch_size), **own)
    config = read_configuration(source, image_size=image_size) if given is None else _config_of(given, image_size)

    def recipe_for(dataset: "DataSet") -> "Recipe":
        images = divide(dataset).train
        recipe = transfer_recipe(
            data,
            source,
            config,
            num_images=len(images),
            picture=_middle_size(images, data),
            on_gpu=device.startswith("cuda"),
            held_out=val_fraction,
            steps=steps,
            epochs=epochs,
            lr=known_lr,
            batch_size=batch_size,
            image_size=image_size,
        )
        parts = {
            "model": dataclasses.replace(recipe.model, train_only="head" if freeze == "backbone" else "all", lora=lora),
            "data": dataclasses.replace(recipe.data, balanced=balanced),
            "augmentation": varied(recipe.augmentation, augment),
            **own,
        }
        return dataclasses.replace(recipe, **parts)

    recipe, dataset = adjusted(recipe_for, open_parts(draft), adjust)
    _warn_of_leaks(dataset, data)
    return train(recipe, model=given, out=out, device=device, show=show, find_lr=lr == "auto")


def _draft(
    data: str, source: str, steps: int | None, lr: float | None, held_out: float, batch_size: int | None
) -> "Recipe":
    """A recipe that refuses nonsense before anything is read."""
    from vitlab.recipes.finetuning import finetune_recipe

    return finetune_recipe(
        data,
        source,
        steps=1 if steps is None else steps,
        lr=1.0 if lr is None else lr,
        warmup=0,
        held_out=held_out,
        batch_size=1 if batch_size is None else batch_size,
    )


def adjusted(
    recipe_for: "Callable[[DataSet], Recipe]", dataset: "DataSet", adjust: "Callable[[Recipe], Recipe] | None"
) -> "tuple[Recipe, DataSet]":
    """The recipe for a data set as `adjust` has it, and the data: where it takes other images, the recipe is theirs."""
    from vitlab.training.plan import open_parts

    recipe = recipe_for(dataset)
    if adjust is None:
        return recipe, dataset
    changed = adjust(recipe)
    if changed.data == recipe.data:
        return changed, dataset
    dataset = open_parts(changed)
    return adjust(recipe_for(dataset)), dataset


def _handed_over(model: "Model | nn.Module", image_size: int | None) -> "Model | nn.Module":
    check_module(model)
    if isinstance(model, Model) and image_size is not None:
        raise Error("A model that is in memory has its resolution: load it with image_size instead.")
    return model


def _warn_of_leaks(dataset: "DataSet", data: str) -> None:
    from vitlab.data.leaks import leaks_in_words

    first = os.environ.get("RANK", "0") == "0"  # it speaks for all
    if first and (said := leaks_in_words(dataset, data)) is not None:
        log.warning("%s", said)


def _middle_size(images: "Split", data: str) -> tuple[int, int]:
    """The size of the picture that half of some are larger than."""
    from vitlab.data.loading.resident import LOOK_AT, sizes

    pictures = sorted(sizes(images, max(len(images) // LOOK_AT, 1)), key=math.prod) or list(sizes(images))
    if not pictures:
        raise DataError(f"None of the {len(images):,} training images of {data} can be read.")
    return pictures[len(pictures) // 2]


def _check_finetuning(freeze: str, steps: int | None, epochs: float | None) -> None:
    if freeze not in ("none", "backbone"):
        raise Error(f"freeze must be none or backbone, not {freeze!r}.")
    check_length(steps, epochs)


def check_length(steps: int | None, epochs: float | None) -> None:
    """Refuse a run of two lengths, or of none."""
    if steps is not None and epochs is not None:
        raise Error("Give steps or epochs, not both.")
    if epochs is not None and not (isinstance(epochs, int | float) and 0 < epochs < math.inf):
        raise Error(f"epochs must be a number above 0, not {epochs!r}.")


def _config_of(model: "Model | nn.Module", image_size: int | None) -> Any:
    """What is known of a model that was given: of a module, the size at which it is to see pictures."""
    from vitlab.models.outside import OutsideConfig

    if isinstance(model, Model):
        return model.config
    return OutsideConfig(name=type(model).__name__, image_size=(image_size or 224, image_size or 224))

"""Learning from photos without labels, from trained weights or from fresh ones."""

import contextlib
import dataclasses
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from vitlab.api.finetune import adjusted, check_length
from vitlab.api.given import source_name
from vitlab.api.train import train
from vitlab.core.devices import choose_device
from vitlab.core.errors import DataError
from vitlab.core.registry import is_file_reference, permit
from vitlab.data.decoding import StrPath
from vitlab.data.open import PHOTOS
from vitlab.models.create import configured
from vitlab.models.zoo.rows import ZOO
from vitlab.weights.box import DEFAULT
from vitlab.weights.load import read_configuration

if TYPE_CHECKING:
    from vitlab.data.contract import DataSet, Split
    from vitlab.training.finish import RunOutcome
    from vitlab.training.recipe import Recipe

log = logging.getLogger("vitlab")
FEW = 200  # photos below which there is little to learn from them


def pretrain(
    photos: StrPath,
    model: StrPath = DEFAULT,
    *,
    method: str | None = None,
    out: StrPath | None = None,
    steps: int | None = None,
    epochs: float | None = None,
    lr: float | Literal["auto"] | None = None,
    batch_size: int | None = None,
    image_size: int | None = None,
    val_fraction: float = 0.1,
    tracker: Literal["none", "mlflow", "wandb"] = "none",
    seed: int = 0,
    adjust: "Callable[[Recipe], Recipe] | None" = None,
    device: str | None = None,
    show: bool = False,
) -> "RunOutcome":
    """Train a model further on photos without labels, for `finetune` to start from; what is None follows from them.

    `photos` is any data set, or any folder: what is no data set is all pictures below it. Labels are never learned
    from; where there are some, they measure the features, before and after. `model` is a source for `load`, or a row of
    the zoo without weights, for a start from fresh ones. `method` is one of recipes.unlabelled (DINO on a GPU, SimCLR
    on a CPU), or 'mine.py:NAME', an objective that needs no labels. `adjust` gets the recipe that was chosen, and gives
    the one to train by.
    """
    from vitlab.recipes import unlabelled

    device, source, data = choose_device(device), source_name(model, "model"), source_name(photos, "photos")
    method = unlabelled.default_method(on_gpu=device.startswith("cuda")) if method is None else method
    permit(method, source, data)
    check_length(steps, epochs)
    trained = not is_file_reference(source) and (source not in ZOO or Path(source).exists())

    def recipe_for(data: str, num_images: int) -> "Recipe":
        recipe = unlabelled.pretrain_recipe(
            data,
            source,
            method,
            trained=trained,
            num_images=num_images,
            on_gpu=device.startswith("cuda"),
            held_out=val_fraction,
            steps=steps,
            epochs=epochs,
            lr=None if lr == "auto" else lr,
            batch_size=batch_size,
            image_size=image_size,
        )
        return dataclasses.replace(recipe, seed=seed, tracker=tracker)

    draft = recipe_for(data, 1)  # so that nonsense is refused before anything is read
    (read_configuration if trained else configured)(source, image_size=image_size)
    data, dataset = _opened(draft)
    images = _learned_from(dataset)
    if len(images) < unlabelled.FEWEST:
        raise DataError(f"{data} has {len(images)} photo to learn from: give {unlabelled.FEWEST} at least.")
    if len(images) < FEW and os.environ.get("RANK", "0") == "0":
        log.warning(
            "%d photos are few to learn from without labels: `vitlab finetune` from %s as it is may be as good.",
            len(images),
            source,
        )
    recipe, _ = adjusted(lambda dataset: recipe_for(data, len(_learned_from(dataset))), dataset, adjust)
    return train(recipe, out=out, device=device, show=show, find_lr=lr == "auto")


def _opened(draft: "Recipe") -> "tuple[str, DataSet]":
    """The data and their name; a folder that is no data set is all pictures below it."""
    from vitlab.training.plan import open_parts

    data = draft.data.source
    try:
        return data, open_parts(draft)
    except DataError:
        if Path(data).expanduser().is_dir():
            below = f"{PHOTOS}{data}"
            with contextlib.suppress(DataError):  # then what was said first is what is wrong
                return below, open_parts(dataclasses.replace(draft, data=dataclasses.replace(draft.data, source=below)))
        raise


def _learned_from(dataset: "DataSet") -> "Split":
    """The photos that a run without labels trains on."""
    from vitlab.training.plan import divide

    return dataset.splits.get("unlabelled") or divide(dataset).train

"""What the verbs do, as functions. Nothing here prints."""

import contextlib
import dataclasses
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitlab.core.errors import Error, ImageError
from vitlab.core.pictures import Picture
from vitlab.core.preprocess import Preprocess
from vitlab.data.decoding import StrPath, find_images, read_image
from vitlab.models.contract import Model
from vitlab.models.create import create
from vitlab.models.zoo import ZooRow, list_models
from vitlab.weights.load import load, save

if TYPE_CHECKING:  # what only training needs is imported when something is trained
    from vitlab.training.recipe import Recipe
    from vitlab.training.session import Outcome

__all__ = [
    "Prediction",
    "Scored",
    "ZooRow",
    "create",
    "finetune",
    "list_models",
    "load",
    "predict",
    "resume",
    "save",
    "train",
]

Input: TypeAlias = StrPath | Picture
Pixels: TypeAlias = np.ndarray[Any, Any]
DECODERS = min(4, os.cpu_count() or 1)  # Pillow lets go of Python's lock while it decodes and resizes


@dataclass(frozen=True)
class Scored:
    """A class and its probability; a class without a name is called by its index."""

    label: str
    index: int
    probability: float


@dataclass(frozen=True)
class Prediction:
    """An image's most probable classes, or why it could not be read."""

    source: str | None  # the path, where the image was one
    classes: tuple[Scored, ...] = ()
    error: str | None = None


def predict(
    model: Model | StrPath,
    images: Input | Iterable[Input],
    top: int = 5,
    *,
    batch_size: int = 32,
    progress: Callable[[int, int], None] | None = None,
) -> list[Prediction]:
    """The `top` classes of each image, by softmax; an image that cannot be read gets an `error` instead.

    `model` is a model or a source for `load`; `images` are paths (folders are searched), PIL images or arrays, one or
    several. `progress` is called with the number of images answered so far and of all.
    """
    if top < 1:
        raise Error(f"top must be at least 1, not {top}.")
    if batch_size < 1:
        raise Error(f"The batch size must be at least 1, not {batch_size}.")
    items = _items(images)
    if not isinstance(model, Model):
        model = load(os.fspath(model))
    if getattr(model.config, "num_classes", None) == 0:
        raise Error("The model has no classifier: it gives features, not classes.")

    answers: list[Prediction] = []
    waiting: list[tuple[int, Pixels]] = []
    with _evaluating(model), torch.inference_mode():
        for index, decoded in enumerate(_decode_ahead(items, model.preprocess, ahead=2 * batch_size)):
            source = _source(items[index])
            if isinstance(decoded, ImageError):
                answers.append(Prediction(source, error=str(decoded)))
            else:
                answers.append(Prediction(source))
                waiting.append((index, decoded))
            if len(waiting) == batch_size or index == len(items) - 1:
                _answer(model, waiting, answers, top)
                waiting.clear()
                if progress is not None:
                    progress(index + 1, len(items))
    return answers


def train(
    recipe: "Recipe | str", *, out: StrPath | None = None, device: str | None = None, show: bool = False
) -> "Outcome":
    """A run by a recipe or its name, in the folder `out` or a new one under runs/; `show` reports on standard error."""
    from vitlab.recipes import find_recipe
    from vitlab.training import session

    chosen = find_recipe(recipe) if isinstance(recipe, str) else recipe
    return session.train(chosen, _run_folder(out, chosen.name), device=device, show=show)


def resume(run: StrPath, *, device: str | None = None, show: bool = False) -> "Outcome":
    """Go on with a run from its last checkpoint."""
    from vitlab.training import session

    return session.resume(Path(run), device=device, show=show)


def finetune(
    data: str,
    model: str,
    *,
    out: StrPath | None = None,
    steps: int | None = None,
    rate: float | None = None,
    batch_size: int | None = None,
    image_size: int | None = None,
    freeze: Literal["none", "backbone"] = "none",
    lora: int | None = None,
    val_fraction: float = 0.1,
    patience: int | None = None,
    seed: int = 0,
    device: str | None = None,
    show: bool = False,
) -> "Outcome":
    """Transfer trained weights to a data set as the paper does; what is None follows from the data's size.

    Without a GPU the resolution stays the model's own; with one, models of 224 px or more are trained at 384.
    """
    from vitlab.recipes.finetuning import budget, finetune_recipe
    from vitlab.training.prepare import divide, open_parts

    on_gpu = torch.cuda.is_available() if device is None else device.startswith("cuda")
    draft = finetune_recipe(data, model, steps=1, rate=1.0, warmup=0, held_out=val_fraction)
    spent = budget(len(divide(open_parts(draft)).train), on_gpu=on_gpu)
    total, batch = steps or spent.steps, batch_size or spent.batch_size
    if image_size is None and on_gpu and min(load(model).config.image_size) >= 224:
        image_size = 384
    recipe = finetune_recipe(
        data,
        model,
        steps=total,
        rate=rate or spent.rate,
        warmup=min(spent.warmup, total // 5),
        held_out=val_fraction,
        image_size=image_size,
        batch_size=batch,
    )
    parts = dataclasses.replace(recipe.model, train_only="head" if freeze == "backbone" else "all", lora=lora)
    return train(
        dataclasses.replace(recipe, model=parts, patience=patience, seed=seed), out=out, device=device, show=show
    )


def _run_folder(out: StrPath | None, name: str) -> Path:
    if out is not None:
        return Path(out)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise Error("Several processes need to know one folder for the run: give it (--out).")
    number, folder = 1, Path("runs", name)
    while folder.exists():
        number += 1
        folder = Path("runs", f"{name}-{number}")
    return folder


def _items(images: Input | Iterable[Input]) -> list[Input]:
    if isinstance(images, np.ndarray):
        return list(images) if images.ndim == 4 else [images]
    if isinstance(images, str | os.PathLike | Image.Image):
        images = [images]
    items: list[Input] = []
    for image in images:
        items += find_images(image) if isinstance(image, str | os.PathLike) else [image]
    return items


def _source(item: Input) -> str | None:
    return os.fspath(item) if isinstance(item, str | os.PathLike) else None


def _decode(item: Input, preprocess: Preprocess) -> Pixels | ImageError:
    try:
        picture = read_image(item) if isinstance(item, str | os.PathLike) else item
        return np.asarray(preprocess.picture(picture))
    except ImageError as error:
        return error


def _decode_ahead(items: list[Input], preprocess: Preprocess, ahead: int) -> Iterator[Pixels | ImageError]:
    """The items' pixels in order, decoded by threads that are at most `ahead` items in front of the model."""
    waiting: deque[Future[Pixels | ImageError]] = deque()
    with ThreadPoolExecutor(DECODERS) as pool:
        try:
            for item in items:
                waiting.append(pool.submit(_decode, item, preprocess))
                if len(waiting) > ahead:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _answer(model: Model, waiting: list[tuple[int, Pixels]], answers: list[Prediction], top: int) -> None:
    """Fill in the answers of the images that wait."""
    if not waiting:
        return
    weight = next(model.parameters())
    pixels = torch.from_numpy(np.stack([pixels for _, pixels in waiting])).to(weight.device).permute(0, 3, 1, 2)
    probabilities: Tensor = model(model.preprocess.normalise(pixels).to(weight.dtype)).float().softmax(dim=-1)
    if not probabilities.isfinite().all():
        raise Error("The model's output is not finite: its weights are damaged.")
    values, indices = probabilities.sort(dim=-1, descending=True, stable=True)
    rows = zip(waiting, values[:, :top].tolist(), indices[:, :top].tolist(), strict=True)
    for (place, _), row_values, row_indices in rows:
        scored = (
            Scored(model.labels[index] if model.labels else f"class {index}", index, value)
            for value, index in zip(row_values, row_indices, strict=True)
        )
        answers[place] = Prediction(answers[place].source, tuple(scored))


@contextlib.contextmanager
def _evaluating(model: Model) -> Iterator[None]:
    """The model in evaluation mode inside the block, each of its modules as it was afterwards."""
    training = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, flag in training:
            module.training = flag

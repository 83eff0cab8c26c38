"""The most probable classes of pictures, decoded by threads while the model answers."""

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch

from vitlab.core.errors import Error, ImageError
from vitlab.core.preprocess import Preprocess
from vitlab.data.decoding import Input, read_image
from vitlab.models.contract import Model, evaluating

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


def check(top: int, batch_size: int) -> None:
    """Before anything is loaded."""
    if top < 1:
        raise Error(f"top must be at least 1, not {top}.")
    if batch_size < 1:
        raise Error(f"The batch size must be at least 1, not {batch_size}.")


def predict(
    model: Model,
    items: Sequence[Input],
    top: int,
    batch_size: int,
    progress: Callable[[int, int], None] | None = None,
) -> list[Prediction]:
    """The `top` classes of each picture by their probabilities; one that cannot be read gets an `error` instead."""
    if getattr(model.config, "num_classes", None) == 0:
        raise Error("The model has no classifier: it gives features, not classes.")

    answers: list[Prediction] = []
    waiting: list[tuple[int, Pixels]] = []
    with evaluating(model), torch.inference_mode():
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


def _source(item: Input) -> str | None:
    return os.fspath(item) if isinstance(item, str | os.PathLike) else None


def _decode(item: Input, preprocess: Preprocess) -> Pixels | ImageError:
    try:
        picture = read_image(item) if isinstance(item, str | os.PathLike) else item
        return np.asarray(preprocess.picture(picture))
    except ImageError as error:
        return error


def _decode_ahead(items: Sequence[Input], preprocess: Preprocess, ahead: int) -> Iterator[Pixels | ImageError]:
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
    probabilities = model.probabilities(model(model.preprocess.normalise(pixels).to(weight.dtype)))
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

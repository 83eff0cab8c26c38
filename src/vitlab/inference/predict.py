"""What a model says of pictures, which are decoded by threads while it answers."""

import dataclasses
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, SupportsIndex, TypeAlias, overload

import numpy as np
import torch

from vitlab.core.errors import Error, ImageError
from vitlab.core.pictures import to_rgb
from vitlab.core.preprocess import Preprocess
from vitlab.core.thumbnails import Thumbnail, thumbnail
from vitlab.core.words import one_line
from vitlab.data.decoding import Input, read_image
from vitlab.models.contract import Model, evaluating
from vitlab.tasks import task_for
from vitlab.tasks.contract import Answer, Scored, Task

Pixels: TypeAlias = np.ndarray[Any, Any]
Decoded: TypeAlias = tuple[Pixels, tuple[int, int]]
DECODERS = min(4, os.cpu_count() or 1)  # Pillow lets go of Python's lock while it decodes and resizes
MOST_SHOWN = 12  # pictures of a list in a notebook, and so many of those without a file that are kept, small


@dataclass(frozen=True)
class Prediction:
    """What a model says of an image, or why it could not be read."""

    source: str | None  # the path, where the image was one
    answer: Answer | None = None
    error: str | None = None
    size: tuple[int, int] | None = None  # height and width of the picture, where it could be read
    small: Thumbnail | None = field(default=None, repr=False, compare=False)  # to show one that is not in a file

    @property
    def classes(self) -> tuple[Scored, ...]:
        """The most probable classes, where the model is a classifier."""
        return () if self.answer is None else self.answer.classes

    def __repr__(self) -> str:
        said = self.error if self.answer is None else self.answer.words()
        return one_line(f"<Prediction for {self.source or 'a picture'}: {said}>")

    def _repr_html_(self) -> str:
        """What a notebook shows: the picture and the answer."""
        from vitlab.inference.notebook import shown

        return shown(self)


class Predictions(list[Prediction]):
    """A prediction per picture: a list that a notebook shows as pictures with their answers."""

    @overload
    def __getitem__(self, place: SupportsIndex) -> Prediction: ...
    @overload
    def __getitem__(self, place: slice) -> "Predictions": ...
    def __getitem__(self, place: SupportsIndex | slice) -> "Prediction | Predictions":
        return Predictions(super().__getitem__(place)) if isinstance(place, slice) else super().__getitem__(place)

    def _repr_html_(self) -> str:
        """What a notebook shows: the first of them."""
        from vitlab.inference.notebook import shown_list

        return shown_list(self)


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
    *,
    task: Task | None = None,
) -> Predictions:
    """The answer to each picture as the task, by default the model's, has it; an unreadable one gets an `error`."""
    task = task or task_for(model)
    if getattr(model.config, "num_classes", None) == 0:
        raise Error(
            "The model has no classifier: it gives features (`vitlab embed`), not classes; `vitlab finetune` gives it"
            " one."
        )

    answers = Predictions()
    waiting: list[tuple[int, Pixels]] = []
    with evaluating(model), torch.inference_mode():
        for index, decoded in enumerate(_decode_ahead(items, model.preprocess, ahead=2 * batch_size)):
            source = _source(items[index])
            if isinstance(decoded, ImageError):
                answers.append(Prediction(source, error=str(decoded)))
            else:
                pixels, size = decoded
                small = _small(items[index]) if source is None and index < MOST_SHOWN else None
                answers.append(Prediction(source, size=size, small=small))
                waiting.append((index, pixels))
            if len(waiting) == batch_size or index == len(items) - 1:
                _answer(task, model, waiting, answers, top)
                waiting.clear()
                if progress is not None:
                    progress(index + 1, len(items))
    return answers


def _source(item: Input) -> str | None:
    return os.fspath(item) if isinstance(item, str | os.PathLike) else None


def _small(item: Input) -> Thumbnail:
    assert not isinstance(item, str | os.PathLike)
    return thumbnail(to_rgb(item))


def _decode(item: Input, preprocess: Preprocess) -> Decoded | ImageError:
    """What the model sees of a picture, and the picture's height and width."""
    try:
        picture = to_rgb(read_image(item) if isinstance(item, str | os.PathLike) else item)
        return np.asarray(preprocess.picture(picture)), (picture.height, picture.width)
    except ImageError as error:
        return error


def _decode_ahead(items: Sequence[Input], preprocess: Preprocess, ahead: int) -> Iterator[Decoded | ImageError]:
    """The items' pixels in order, decoded by threads that are at most `ahead` items in front of the model."""
    waiting: deque[Future[Decoded | ImageError]] = deque()
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


def _answer(task: Task, model: Model, waiting: list[tuple[int, Pixels]], answers: list[Prediction], top: int) -> None:
    """Fill in the answers of the images that wait."""
    if not waiting:
        return
    weight = next(model.parameters())
    pixels = torch.from_numpy(np.stack([pixels for _, pixels in waiting])).to(weight.device).permute(0, 3, 1, 2)
    outputs = model(model.preprocess.normalize(pixels).to(weight.dtype))
    if not outputs.isfinite().all():
        raise Error("The model's output is not finite: its weights are damaged.")
    for (place, _), answer in zip(waiting, task.answers(model, outputs, top), strict=True):
        answers[place] = dataclasses.replace(answers[place], answer=answer)

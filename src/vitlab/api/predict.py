"""Answers for pictures."""

from collections.abc import Callable, Iterable

from vitlab.api.given import given_images, placed
from vitlab.core.registry import permit
from vitlab.data.decoding import Input, StrPath, find_inputs
from vitlab.inference import predict as prediction
from vitlab.inference.predict import Predictions
from vitlab.models.contract import Model
from vitlab.tasks import task_for
from vitlab.weights.box import DEFAULT


def predict(
    model: Model | StrPath = DEFAULT,
    images: Input | Iterable[Input] | None = None,
    top: int = 5,
    *,
    task: str | None = None,
    batch_size: int = 32,
    device: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Predictions:
    """What the model says of each image: a classifier's `top` classes, a mask, or numbers, as its task has it.

    An image that cannot be read gets an `error` instead. `model` is a model or a source for `load`; `images` are paths
    (folders are searched), PIL images or arrays, one or several. `task` is the model's, unless it is in a file
    ('mine.py:NAME') and must be given again. `progress` is called with the number of images answered so far and of all.
    A model that is in memory answers where it is, unless a `device` is named. Without a model, as in
    `vitlab.predict(images="photo.jpg")`, it is vitlab/tiny.
    """
    prediction.check(top, batch_size)
    permit(*([] if task is None else [task]))
    items = find_inputs(given_images(images, "predict"))
    with placed(model, device) as (loaded, _):
        return prediction.predict(loaded, items, top, batch_size, progress, task=task_for(loaded, task))

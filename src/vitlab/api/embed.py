"""Features of pictures."""

import dataclasses
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Literal

from vitlab.api.given import given_images, source_name
from vitlab.core.devices import choose_device
from vitlab.core.errors import Error
from vitlab.data.decoding import Input, StrPath, find_inputs
from vitlab.models.contract import Model
from vitlab.weights.box import DEFAULT
from vitlab.weights.load import load

if TYPE_CHECKING:
    from vitlab.inference.embed import Embedding


def embed(
    model: Model | StrPath = DEFAULT,
    images: Input | Iterable[Input] | None = None,
    *,
    image_size: int | None = None,
    crops: Literal[1, 5] = 1,
    flip: bool = False,
    resize: int | None = None,
    batch_size: int = 32,
    workers: int | None = None,
    device: str | None = None,
    precision: Literal["float32", "bf16"] = "float32",
    progress: Callable[[int, int], None] | None = None,
) -> "Embedding":
    """The feature vector of each image: paths (folders are searched), PIL images or arrays, one or several."""
    from vitlab.evaluation.features import Reading
    from vitlab.evaluation.subject import lent, subject_of
    from vitlab.evaluation.testtime import TestTime, averaged
    from vitlab.inference.embed import embed_images
    from vitlab.training.distribution import join, share_of

    items, views = find_inputs(given_images(images, "embed")), TestTime(crops=crops, flip=flip, resize=resize)
    reading, device = Reading(batch_size=batch_size, workers=workers), choose_device(device)
    if isinstance(model, Model) and image_size is not None:
        raise Error("A model that is in memory has its resolution: load it with image_size instead.")
    loaded = model if isinstance(model, Model) else load(source_name(model, "model"), image_size=image_size)
    with join(device) as world, lent(loaded):
        subject = subject_of(loaded, name=type(loaded).__name__, device=world.device, precision=precision)
        shared = dataclasses.replace(reading, share=share_of(world))
        return embed_images(averaged(subject, views), items, shared, progress)

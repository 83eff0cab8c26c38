"""What the verbs are given: a model or its source, images, names; as what the rooms below take."""

import contextlib
import os
from collections.abc import Iterable, Iterator
from typing import cast

from torch import nn

from vitlab.core.devices import choose_device
from vitlab.core.errors import Error
from vitlab.data.decoding import Input, StrPath
from vitlab.models.contract import Model
from vitlab.models.generator import need_images
from vitlab.weights.box import DEFAULT
from vitlab.weights.load import load


@contextlib.contextmanager
def placed(model: Model | StrPath, device: str | None) -> Iterator[tuple[Model, str]]:
    """A model and its name; one that was given stays where it is unless a device is named, and goes back afterwards."""
    from vitlab.evaluation.subject import lent

    where = None if device is None and isinstance(model, Model) else choose_device(device)
    loaded, name = named(model)
    with lent(loaded):
        yield loaded if where is None else loaded.to(where), name


def named(model: Model | StrPath) -> tuple[Model, str]:
    """A model that takes images, and its name."""
    given, name = model, "the model"
    if not isinstance(given, Model):
        given, name = load(source_name(given, "model")), os.fspath(given)
    need_images(given, name)
    return given, name


def given_images(images: Input | Iterable[Input] | None, verb: str) -> Input | Iterable[Input]:
    if images is None:
        raise Error(
            f"There are no images: vitlab.{verb}(images=...) asks {DEFAULT}, vitlab.{verb}(model, images) another one."
        )
    return images


def source_name(value: object, what: str) -> str:
    """A path or a name, as recipes keep it."""
    if not isinstance(value, str | os.PathLike):
        also = "a model of vitlab's, " if what == "model" else ""
        raise Error(f"`{what}` must be {also}a path or a name, not {type(value).__name__}.")
    return os.fspath(cast("StrPath", value))


def data_name(data: StrPath | None) -> str | None:
    """A data set's path or name, where one was given."""
    return None if data is None else source_name(data, "data")


def check_module(model: object) -> None:
    """Refuse what is handed over for training and is no module."""
    if not isinstance(model, nn.Module):
        raise Error(f"`model` must be a path, a name, a model or a module, not {type(model).__name__}.")

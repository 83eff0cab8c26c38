"""What a file claims of a model against what it holds, compared before time or memory is spent on the claim."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from vitlab.core.errors import CheckpointError, Error
from vitlab.core.preprocess import Preprocess
from vitlab.models.contract import Model
from vitlab.models.create import empty_model
from vitlab.weights.files.container import TensorFile, reason

LARGEST = 1 << 24  # of any one size: classes are the most numerous, and no data set has so many
MOST_LAYERS = 10_000  # where there are no tensors to count
LARGEST_IMAGE = 1 << 14  # px
SIDES = ("image_size", "size", "shortest_edge")
LAYERS = ("depth", "depths", "layers", "resnet_layers")
SLACK = 1 << 28  # values that a model may have beside the file's, 1 GiB of them: a new head, tables of positions
FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def check_sizes(config: Mapping[str, Any], where: str, *, num_tensors: int = MOST_LAYERS) -> None:
    """Refuse sizes that no model has, and more layers than there are tensors."""
    for name, size in _numbers(config, ""):
        if size > (LARGEST_IMAGE if name in SIDES else LARGEST):
            raise CheckpointError(f"{where}: {name} is {size:.3g}, which no model has; mend it.")
        if name in LAYERS and size > num_tensors:
            raise CheckpointError(
                f"{where}: {name} is {size}, and there are {num_tensors} tensors in all; mend it."
                if num_tensors != MOST_LAYERS
                else f"{where}: {name} is {size}; at most {MOST_LAYERS} layers are taken."
            )


def claimed_model(config: Any, preprocess: Preprocess | None, tensors: TensorFile, where: str) -> Model:
    """The model on the meta device, of no more values than the tensors give, or nearly so."""
    return model_within(config, preprocess, sum(math.prod(shape) for shape in tensors.shapes.values()), where)


def model_within(config: Any, preprocess: Preprocess | None, held: int, where: str) -> Model:
    """The model on the meta device, where so many values are held for it."""
    try:
        model = empty_model(config, preprocess)
    except Error:
        raise
    except (RuntimeError, ValueError, TypeError, OverflowError, MemoryError) as error:  # torch's, of absurd sizes
        raise CheckpointError(f"{where}: no model of this configuration can be built ({reason(error)}).") from error
    wanted = sum(value.numel() for value in (*model.parameters(), *model.buffers()))
    if wanted > 4 * held + SLACK:
        raise CheckpointError(
            f"{where}: the model of this configuration has {wanted:.3g} values, and the file holds {held:.3g}; give the"
            " configuration that belongs to it."
        )
    return model


def check_kind(name: str, value: Tensor, wanted: torch.dtype, where: str) -> None:
    """Refuse values of a type that the model's tensor cannot have."""
    known = FLOATS if wanted.is_floating_point else INTEGERS
    if value.dtype not in known:
        names = ", ".join(_short(kind) for kind in known)
        raise CheckpointError(f"{where}: '{name}' is of {_short(value.dtype)}, where the model needs one of {names}.")


def _short(kind: torch.dtype) -> str:
    return str(kind).removeprefix("torch.")


def _numbers(value: Any, name: str) -> Iterator[tuple[str, int]]:
    """Every whole number in a configuration, with the name of its field."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _numbers(item, str(key))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _numbers(item, name)
    elif isinstance(value, int):
        yield name, value

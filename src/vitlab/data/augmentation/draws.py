"""The counted numbers of a sample. No two purposes share a draw, so one key serves all of augmentation."""

from typing import TypeAlias

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from vitlab.core.random import uniform

Key: TypeAlias = int | Tensor  # a Tensor is a 0-d int64 on the device of the places

CROP_AREA, CROP_ASPECT, CROP_PLACE, PAD, FLIP = 0, 10, 20, 22, 24
JITTER, POLICY = 25, 32  # a policy takes four a stage
ERASE, ERASE_AREA, ERASE_ASPECT, ERASE_PLACE, ERASE_NOISE = 100, 101, 111, 121, 123
MIX = 130
JITTERS, HUE, GRAY, BLUR, SOLARIZE = 150, 151, 152, 153, 155  # a blur takes two
TRIES = 10  # of a crop or an erased rectangle whose size must fit


def numbers(key: Key, places: Int[Tensor, "b"], first: int, count: int) -> Float[Tensor, "b d"]:
    """`count` numbers in [0, 1) for each place, from draw `first` on."""
    if isinstance(key, int) and places.device.type == "cpu" and not torch.compiler.is_compiling():
        # NumPy's numbers are torch's, and for a sample or two they cost half.
        return torch.from_numpy(uniform(key, places.numpy()[:, None], np.arange(first, first + count)))
    return uniform(key, places[:, None], torch.arange(first, first + count, device=places.device))


def integer(number: Tensor, count: Tensor | int) -> Tensor:
    """A whole number in 0 ... count - 1, int64, from one in [0, 1); the product may round up to `count`."""
    if isinstance(count, int):
        return (number * count).long().clamp(max=count - 1)
    return torch.minimum((number * count).long(), count - 1)


def one_image(images: Tensor) -> bool:
    """Whether to look at what was drawn: in a worker, not on a device and not while compiling."""
    return len(images) == 1 and images.device.type == "cpu" and not torch.compiler.is_compiling()

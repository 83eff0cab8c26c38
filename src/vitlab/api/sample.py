"""Pictures that a generator makes."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from vitlab.api.given import source_name
from vitlab.core.devices import choose_device
from vitlab.core.errors import Error
from vitlab.data.decoding import StrPath
from vitlab.models.contract import Model
from vitlab.models.generator import is_generator
from vitlab.weights.load import load

if TYPE_CHECKING:
    from vitlab.data.contract import Array


def sample(
    model: Model | StrPath,
    out: StrPath | None = None,
    *,
    num: int = 64,
    seed: int = 0,
    device: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> "Array":
    """Pictures that a run's generator makes of noise, uint8 [num, H, W, 3]; the same seed gives the same pictures.

    Where `out` is given, they are written there as PNG files, with a grid of all. A model that is in memory makes them
    where it is, unless a `device` is named.
    """
    from vitlab.evaluation.subject import lent
    from vitlab.inference import sample as sampling

    if num < 1:
        raise Error(f"The number of pictures must be at least 1, not {num}.")
    if not 0 <= seed < 2**64:
        raise Error(f"The seed must be a whole number from 0 to 2^64 - 1, not {seed}.")
    if out is not None:
        sampling.check_folder(Path(out))
    name = type(model).__name__ if isinstance(model, Model) else source_name(model, "model")
    loaded = model if isinstance(model, Model) else load(name)
    if not is_generator(loaded):
        raise Error(f"{name} makes no images: give a run that trained a generator, as `vitlab train transgan-digits`.")
    with lent(loaded):
        if device is not None or not isinstance(model, Model):
            loaded.to(choose_device(device))
        pictures = sampling.sample(loaded, num, seed, progress)
    if out is not None:
        sampling.write_samples(pictures, Path(out))
    return pictures

"""Pictures in arrays: in memory, or mapped from a file."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, final

import numpy as np

from vitlab.core.errors import DataError, ImageError
from vitlab.core.pictures import to_rgb
from vitlab.data.contract import Array
from vitlab.data.sources.source import Digest

MARKED = 1 << 28  # bytes that enter a fingerprint as they are, in a third of a second; of more a sample does:
SAMPLES, SAMPLE_BYTES = 64, 1 << 24  # so many images at most, and about so many bytes


@final
class Pixels:
    """Pictures [N, H, W] or [N, H, W, C] in memory."""

    def __init__(self, values: Array, place: str) -> None:
        self.values = values
        self.place = place
        self._wide = _is_wide(values)

    def __len__(self) -> int:
        return len(self.values)

    def read(self, index: int) -> Array:
        return as_picture(self.values[index], self.where(index), wide=self._wide)

    def where(self, index: int) -> str:
        return f"image {range(len(self))[index]} of {self.place}"

    def mark(self) -> str:
        return _mark(self.values)

    def identities(self) -> Array:
        return np.arange(len(self), dtype=np.int64)


@final
class MappedPixels:
    """Pictures in a file, mapped into memory by each process for itself when it first reads one.

    `axes` are the axes of one stored picture in the order rows, columns, channels: (1, 2, 0) where channels come first.
    """

    def __init__(
        self,
        path: Path,
        shape: Sequence[int],
        dtype: np.dtype[Any],
        *,
        offset: int = 0,
        axes: tuple[int, ...] | None = None,
        fortran: bool = False,
    ) -> None:
        self.path = path
        self.shape = tuple(shape)
        self.dtype = dtype
        self.offset = offset
        self.axes = axes
        self.fortran = fortran
        self._mapped: Array | None = None
        self._wide = dtype.itemsize == 2 and _is_wide(self.values)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_mapped": None}  # else the pixels themselves would be pickled

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def values(self) -> Array:
        """All pictures, [N, H, W] or [N, H, W, C], not yet read."""
        if self._mapped is None:
            order = "F" if self.fortran else "C"
            try:
                mapped = np.memmap(self.path, self.dtype, "r", self.offset, self.shape, order)
            except (OSError, ValueError) as error:
                raise DataError(f"Cannot read {self.path}: {error}.") from error
            self._mapped = mapped if self.axes is None else mapped.transpose(0, *(axis + 1 for axis in self.axes))
        return self._mapped

    def read(self, index: int) -> Array:
        return as_picture(np.array(self.values[index]), self.where(index), wide=self._wide)

    def where(self, index: int) -> str:
        return f"image {range(len(self))[index]} of {self.path}"

    def mark(self) -> str:
        return _mark(self.values)

    def identities(self) -> Array:
        return np.arange(len(self), dtype=np.int64)


def picture_axes(shape: Sequence[int], *, where: str) -> tuple[int, ...] | None:
    """The axes that put channels last in an array of pictures, None where they are; an error for other arrays."""
    good = len(shape) == 3 or (len(shape) == 4 and (shape[3] in (1, 3, 4) or shape[1] in (1, 3, 4)))
    if not good or 0 in shape[1:]:
        raise DataError(
            f"{where}: pictures must be an array [N, H, W], [N, H, W, C] or [N, C, H, W] with 1, 3 or 4 channels, not"
            f" {list(shape)}."
        )
    return (1, 2, 0) if len(shape) == 4 and shape[3] not in (1, 3, 4) else None


def check_values(values: Array, *, where: str) -> None:
    """That an array has values that can be pictures; floats are looked at in a sample, whose scale must be [0, 1]."""
    kind = values.dtype
    if kind == np.bool_ or np.issubdtype(kind, np.integer):
        return
    if not np.issubdtype(kind, np.floating):
        raise DataError(f"{where}: pictures must be numbers, not {kind}.")
    sample = values[_sample(values)]
    if sample.size and not (sample.min() >= -1e-6 and sample.max() <= 1 + 1e-6):  # NaN compares false
        raise DataError(
            f"{where}: pictures of floats must be in [0, 1], but these reach from {sample.min():g} to"
            f" {sample.max():g}; save them as uint8, or divide them."
        )


def as_picture(values: Array, where: str, *, wide: bool) -> Array:
    """A stored picture as uint8 [H, W] or [H, W, 3]; integers are 0 to 255, or with `wide` 0 to 65535."""
    values = values.astype(values.dtype.newbyteorder("="), copy=False)
    if values.ndim == 3 and values.shape[2] == 1:
        values = values[..., 0]
    if values.dtype == np.uint8 and (values.ndim == 2 or values.shape[2] == 3):
        return np.ascontiguousarray(values)
    if np.issubdtype(values.dtype, np.integer) and values.dtype != np.uint8 and not wide:
        if values.min() < 0 or values.max() > 255:
            raise ImageError(f"{where} has values from {values.min()} to {values.max()}: save it as uint8, 0 to 255.")
        values = values.astype(np.uint8)
    try:
        return np.asarray(to_rgb(values))
    except ImageError as error:
        raise ImageError(f"{where}: {error}") from error


def _is_wide(values: Array) -> bool:
    """Whether they are uint16 that in a sample go beyond 255, and not bytes in a wider type."""
    return (values.dtype.kind, values.dtype.itemsize) == ("u", 2) and bool(values[_sample(values)].max(initial=0) > 255)


def _mark(values: Array) -> str:
    some = values if values.nbytes <= MARKED else values[_sample(values)]
    return Digest(str(values.shape), str(values.dtype), np.ascontiguousarray(some)).text()


def _sample(values: Array) -> Array:
    """Places spread evenly over an array."""
    if not values.size:
        return np.zeros(0, np.int64)
    num = min(len(values), SAMPLES, max(1, SAMPLE_BYTES * len(values) // values.nbytes))
    return np.unique(np.linspace(0, len(values) - 1, num).astype(np.int64))

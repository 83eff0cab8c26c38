"""Features of any pictures, with their names, as a file."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vitlab.core.errors import ImageError, MissingDependencyError
from vitlab.core.files import atomic_file
from vitlab.core.pictures import Picture, to_rgb
from vitlab.core.reading import check_regular
from vitlab.data.contract import Array, Split
from vitlab.data.decoding import no_file
from vitlab.evaluation.contract import EvaluationError, Subject
from vitlab.evaluation.features import Progress, Reading, outputs

ENDINGS = (".npz", ".parquet")


@dataclass(frozen=True)
class Embedding:
    """One feature vector per image, float32 [N, D]; `names` are paths, or places where no path was given."""

    names: tuple[str, ...]
    features: Array
    unread: tuple[str, ...] = ()  # the names of images that could not be read


@dataclass(frozen=True)
class GivenImages:
    """Pictures, and files by their paths, as a data set's images."""

    items: Sequence[str | os.PathLike[str] | Picture]

    def __len__(self) -> int:
        return len(self.items)

    def read(self, index: int) -> bytes | Array:
        item = self.items[index]
        if not isinstance(item, str | os.PathLike):
            return np.asarray(to_rgb(item))
        try:
            check_regular(item)
        except FileNotFoundError:
            raise no_file(item) from None
        data = Path(item).read_bytes()
        if not data:
            raise ImageError(f"{os.fspath(item)} is empty.")
        return data

    def where(self, index: int) -> str:
        item = self.items[index]
        return os.fspath(item) if isinstance(item, str | os.PathLike) else f"image {index}"


def embed_images(
    subject: Subject,
    items: Sequence[str | os.PathLike[str] | Picture],
    reading: Reading,
    progress: Progress | None = None,
) -> Embedding:
    """The features of pictures and files; those that cannot be read are left out, and named in the log."""
    images = GivenImages(items)
    values, found = [], []
    for batch in outputs(subject.features, subject, Split(images), reading, progress):
        values.append(batch.values.numpy())
        found.append(batch.indices)
    read = np.concatenate(found)
    missing = np.setdiff1d(np.arange(len(items)), read)
    return Embedding(
        tuple(images.where(int(index)) for index in read),
        np.concatenate(values),
        tuple(images.where(int(index)) for index in missing),
    )


def check_ending(path: Path) -> None:
    """Refuse what cannot be written before anything is computed."""
    if path.suffix.lower() not in ENDINGS:
        raise EvaluationError(f"Features are written to a file that ends in .npz or .parquet, not '{path.name}'.")
    if path.suffix.lower() == ".parquet":
        _pyarrow()


def write_embedding(embedding: Embedding, path: Path) -> None:
    """`names` and `features` as the arrays of an .npz, or the columns of a .parquet file; whole or not at all."""
    check_ending(path)
    with atomic_file(path) as partial:
        if path.suffix.lower() == ".npz":
            np.savez(partial, names=np.array(embedding.names, dtype=np.str_), features=embedding.features)
            return
        arrow, parquet = _pyarrow()
        flat = arrow.array(embedding.features.ravel())
        rows = arrow.FixedSizeListArray.from_arrays(flat, embedding.features.shape[1])
        names = [name.encode(errors="backslashreplace").decode() for name in embedding.names]  # may not be UTF-8
        parquet.write_table(arrow.table({"names": names, "features": rows}), str(partial))


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise MissingDependencyError(
            "Writing .parquet needs the package pyarrow: pip install 'vitlab[hub]', or write .npz."
        ) from error
    return pyarrow, parquet

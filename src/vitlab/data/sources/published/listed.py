"""Data sets whose authors list the images of each split in files."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from vitlab.core.errors import DataError
from vitlab.data.contract import Array, DataSet, Masks
from vitlab.data.sources.files import Files, Listing, measure
from vitlab.data.sources.source import make


def listed(
    name: str,
    root: Path,
    classes: Sequence[str],
    parts: Mapping[str, tuple[Sequence[str], Sequence[int] | Array]],
    *,
    named_in: Path,
    masks: Mapping[str, Masks] | None = None,
    notes: Iterable[str] = (),
) -> DataSet:
    """A data set of image files by name below `root`, all of which have to be there."""
    found: dict[str, tuple[Files, Array]] = {}
    everything = Listing()
    for split, (names, labels) in parts.items():
        sizes = measure(root, names, named_in=named_in)
        everything.add(Listing([*names], sizes))
        found[split] = Files(root, names, sizes), np.asarray(labels, np.int64)
    if not everything.names:
        raise DataError(f"{named_in} names no images.")
    return make(name, classes, found, masks=masks, notes=[*notes, *everything.notes()])

"""Whether pictures of one part of a data set are in another too, looked for where that takes seconds."""

import time
from typing import Final

import numpy as np

from vitlab.core.errors import ImageError
from vitlab.core.words import command, count, short
from vitlab.data.contract import DataSet
from vitlab.data.copies import SIDE, find_copies
from vitlab.data.decoding import decode

MOST: Final = 20_000  # images that are compared with each other
SECONDS: Final = 10.0  # that looking may take
TRIED: Final = 8  # images by which that is known


def leaks_in_words(dataset: DataSet, source: str) -> str | None:
    """A sentence on the images of val and test that are copies of others' parts, or that they were not looked for."""
    if len(dataset.splits) < 2:
        return None
    lists = f"`{command('vitlab', 'data', source)}` lists them"
    if sum(map(len, dataset.splits.values())) > MOST or _seconds(dataset) > SECONDS:
        return f"Copies between the parts of so many images were not looked for: {lists}."
    leaks = [pair for pair in find_copies(dataset) if pair.leaks]
    if not leaks:
        return None
    numbers = [(name, sum(pair.second.split == name for pair in leaks)) for name in dataset.splits]
    where = " and ".join(f"{count(number, 'image')} of {name}" for name, number in numbers if number)
    first, copies = leaks[0], "is a copy of one" if len(leaks) == 1 else "are copies of some"
    return (
        f"{where} {copies} in another part, so that the scores are"
        f" too high ({short(first.second.where)} is {short(first.first.where)}, in {first.first.split}): {lists}."
    )


def _seconds(dataset: DataSet) -> float:
    """About how long one thread would look at all images, by some of the largest part."""
    split = max(dataset.splits.values(), key=len)
    tried = np.linspace(0, len(split) - 1, min(TRIED, len(split))).astype(int).tolist()
    begun = time.perf_counter()
    for index in tried:
        try:
            decode(split.images.read(index), split.images.where(index), min_size=(2 * SIDE, 2 * SIDE))
        except ImageError:
            continue
    return (time.perf_counter() - begun) / len(tried) * sum(map(len, dataset.splits.values()))

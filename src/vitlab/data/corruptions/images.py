"""A data set's images under every condition, one after the other, made when they are read."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from vitlab.core.preprocess import Preprocess
from vitlab.data.conditions import TARGET, condition
from vitlab.data.contract import Array, Images, Split, Values
from vitlab.data.corruptions import check, corrupt
from vitlab.data.decoding import read_picture


@final
@dataclass(frozen=True)
class Corrupted:
    """Pictures as a model sees them, resized and cropped, and then corrupted; all of a condition, then of the next."""

    images: Images
    preprocess: Preprocess
    conditions: tuple[tuple[str, int], ...]
    seed: int = 0

    def __len__(self) -> int:
        return len(self.images) * len(self.conditions)

    def read(self, index: int) -> Array:
        (corruption, severity), place = self._find(index)
        picture = self.preprocess.picture(read_picture(self.images.read(place), self.images.where(place)))
        return corrupt(np.asarray(picture), corruption, severity, seed=self.seed, number=place)

    def where(self, index: int) -> str:
        (corruption, severity), place = self._find(index)
        return f"{self.images.where(place)} ({corruption} {severity})"

    def _find(self, index: int) -> tuple[tuple[str, int], int]:
        which, place = divmod(range(len(self))[index], len(self.images))
        return self.conditions[which], place


def corrupted(
    split: Split, preprocess: Preprocess, corruptions: Sequence[str], severities: Sequence[int], *, seed: int = 0
) -> tuple[Split, Preprocess]:
    """A labelled split under each corruption at each severity, and the preprocessing that adds nothing to it."""
    conditions = tuple((corruption, severity) for corruption in corruptions for severity in severities)
    for corruption, severity in conditions:
        check(corruption, severity)
    numbers = np.array([condition(*each) for each in conditions], np.int64)
    targets = {
        "label": Values(np.tile(split.labels, len(conditions)), split.label.kind),
        TARGET: Values(np.repeat(numbers, len(split))),
    }
    made = Split(Corrupted(split.images, preprocess, conditions, seed), targets)
    return made, whole_picture(preprocess)


def whole_picture(preprocess: Preprocess) -> Preprocess:
    """The preprocessing without its crop, for pictures that are cropped already: one of its size is left as it is."""
    return dataclasses.replace(preprocess, resize="squash", shortest_edge=None)

"""The digits that scikit-learn carries inside: 1797 grey pictures of 8 x 8."""

from pathlib import Path

import numpy as np

from vitlab.data.contract import DataSet
from vitlab.data.sources.holdout import hold_out
from vitlab.data.sources.pixels import Pixels
from vitlab.data.sources.source import Published, make, never

TEST = 0.2


def read(_: Path) -> DataSet:
    """Values 0 to 16 as bytes; a fifth, always the same, is the test part."""
    from sklearn.datasets import load_digits  # slow to import

    values, labels = load_digits(return_X_y=True)
    pictures = np.rint(np.asarray(values).reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
    parts = {"train": (Pixels(pictures, "scikit-learn's digits"), np.asarray(labels, np.int64))}
    return hold_out(make("digits", tuple("0123456789"), parts, changes_labels=("flip",)), TEST, into="test")


SOURCE = Published(
    "digits",
    "scikit-learn's digits",
    never,
    read,
    (),
    "https://scikit-learn.org/stable/modules/generated/sklearn.datasets.load_digits.html",
    embedded=True,
)

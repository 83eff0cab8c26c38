"""What pictures of a corrupted set went through: a corruption and a severity, numbered alike in every such set.

A split of one has the target `condition`: for each image the number of both.
"""

from collections.abc import Sequence

import numpy as np

from vitlab.data.contract import Array, Split, Values
from vitlab.data.places import spread

NOISE = ("gaussian_noise", "shot_noise", "impulse_noise")
BLUR = ("defocus_blur", "glass_blur", "motion_blur", "zoom_blur")
WEATHER = ("snow", "frost", "fog", "brightness")
DIGITAL = ("contrast", "elastic_transform", "pixelate", "jpeg_compression")
COMMON = (*NOISE, *BLUR, *WEATHER, *DIGITAL)  # the fifteen that the mean corruption error is over
EXTRA = ("speckle_noise", "gaussian_blur", "spatter", "saturate")  # the authors', to develop methods on
ALL = (*COMMON, *EXTRA)
SEVERITIES = (1, 2, 3, 4, 5)
TARGET = "condition"


def condition(corruption: str, severity: int) -> int:
    return ALL.index(corruption) * len(SEVERITIES) + severity - 1


def meaning(number: int) -> tuple[str, int]:
    """The corruption and the severity that a number stands for."""
    which, severity = divmod(number, len(SEVERITIES))
    return ALL[which], severity + 1


def conditions_of(split: Split) -> Array:
    """The number of each image's condition, of a split that has them."""
    found = split.targets[TARGET]
    assert isinstance(found, Values)
    return found.values


def chosen(
    conditions: Array, corruptions: Sequence[str], severities: Sequence[int], images: int | None = None
) -> Array:
    """The numbers of the images of some conditions; of each at most so many, at the same places in each."""
    found = [np.zeros(0, np.int64)]
    for number in np.unique(conditions).tolist():
        corruption, severity = meaning(number)
        if corruption in corruptions and severity in severities:
            rows = np.flatnonzero(conditions == number)
            found.append(rows[spread(len(rows), images)])
    return np.concatenate(found)

"""How long: '300 epochs', '10000 steps', '50M images', or '5%' of the whole."""

import math
import re
from dataclasses import dataclass

from vitlab.core.errors import ConfigError

PATTERN = re.compile(r"\s*([0-9]*\.?[0-9]+)\s*([kM]?)\s*(steps?|epochs?|images?|%)?\s*")
MOST = 1e15  # of anything
UNITS = {"": 1.0, "k": 1e3, "M": 1e6}


@dataclass(frozen=True)
class Pace:
    """What turns a duration into steps: images per step, images per epoch."""

    batch_size: int
    epoch_size: int


def parse(duration: str | int) -> tuple[float, str]:
    """How many of what: step, epoch, image or '%'; a bare number is steps."""
    match = PATTERN.fullmatch(str(duration))
    if match is None:
        raise ConfigError(f"'{duration}' is no duration; write '500 steps', '90 epochs', '10M images' or '5%'.")
    amount = float(match[1]) * UNITS[match[2]]
    if amount > MOST:
        raise ConfigError(f"'{duration}' is longer than a run can be.")
    return amount, (match[3] or "steps").rstrip("s")


def steps(duration: str | int, pace: Pace, *, total: int | None = None) -> int:
    """A duration in optimizer steps, rounded to the nearest, and one at least unless it is 0; '%' is of `total`."""
    amount, unit = parse(duration)
    if unit == "%":
        if total is None:
            raise ConfigError(f"'{duration}': the whole cannot be a part of itself; give steps, epochs or images.")
        return max(round(amount / 100 * total), math.ceil(min(amount, 1)))
    if unit == "step":
        if amount != int(amount):
            raise ConfigError(f"'{duration}': there is no part of a step; of the whole, write '5%'.")
        return int(amount)
    images = amount * pace.epoch_size if unit == "epoch" else amount
    return max(round(images / pace.batch_size), math.ceil(min(images, 1)))

"""Common corruptions of pictures (Hendrycks and Dietterich, 2019), made here, at five severities.

The constants are those of the authors' CIFAR-10-C, for pictures of 32 pixels; lengths in pixels grow with the shorter
side. Frost has no photographs of ice but a texture of our own. So figures from these are not CIFAR-10-C's.
"""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from vitlab.core.errors import ConfigError, near_matches
from vitlab.core.random import key
from vitlab.data.conditions import ALL, SEVERITIES
from vitlab.data.contract import Array
from vitlab.data.corruptions import blur, digital, noise, spatter, weather
from vitlab.data.corruptions.draws import Draws

# from a picture in [0, 1], float64 [H, W, 3], a severity from 0 to 4 and random numbers to one that may leave [0, 1]
Corruption: TypeAlias = Callable[[Array, int, Draws], Array]

FUNCTIONS: dict[str, Corruption] = {
    "gaussian_noise": noise.gaussian_noise,
    "shot_noise": noise.shot_noise,
    "impulse_noise": noise.impulse_noise,
    "defocus_blur": blur.defocus_blur,
    "glass_blur": blur.glass_blur,
    "motion_blur": blur.motion_blur,
    "zoom_blur": blur.zoom_blur,
    "snow": weather.snow,
    "frost": weather.frost,
    "fog": weather.fog,
    "brightness": weather.brightness,
    "contrast": digital.contrast,
    "elastic_transform": digital.elastic_transform,
    "pixelate": digital.pixelate,
    "jpeg_compression": digital.jpeg_compression,
    "speckle_noise": noise.speckle_noise,
    "gaussian_blur": blur.gaussian_blur,
    "spatter": spatter.spatter,
    "saturate": digital.saturate,
}
assert tuple(FUNCTIONS) == ALL


def corrupt(pixels: Array, corruption: str, severity: int, *, seed: int = 0, number: int = 0) -> Array:
    """A picture, uint8 [H, W, 3], corrupted at a severity from 1 to 5; `number` tells pictures of one seed apart."""
    check(corruption, severity)
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3:
        raise ConfigError(f"A picture to corrupt must be uint8 [H, W, 3], not {pixels.dtype} {list(pixels.shape)}.")
    draws = Draws(key(seed, "corruption", corruption, severity, number))
    found = FUNCTIONS[corruption](pixels / 255, severity - 1, draws)
    return (found.clip(0, 1) * 255 + 1e-6).astype(np.uint8)  # cut off, not rounded, as the authors' files are


def check(corruption: str, severity: int) -> None:
    """Refuse what is no corruption or no severity."""
    if corruption not in FUNCTIONS:
        hint = near_matches(corruption, FUNCTIONS) or f" There are {', '.join(FUNCTIONS)}."
        raise ConfigError(f"There is no corruption named '{corruption}'.{hint}")
    if severity not in SEVERITIES:
        raise ConfigError(f"The severity of a corruption is a whole number from 1 to 5, not {severity}.")

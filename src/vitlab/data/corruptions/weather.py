"""Snow, frost, fog, and more light."""

import math

import numpy as np

from vitlab.data.contract import Array
from vitlab.data.corruptions.draws import Draws
from vitlab.data.corruptions.geometry import enlarged, proportion, streaked, zoomed

# of the flakes: mean, deviation, how much larger than a pixel, the least that is one, px of their fall (radius, sigma);
# and the part of the picture that does not turn grey
SNOW = (
    (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
    (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
    (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
    (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
    (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
)
FROST = ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45))  # of the picture, and of the ice
FOG = ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75))  # how thick, and how fast its detail fades
LIGHT = (0.05, 0.1, 0.15, 0.2, 0.3)  # added to the largest channel
GREY = np.array([0.299, 0.587, 0.114])
ICE = np.array([0.92, 0.97, 1.0])  # a touch of blue
DETAIL = 5  # sizes of crystals, each half of the one before


def snow(x: Array, severity: int, draws: Draws) -> Array:
    mean, deviation, zoom, least, radius, sigma, kept = SNOW[severity]
    scale = proportion(x.shape)
    flakes = zoomed(mean + deviation * draws.normal(x.shape[:2]), zoom * scale)
    flakes = np.floor(np.where(flakes < least, 0, flakes).clip(0, 1) * 255) / 255
    flakes = streaked(flakes, radius * scale, sigma * scale, draws.one(-135, -45))
    flakes = np.rint(flakes * 255)[..., None] / 255
    pale = kept * x + (1 - kept) * np.maximum(x, (x @ GREY)[..., None] * 1.5 + 0.5)
    return pale + flakes + flakes[::-1, ::-1]


def frost(x: Array, severity: int, draws: Draws) -> Array:
    picture, ice = FROST[severity]
    return picture * x + ice * crystals(x.shape[:2], draws)[..., None] * ICE


def crystals(size: tuple[int, int], draws: Draws) -> Array:
    """A texture of ice in [0, 1]: veins, where noise of several sizes crosses its middle, on a pale ground.

    It stands in for the authors' photographs, whose brightness its own is like.
    """
    ridges, ground = np.zeros(size), np.zeros(size)
    for octave in range(DETAIL):
        cells = 2 ** (octave + 1)
        shape = tuple(max(math.ceil(cells * side / max(size)), 1) + 1 for side in size)
        noise = enlarged(draws.uniform(shape), size)
        ridges += (1 - np.abs(2 * noise - 1)) ** 4 / 2 ** (octave / 2)
        ground += noise / 2**octave
    return (0.25 + 0.35 * ground / ground.max() + 0.6 * ridges / ridges.max() - 0.15).clip(0, 1)


def fog(x: Array, severity: int, draws: Draws) -> Array:
    """Fog is added, and the sum brought back to the picture's own range."""
    thick, fading = FOG[severity]
    height, width = x.shape[:2]
    most = x.max()
    cloud = plasma(1 << (max(height, width, 2) - 1).bit_length(), fading, draws)[:height, :width]
    return (x + thick * cloud[..., None]) * most / (most + thick)


def plasma(side: int, fading: float, draws: Draws) -> Array:
    """A cloud in [0, 1] by diamonds and squares on a torus; `side` is a power of two.

    The middle of four neighbours is their mean and a random number, within the square of 100 at first, and of
    `fading` times less at each finer step.
    """
    values = np.zeros((side, side))
    step, range_ = side, 100.0
    while step >= 2:
        half = step // 2
        corners = values[::step, ::step]
        below, right = np.roll(corners, -1, 0), np.roll(corners, -1, 1)
        middle = _near((corners, below, right, np.roll(below, -1, 1)), range_, draws)
        values[half::step, half::step] = middle
        values[::step, half::step] = _near((middle, np.roll(middle, 1, 0), corners, right), range_, draws)
        values[half::step, ::step] = _near((middle, np.roll(middle, 1, 1), corners, below), range_, draws)
        step, range_ = half, range_ / fading
    values -= values.min()
    return values / values.max()


def _near(neighbours: tuple[Array, ...], range_: float, draws: Draws) -> Array:
    mean = sum(neighbours) / len(neighbours)
    return mean + range_ * draws.uniform(neighbours[0].shape, -range_, range_)


def brightness(x: Array, severity: int, draws: Draws) -> Array:
    """The value of HSV raised, hue and saturation kept: all channels in proportion, and black to grey."""
    del draws
    value = x.max(axis=2, keepdims=True)
    raised = np.minimum(value + LIGHT[severity], 1)
    return np.where(value > 0, x * (raised / np.where(value > 0, value, 1)), raised)

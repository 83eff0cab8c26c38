"""The policies as data: operations, the ranges of their values, and what is chosen among."""

from enum import IntEnum
from typing import NamedTuple, get_args

from vitlab.data.augmentation.autoaugment import CIFAR10, IMAGENET, SubPolicy
from vitlab.data.augmentation.config import Policy


class Op(IntEnum):
    """Operations, and in what their value is measured."""

    IDENTITY = 0
    ROTATE = 1  # degrees, counter-clockwise
    SHEAR_X = 2  # pixels a row
    SHEAR_Y = 3
    TRANSLATE_X = 4  # a fraction of the width, to the left
    TRANSLATE_Y = 5
    INVERT = 6
    POSTERIZE = 7  # bits to keep
    SOLARIZE = 8  # the least level that is inverted
    SOLARIZE_ADD = 9  # levels, added to those under 128
    BRIGHTNESS = 10  # a factor; 1 changes nothing
    CONTRAST = 11
    AUTOCONTRAST = 12
    EQUALIZE = 13
    COLOR = 14  # saturation; 0 is greyscale
    SHARPNESS = 15
    BLUR = 16  # sigma in pixels
    CUTOUT = 17  # pixels on each side of a drawn one, which become `fill`
    SIZE_CONTRAST = 18  # a factor, as for CONTRAST, but about the level height * width / 256, at most 255
    HUE = 19  # a part of the circle


class Choice(NamedTuple):
    """An operation of a policy: its value is start + slope * strength, within bounds.

    Strengths are in [0, 1], or above 1 for `randaugment`'s magnitudes above 10: bounds are for these.
    """

    op: Op
    start: float = 0.0
    slope: float = 0.0
    signed: bool = False  # the sign of the slope is drawn
    step: int = 0  # 1: slope * strength is cut to a whole number; 2: rounded
    low: float = float("-inf")
    high: float = float("inf")


ENHANCE = (Op.COLOR, Op.CONTRAST, Op.BRIGHTNESS, Op.SHARPNESS)

# timm's "increasing" set: every operation grows stronger with the magnitude. The bounds are timm's, but for that on
# bits: timm goes on to negative numbers of them.
RANDAUGMENT = (
    Choice(Op.AUTOCONTRAST),
    Choice(Op.EQUALIZE),
    Choice(Op.INVERT),
    Choice(Op.ROTATE, 0, 30, signed=True),
    Choice(Op.POSTERIZE, 4, -4, step=1, low=0),
    Choice(Op.SOLARIZE, 256, -256, step=1, low=0),
    Choice(Op.SOLARIZE_ADD, 0, 110, step=1, high=128),
    *(Choice(op, 1, 0.9, signed=True, low=0.1) for op in ENHANCE),
    Choice(Op.SHEAR_X, 0, 0.3, signed=True),
    Choice(Op.SHEAR_Y, 0, 0.3, signed=True),
    Choice(Op.TRANSLATE_X, 0, 0.45, signed=True),
    Choice(Op.TRANSLATE_Y, 0, 0.45, signed=True),
)
# AutoAugment's ranges (its table 6); translations were 150 of 331 pixels.
AUTOAUGMENT = (
    Choice(Op.AUTOCONTRAST),
    Choice(Op.EQUALIZE),
    Choice(Op.INVERT),
    Choice(Op.ROTATE, 0, 30, signed=True),
    Choice(Op.POSTERIZE, 8, -4, step=2),
    Choice(Op.SOLARIZE, 255, -255),
    *(Choice(op, 0.1, 1.8) for op in ENHANCE),
    Choice(Op.SHEAR_X, 0, 0.3, signed=True),
    Choice(Op.SHEAR_Y, 0, 0.3, signed=True),
    Choice(Op.TRANSLATE_X, 0, 150 / 331, signed=True),
    Choice(Op.TRANSLATE_Y, 0, 150 / 331, signed=True),
)
# TrivialAugment's wide ranges; its translations of 32 pixels are set by the image's size when it is known.
TRIVIAL = (
    Choice(Op.IDENTITY),
    Choice(Op.AUTOCONTRAST),
    Choice(Op.EQUALIZE),
    Choice(Op.ROTATE, 0, 135, signed=True),
    Choice(Op.POSTERIZE, 8, -6, step=2),
    Choice(Op.SOLARIZE, 255, -255),
    *(Choice(op, 1, 0.99, signed=True) for op in ENHANCE),
    Choice(Op.SHEAR_X, 0, 0.99, signed=True),
    Choice(Op.SHEAR_Y, 0, 0.99, signed=True),
    Choice(Op.TRANSLATE_X, 0, 32, signed=True),
    Choice(Op.TRANSLATE_Y, 0, 32, signed=True),
)
TRIVIAL_LEVELS = 31


def official(magnitude: float) -> tuple[Choice, ...]:
    """RandAugment as in tensorflow/tpu, models/official/efficientnet/autoaugment.py, for a strength of 1.

    big_vision has a copy of that file and V-MoE's code imports it. What looks odd is what it computes: contrast is not
    about the mean level but about one that the size gives (tensorflow/tpu#825); thresholds of solarising are bytes, so
    that those of 10 and 20 are 0 and invert all (google-research/big_vision#110); shifts of bits are bytes of at most
    7. Translations are in pixels: they are set by the image's size when it is known.
    """
    level = magnitude / 10
    bits, factor = int(level * 4), level * 1.8 + 0.1
    return (
        Choice(Op.AUTOCONTRAST),
        Choice(Op.EQUALIZE),
        Choice(Op.INVERT),
        Choice(Op.ROTATE, 0, level * 30, signed=True),
        Choice(Op.POSTERIZE, 8 - min((8 - bits) % 256, 7)),
        Choice(Op.SOLARIZE, int(level * 256) % 256),
        Choice(Op.COLOR, factor),
        Choice(Op.SIZE_CONTRAST, factor),
        Choice(Op.BRIGHTNESS, factor),
        Choice(Op.SHARPNESS, factor),
        Choice(Op.SHEAR_X, 0, level * 0.3, signed=True),
        Choice(Op.SHEAR_Y, 0, level * 0.3, signed=True),
        Choice(Op.TRANSLATE_X, 0, level * 100, signed=True),
        Choice(Op.TRANSLATE_Y, 0, level * 100, signed=True),
        Choice(Op.CUTOUT, int(level * 40)),
        Choice(Op.SOLARIZE_ADD, int(level * 110)),
    )


# DeiT III: greyscale, solarisation at 128, or a blur of sigma 0.1 to 2.
THREE = (Choice(Op.COLOR), Choice(Op.SOLARIZE, 128), Choice(Op.BLUR, 0.1, 1.9))
JITTERED = (Op.BRIGHTNESS, Op.CONTRAST, Op.COLOR)
ORDERS = ((0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0))

CHOICES: dict[Policy, tuple[Choice, ...]] = {
    "none": (),
    "randaugment": RANDAUGMENT,
    "autoaugment": AUTOAUGMENT,
    "autoaugment-cifar10": AUTOAUGMENT,
    "three": THREE,
    "trivial": TRIVIAL,
}
SUB_POLICIES: dict[Policy, tuple[SubPolicy, ...]] = {"autoaugment": IMAGENET, "autoaugment-cifar10": CIFAR10}


def choices(policy: Policy, magnitude: float) -> tuple[Choice, ...]:
    """What a policy chooses among; only in `randaugment-official` the magnitude changes it."""
    return official(magnitude) if policy == "randaugment-official" else CHOICES[policy]


OPS: dict[Policy, tuple[Op, ...]] = {
    policy: tuple(choice.op for choice in choices(policy, 0)) for policy in get_args(Policy)
}


def choice_number(policy: Policy, name: str) -> int:
    """Where a policy has the operation of that name."""
    return OPS[policy].index(Op[name.upper()])

"""What an augmentation is: one typed, JSON-able description."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from vitlab.core.bounds import Fraction, NonNegativeFloat, NonNegativeInt, Probability
from vitlab.core.config import check_fields
from vitlab.core.errors import ConfigError

Crop: TypeAlias = Literal["paper", "pad", "resize", "part"]
Policy: TypeAlias = Literal[
    "none", "randaugment", "randaugment-official", "autoaugment", "autoaugment-cifar10", "three", "trivial"
]

MAX_OPS = 16
USUAL_MAGNITUDE, MAX_MAGNITUDE = 10.0, 30.0  # where operations reach the ends of their ranges; how far they go on


@dataclass(frozen=True)
class Augmentation:
    """How training images are augmented; the defaults are the paper's crop and flip.

    Policies: `randaugment` is timm's increasing variant (`rand-m{magnitude}-n{num_ops}-mstd{magnitude_std}-inc1`), with
    op_prob 0.5 as there and 1 as in the paper; `randaugment-official` is that of its authors in TensorFlow, which
    Google's recipes call `randaug({num_ops},{magnitude})`; `autoaugment` and `autoaugment-cifar10` are the published
    tables; `three` is DeiT III's choice of greyscale, solarisation or blur; `trivial` is TrivialAugment's wide range.

    Magnitudes above 10 extrapolate, in `randaugment` as in timm's with `mmax30`, up to bounds: factors of
    colour at least 0.1, at most 128 levels added. From 10 on its posterising keeps no bit (the picture is black) and
    its solarising inverts all of it. Draws with `magnitude_std` are cut at 10 for a magnitude of up to 10, and at 30
    above. The official one applies every operation that it draws, at exactly the magnitude.
    """

    crop: Crop = "paper"
    """paper: random resized crop; pad: shift by up to `pad` pixels; resize: the whole picture; part: `crop_part` of
    each side at a random place, as by resizing to a larger square and cropping from it."""
    crop_part: Fraction = 0.875  # crop=part: the share of each side
    crop_area: tuple[float, float] = (0.05, 1.0)  # crop=paper: the range of the crop's share of the picture's area
    crop_aspect: tuple[float, float] = (3 / 4, 4 / 3)  # crop=paper: the range of width / height
    pad: NonNegativeInt = 4  # crop=pad: pixels on each side
    pad_mode: Literal["zero", "reflect"] = "zero"  # crop=pad: fill the padding with black, or with the mirrored picture
    flip: Probability = 0.5  # the probability of a left-right flip
    policy: Policy = "none"  # which operations of colour and shape are applied, after the crop
    num_ops: int = 2  # both randaugments: operations per image
    magnitude: float = 9.0  # both randaugments: the operations' strength, 0 to 30
    magnitude_std: NonNegativeFloat = 0.5  # randaugment: the standard deviation of the magnitude
    op_prob: Probability = 0.5  # randaugment: the probability of each operation
    fill: tuple[int, int, int] = (128, 128, 128)  # the colour outside the picture, for geometric operations
    jitter: Probability = 0.0  # brightness, contrast and saturation times 1 - jitter to 1 + jitter, in random order
    hue: Probability = 0.0  # rotate hue by up to this fraction of the circle, either way, after the jitter
    jitter_prob: Probability = 1.0  # the probability of jitter and hue together
    gray: Probability = 0.0  # the probability of greyscale, after these
    blur: Probability = 0.0  # the probability of a Gaussian blur of sigma 0.1 to 2 px, after that
    solarize: Probability = 0.0  # the probability of inverting levels of 128 and more, last
    erase: Probability = 0.0  # the probability of erasing a rectangle
    erase_area: tuple[float, float] = (0.02, 1 / 3)  # the range of the rectangle's share of the picture's area
    erase_aspect: tuple[float, float] = (0.3, 1 / 0.3)  # the range of the rectangle's height / width
    erase_mode: Literal["pixel", "random", "const"] = "pixel"  # noise, one random colour, or the mean colour
    mixup: NonNegativeFloat = 0.0  # alpha of Beta(alpha, alpha), which gives a second image's share; 0: off
    cutmix: NonNegativeFloat = 0.0  # alpha of Beta(alpha, alpha), for the area of a second image's rectangle; 0: off
    mix_prob: Probability = 1.0  # the probability that a pair is mixed at all
    mix_switch: Probability = 0.5  # the probability of cutmix if both are on
    mix_until: str = "100%"  # how long images are mixed: '85%' of the run, '130 epochs'

    def __post_init__(self) -> None:
        check_fields(self, "augmentation.")
        for name in ("crop_area", "erase_area"):
            low, high = getattr(self, name)
            if not 0 < low <= high <= 1:
                raise ConfigError(f"augmentation.{name} is a range of fractions like [0.05, 1], not {[low, high]}.")
        for name in ("crop_aspect", "erase_aspect"):
            low, high = getattr(self, name)
            if not 0 < low <= high < float("inf"):
                raise ConfigError(f"augmentation.{name} is a range of ratios like [0.75, 1.33], not {[low, high]}.")
        if not 0 <= self.magnitude <= MAX_MAGNITUDE:
            raise ConfigError(f"augmentation.magnitude is between 0 and {MAX_MAGNITUDE:g}, not {self.magnitude}.")
        if not 1 <= self.num_ops <= MAX_OPS:
            raise ConfigError(f"augmentation.num_ops is between 1 and {MAX_OPS}, not {self.num_ops}.")
        if not all(0 <= value <= 255 for value in self.fill):
            raise ConfigError(f"augmentation.fill is a colour of three bytes, not {list(self.fill)}.")

    def without(self, changes: Collection[Literal["crop", "flip"]]) -> "Augmentation":
        """This without crops or flips, for a data set whose labels they change."""
        crop, flip = ("resize" if "crop" in changes else self.crop), (0.0 if "flip" in changes else self.flip)
        return replace(self, crop=crop, flip=flip)

    @property
    def magnitude_end(self) -> float:
        """The greatest magnitude that an operation can draw."""
        return USUAL_MAGNITUDE if self.magnitude <= USUAL_MAGNITUDE else MAX_MAGNITUDE

    @property
    def operates(self) -> bool:
        """Whether there is more than a crop and a flip before pixels are normalised."""
        colors = (self.jitter, self.hue, self.gray, self.blur, self.solarize)
        return self.policy != "none" or any(value > 0 for value in colors)

    @property
    def mixes(self) -> bool:
        """Whether pairs of samples are mixed, so that batches must be even."""
        return self.mix_prob > 0 and (self.mixup > 0 or self.cutmix > 0)

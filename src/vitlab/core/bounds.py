"""Bounds of numbers as types of fields (`width: PositiveInt`), checked in one place (`config.check_fields`)."""

import math
from dataclasses import dataclass
from typing import Annotated, TypeAlias


@dataclass(frozen=True)
class Bounds:
    """Where a number has to lie; it is finite in any case."""

    above: float | None = None
    at_least: float | None = None
    below: float | None = None
    at_most: float | None = None

    def hold(self, value: float) -> bool:
        return (
            math.isfinite(value)
            and (self.above is None or value > self.above)
            and (self.at_least is None or value >= self.at_least)
            and (self.below is None or value < self.below)
            and (self.at_most is None or value <= self.at_most)
        )

    def __str__(self) -> str:
        parts = [("above", self.above), ("at least", self.at_least), ("below", self.below), ("at most", self.at_most)]
        words = " and ".join(f"{word} {value:g}" for word, value in parts if value is not None)
        return words if self.below is not None or self.at_most is not None else f"{words} and finite"


@dataclass(frozen=True)
class WholeBounds(Bounds):
    """Of a whole number, which is always finite."""

    def __str__(self) -> str:
        return super().__str__().removesuffix(" and finite")


PositiveInt: TypeAlias = Annotated[int, WholeBounds(at_least=1)]
NonNegativeInt: TypeAlias = Annotated[int, WholeBounds(at_least=0)]
PositiveFloat: TypeAlias = Annotated[float, Bounds(above=0)]
NonNegativeFloat: TypeAlias = Annotated[float, Bounds(at_least=0)]
Probability: TypeAlias = Annotated[float, Bounds(at_least=0, at_most=1)]
BelowOne: TypeAlias = Annotated[float, Bounds(at_least=0, below=1)]  # of what something must be left: dropout, momentum
Fraction: TypeAlias = Annotated[float, Bounds(above=0, at_most=1)]
Decay: TypeAlias = Annotated[float, Bounds(above=0, below=1)]  # of an exponential average

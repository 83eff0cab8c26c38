"""Bounds as types of fields: what is refused, and in which words."""

import math
from dataclasses import dataclass

import pytest

from vitlab.core.bounds import BelowOne, Decay, NonNegativeInt, PositiveFloat, PositiveInt
from vitlab.core.config import check_bounds, check_fields, from_dict
from vitlab.core.errors import ConfigError


@dataclass(frozen=True)
class Sizes:
    width: PositiveInt = 1
    depths: tuple[NonNegativeInt, ...] = (0, 2)
    lr: PositiveFloat = 0.1
    dropout: BelowOne = 0.0
    ema: Decay | None = None
    name: str = "any"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"width": 0}, "width must be at least 1, not 0."),
        ({"depths": (1, -1)}, "depths must be at least 0, not -1."),
        ({"lr": 0.0}, "lr must be above 0 and finite, not 0.0."),
        ({"lr": math.inf}, "lr must be above 0 and finite, not inf."),
        ({"dropout": 1.0}, "dropout must be at least 0 and below 1, not 1.0."),
        ({"dropout": math.nan}, "dropout must be at least 0 and below 1, not nan."),
        ({"ema": 1.0}, "ema must be above 0 and below 1, not 1.0."),
    ],
)
def test_what_is_outside_is_refused(changes: dict[str, object], says: str) -> None:
    for check in (check_bounds, check_fields):
        with pytest.raises(ConfigError) as caught:
            check(Sizes(**changes))  # pyright: ignore[reportArgumentType]
        assert str(caught.value) == says
    with pytest.raises(ConfigError) as caught:
        from_dict(Sizes, changes, where="here")
    assert str(caught.value) == f"here: {says}"


def test_what_is_inside_passes() -> None:
    for config in (Sizes(), Sizes(width=7, depths=(), lr=1e9, dropout=0.999, ema=0.5)):
        check_bounds(config)
        check_fields(config)


def test_another_type_is_named_as_such() -> None:
    with pytest.raises(ConfigError, match="width must be a whole number, not 1.5"):
        check_fields(Sizes(width=1.5))  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match="ema must be a number or null, not 'x'"):
        check_fields(Sizes(ema="x"))  # pyright: ignore[reportArgumentType]

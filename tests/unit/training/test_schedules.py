"""Durations and schedules by hand."""

import math

import pytest

from vitlab.core.errors import ConfigError
from vitlab.training.durations import Pace, steps
from vitlab.training.schedules import Schedule, resolve

PACE = Pace(batch_size=100, epoch_size=1050)


@pytest.mark.parametrize(
    ("duration", "expected"),
    [
        ("7 steps", 7),
        ("10k steps", 10_000),
        (12, 12),
        ("2 epochs", 21),
        ("0.5 epochs", 5),
        ("1M images", 10_000),
        ("50 images", 1),
        ("0 steps", 0),
        ("10%", 20),
    ],
)
def test_durations(duration: str | int, expected: int) -> None:
    assert steps(duration, PACE, total=200) == expected


@pytest.mark.parametrize("duration", ["soon", "3 weeks", "-1 steps", ""])
def test_what_is_no_duration_is_refused(duration: str) -> None:
    with pytest.raises(ConfigError, match="no duration"):
        steps(duration, PACE)


def test_what_no_run_lasts_is_refused() -> None:
    with pytest.raises(ConfigError, match="longer than a run can be"):
        steps("9" * 400, PACE)


def test_a_percentage_needs_a_whole() -> None:
    with pytest.raises(ConfigError, match="part of itself"):
        steps("5%", PACE)


def test_linear_is_the_papers() -> None:
    schedule = resolve(Schedule(kind="linear", total="100 steps", warmup="10 steps", end=0.1), PACE)
    assert [schedule.factor(s) for s in (0, 4, 9)] == pytest.approx([0.1, 0.5, 1.0])
    assert schedule.factor(10) == 1
    assert schedule.factor(55) == pytest.approx(0.1 + 0.9 * 0.5)
    assert schedule.factor(100) == pytest.approx(0.1)


def test_cosine() -> None:
    schedule = resolve(Schedule(kind="cosine", total="100 steps", warmup="0 steps"), PACE)
    for step in (0, 25, 50, 99):
        assert schedule.factor(step) == pytest.approx((1 + math.cos(math.pi * step / 100)) / 2)


def test_reciprocal_square_root_with_cooldown() -> None:
    schedule = resolve(
        Schedule(kind="rsqrt", total="1000 steps", warmup="10 steps", timescale="100 steps", cooldown="100 steps"), PACE
    )
    assert schedule.factor(10) == 1
    assert schedule.factor(310) == pytest.approx(math.sqrt(100 / 400))
    assert schedule.factor(950) == pytest.approx(math.sqrt(100 / 1040) * 0.5)


def test_a_cooldown_never_rises() -> None:
    """Also where the rate is below its end already, at once or on the way."""
    for timescale, at_950 in (("10 steps", math.sqrt(10 / 950)), ("330 steps", math.sqrt(330 / 1270))):
        schedule = resolve(
            Schedule(
                kind="rsqrt",
                total="1000 steps",
                warmup="10 steps",
                timescale=timescale,
                cooldown="100 steps",
                end=0.5,
            ),
            PACE,
        )
        factors = [schedule.factor(step) for step in range(10, 1000)]
        assert factors == sorted(factors, reverse=True)
        if at_950 < 0.5:
            assert schedule.factor(950) == pytest.approx(at_950)
        else:
            assert schedule.factor(950) == pytest.approx(0.5 + (at_950 - 0.5) / 2)


def test_constant_with_cooldown() -> None:
    schedule = resolve(Schedule(kind="constant", total="100 steps", warmup="0 steps", cooldown="20%"), PACE)
    assert schedule.factor(50) == schedule.factor(80) == 1
    assert schedule.factor(90) == pytest.approx(0.5)


def test_staircase_is_bits() -> None:
    """Big Transfer's medium schedule: 500 steps of warm-up, a tenth at 3000, 6000 and 9000 of 10,000 (by its code)."""
    schedule = resolve(Schedule(kind="staircase", total="10k steps", warmup="500 steps"), PACE)
    assert schedule.factor(249) == 0.5
    assert [schedule.factor(s) for s in (500, 2999, 3000, 5999, 6000, 9000, 9999)] == pytest.approx(
        [1, 1, 0.1, 0.1, 0.01, 0.001, 0.001]
    )
    halves = Schedule(kind="staircase", total="100 steps", warmup="0 steps", drops=("50 steps",), drop=0.5)
    assert [resolve(halves, PACE).factor(s) for s in (49, 50, 99)] == [1, 0.5, 0.5]
    with pytest.raises(ConfigError, match=r"schedule\.drop"):
        resolve(Schedule(kind="staircase", drop=0.0), PACE)


def test_a_staircase_starts_at_the_whole_rate() -> None:
    """Also where a drop rounds to the start of a tiny run."""
    tiny = resolve(Schedule(kind="staircase", total="2 steps", warmup="0 steps", drops=("10%", "60%")), PACE)
    assert [tiny.factor(step) for step in (0, 1)] == pytest.approx([1, 0.01])


def test_parts_longer_than_the_whole_are_refused() -> None:
    with pytest.raises(ConfigError, match="exceed the run"):
        resolve(Schedule(total="10 steps", warmup="11 steps"), PACE)
    with pytest.raises(ConfigError, match="no steps"):
        resolve(Schedule(total="0 epochs"), PACE)


def test_a_duration_is_one_step_at_least_and_steps_are_whole() -> None:
    pace = Pace(10, 100)
    assert [steps(text, pace, total=40) for text in ("1%", "0%", "10%", "0.01 epochs", "1 image")] == [1, 0, 4, 1, 1]
    assert steps("1.5k steps", pace) == 1500
    for text in ("0.05", "0.4 steps"):
        with pytest.raises(ConfigError, match="no part of a step; of the whole, write '5%'"):
            steps(text, pace, total=40)


def test_a_quarter_cosine_is_fixmatchs() -> None:
    """cos(7 pi t / 16) where it ends at cos(7 pi / 16); a quarter of a period where it ends at 0."""
    end = math.cos(7 * math.pi / 16)
    schedule = resolve(Schedule(kind="quarter-cosine", total="1000 steps", warmup="0 steps", end=end), PACE)
    for step in (0, 1, 250, 500, 999, 1000):
        assert schedule.factor(step) == pytest.approx(math.cos(7 * math.pi * step / 16 / 1000))
    whole = resolve(Schedule(kind="quarter-cosine", total="100 steps", warmup="10 steps"), PACE)
    assert whole.factor(4) == 0.5
    assert whole.factor(55) == pytest.approx(math.sqrt(0.5))
    assert whole.factor(100) == pytest.approx(0, abs=1e-12)

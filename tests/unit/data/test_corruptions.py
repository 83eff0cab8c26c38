"""What all corruptions promise."""

import numpy as np
import pytest

from vitlab.core.errors import ConfigError
from vitlab.data.conditions import ALL, COMMON, SEVERITIES, chosen, condition, meaning, spread
from vitlab.data.contract import Array
from vitlab.data.corruptions import FUNCTIONS, corrupt

# which grow at every severity; the others' constants trade one effect for another
GROWING = (
    *("gaussian_noise", "shot_noise", "impulse_noise", "speckle_noise", "defocus_blur", "zoom_blur", "gaussian_blur"),
    *("fog", "brightness", "contrast", "jpeg_compression"),
)
FIXED = {"defocus_blur", "zoom_blur", "gaussian_blur", "brightness", "contrast", "saturate", "pixelate"} | {
    "jpeg_compression"
}  # that draw no numbers


def photo(height: int, width: int) -> Array:
    """A smooth scene with edges and colours, and some detail."""
    y, x = np.mgrid[:height, :width] / min(height, width)
    detail = np.random.default_rng(0).normal(0, 6, (height, width, 3))
    colours = np.stack([200 * x, 120 + 90 * np.sin(9 * y), 180 * (np.hypot(x - 0.5, y - 0.5) < 0.3) + 40], axis=2)
    return (colours + detail).clip(0, 255).astype(np.uint8)


def distance(one: Array, other: Array) -> float:
    return float(np.sqrt(np.square(one.astype(float) - other).mean()))


def test_there_are_the_papers_fifteen_and_four_more() -> None:
    assert len(COMMON) == 15
    assert len(ALL) == 19 == len(FUNCTIONS)
    assert [meaning(condition(name, severity)) for name in ALL for severity in SEVERITIES] == [
        (name, severity) for name in ALL for severity in SEVERITIES
    ]


@pytest.mark.parametrize("size", [(32, 32), (96, 96), (9, 57)])
@pytest.mark.parametrize("name", ALL)
def test_bytes_of_the_same_size_by_counted_numbers(name: str, size: tuple[int, int]) -> None:
    before = photo(*size)
    kept = before.copy()
    found = [corrupt(before, name, severity, seed=3, number=7) for severity in SEVERITIES]
    np.testing.assert_array_equal(before, kept)
    for after in found:
        assert after.dtype == np.uint8
        assert after.shape == before.shape
    np.testing.assert_array_equal(found[4], corrupt(before, name, 5, seed=3, number=7))
    assert max(distance(before, after) for after in found) > 2  # it is seen, of 255
    others = [corrupt(before, name, 5, seed=3, number=8), corrupt(before, name, 5, seed=4, number=7)]
    assert all(np.array_equal(found[4], other) == (name in FIXED) for other in others)


@pytest.mark.parametrize("name", GROWING)
def test_more_severe_is_farther(name: str) -> None:
    before = photo(32, 32)
    means = [np.mean([distance(before, corrupt(before, name, s, number=i)) for i in range(8)]) for s in SEVERITIES]
    assert np.all(np.diff(means) > 0), means


@pytest.mark.parametrize("level", [0, 255])
@pytest.mark.parametrize("name", ALL)
def test_a_picture_of_one_colour_is_one_too(name: str, level: int) -> None:
    """Black, for which hue and fog's range are divided by nothing, and white."""
    for severity in SEVERITIES:
        after = corrupt(np.full((32, 32, 3), level, np.uint8), name, severity)
        assert after.shape == (32, 32, 3)
        if name in FIXED - {"brightness", "saturate"}:
            assert np.abs(after.astype(int) - level).max() <= 1


@pytest.mark.parametrize("name", ["defocus_blur", "gaussian_blur", "motion_blur", "zoom_blur"])
def test_lengths_grow_with_the_picture(name: str) -> None:
    """A picture three times as large is blurred as much, seen at its former size."""
    small = photo(32, 32)
    large = np.kron(small, np.ones((3, 3, 1), np.uint8))
    for severity in (4, 5):
        wide = corrupt(large, name, severity).reshape(32, 3, 32, 3, 3).mean(axis=(1, 3))
        plain, blurred = distance(wide, small), distance(wide, corrupt(small, name, severity))
        assert distance(small, corrupt(small, name, severity)) == pytest.approx(plain, rel=0.5)
        assert name == "motion_blur" or blurred < 0.7 * plain  # which has another angle


def test_what_is_no_corruption_is_refused() -> None:
    with pytest.raises(ConfigError, match="no corruption named 'fgo'. Did you mean fog"):
        corrupt(photo(8, 8), "fgo", 1)
    with pytest.raises(ConfigError, match="from 1 to 5, not 6"):
        corrupt(photo(8, 8), "fog", 6)
    with pytest.raises(ConfigError, match="must be uint8"):
        corrupt(photo(8, 8) / 255, "fog", 1)


def test_some_images_of_some_conditions() -> None:
    conditions = np.repeat([condition("fog", 1), condition("fog", 3), condition("snow", 3)], [4, 4, 2])
    assert chosen(conditions, ["fog"], [3]).tolist() == [4, 5, 6, 7]
    assert chosen(conditions, ["fog", "snow"], [1, 3], 2).tolist() == [8, 9, 0, 2, 4, 6]  # in the order of the paper
    assert chosen(conditions, ["frost"], [1]).tolist() == []
    assert spread(10, 3).tolist() == [0, 3, 6]
    assert spread(2, 3).tolist() == [0, 1]

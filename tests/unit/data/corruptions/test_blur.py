"""Blurs against kernels that are worked by hand, scipy's zoom and plain loops."""

import math

import numpy as np
import pytest
from scipy import ndimage

from vitlab.data.contract import Array
from vitlab.data.corruptions.blur import (
    GAUSSIAN,
    ZOOMS,
    defocus_blur,
    gaussian_blur,
    glass_blur,
    motion_blur,
    zoom_blur,
)
from vitlab.data.corruptions.draws import Draws
from vitlab.data.corruptions.geometry import streaked, zoomed

RANDOM = np.random.default_rng(0).random((32, 32, 3))


def point(size: int = 32) -> Array:
    found = np.zeros((size, size, 3))
    found[size // 2, size // 2] = 1
    return found


def bell(reach: int, sigma: float) -> Array:
    line = np.array([math.exp(-(i**2) / (2 * sigma**2)) for i in range(-reach, reach + 1)])
    return line / line.sum()


def around(x: Array, reach: int) -> Array:
    return x[16 - reach : 17 + reach, 16 - reach : 17 + reach, 0]


def test_defocus_is_a_soft_disk() -> None:
    """Radius 0.3 is one pixel, 1 a cross of five, 1.5 a block of nine; then 3 x 3 of a Gaussian."""
    np.testing.assert_allclose(around(defocus_blur(point(), 0, Draws(0)), 1), np.outer(bell(1, 0.4), bell(1, 0.4)))
    cross = np.array([[0, 1, 0], [1, 1, 1], [0, 1, 0]]) / 5
    soft = np.zeros((5, 5))
    for i in range(3):
        for j in range(3):
            soft[i : i + 3, j : j + 3] += cross[i, j] * np.outer(bell(1, 0.2), bell(1, 0.2))
    np.testing.assert_allclose(around(defocus_blur(point(), 3, Draws(0)), 2), soft, atol=1e-12)
    np.testing.assert_allclose(around(defocus_blur(point(), 4, Draws(0)), 1), np.full((3, 3), 1 / 9), atol=1e-12)
    edge = np.pad(RANDOM, ((1, 1), (1, 1), (0, 0)), mode="reflect")  # the second row is beyond the first
    mean = sum(edge[i : i + 32, j : j + 32] for i in range(3) for j in range(3)) / 9
    np.testing.assert_allclose(defocus_blur(RANDOM, 4, Draws(0)), mean, atol=1e-12)


@pytest.mark.parametrize("severity", range(5))
def test_gaussian(severity: int) -> None:
    sigma = GAUSSIAN[severity]
    reach = int(4 * sigma + 0.5)
    line = bell(reach, sigma)
    edge = np.pad(RANDOM, ((reach, reach), (reach, reach), (0, 0)), mode="edge")
    mean = sum(
        line[i] * line[j] * edge[i : i + 32, j : j + 32] for i in range(2 * reach + 1) for j in range(2 * reach + 1)
    )
    np.testing.assert_allclose(gaussian_blur(RANDOM, severity, Draws(0)), mean, atol=1e-12)


def test_a_streak_is_half_a_gaussian_along_a_line() -> None:
    weights = np.array([math.exp(-(i**2) / 8) for i in range(13)])
    weights /= weights.sum()
    across = streaked(point(), 6, 2, 0)[16, :, 0]
    np.testing.assert_allclose(across[16 - 12 : 17][::-1], weights, atol=1e-5)  # a pixel takes from its right
    down = streaked(point(), 6, 2, 90)[:, 16, 0]
    np.testing.assert_allclose(down[16 - 12 : 17][::-1], weights, atol=1e-5)
    diagonal = streaked(point(), 6, 2, 45)[..., 0]
    assert diagonal.sum() == pytest.approx(1, abs=1e-4)
    steps = [(round(i * math.sqrt(0.5)), i) for i in range(13)]
    for far in range(9):
        expected = sum(weights[i] for step, i in steps if step == far)
        assert diagonal[16 - far, 16 - far] == pytest.approx(expected, abs=1e-5)
    flat = np.full((32, 32, 3), 0.4)
    np.testing.assert_allclose(streaked(flat, 9, 2.5, 20), flat, atol=1e-5)


def test_motion_has_any_angle_to_the_right() -> None:
    middles = []
    for number in range(40):
        y, x = np.nonzero(motion_blur(point(), 4, Draws(number))[..., 0] > 1e-3)
        assert (x <= 16).all()
        middles.append(math.degrees(math.atan2(16 - y.mean(), 16 - x.mean())))
    assert min(middles) < -30
    assert max(middles) > 30
    assert max(map(abs, middles)) < 47


@pytest.mark.parametrize("factor", [1.0, 1.01, 1.1, 1.25, 1.75, 2.25])
def test_zoomed_is_scipys_zoom_of_the_centre(factor: float) -> None:
    kept = math.ceil(32 / factor)
    top = (32 - kept) // 2
    large = np.asarray(ndimage.zoom(RANDOM[top : top + kept, top : top + kept], (factor, factor, 1), order=1))
    trim = (large.shape[0] - 32) // 2
    np.testing.assert_allclose(zoomed(RANDOM, factor), large[trim : trim + 32, trim : trim + 32], atol=1e-12)


def test_zoom_blur_is_the_mean_of_zooms() -> None:
    assert [len(np.arange(1, end, 0.01)) for end in (1.06, 1.11, 1.16, 1.21, 1.26)] == list(ZOOMS)
    factors = np.arange(1, 1.06, 0.01)
    mean = np.mean([RANDOM, *(zoomed(RANDOM, factor) for factor in factors)], axis=0)
    np.testing.assert_allclose(zoom_blur(RANDOM, 0, Draws(0)), mean, atol=1e-12)


def test_glass_moves_pixels_as_the_authors_program_does() -> None:
    """Pixel by pixel from the last to the first, with the same random numbers; sigma 0.05 blurs nothing."""
    x = np.floor(RANDOM * 255) / 255
    draws = Draws(9)
    right, down = (draws.integers((30, 30), -1, 1) for _ in range(2))
    expected = x.copy()
    for h in range(31, 1, -1):
        for w in range(31, 1, -1):
            expected[h, w] = expected[h + down[h - 2, w - 2], w + right[h - 2, w - 2]]
    np.testing.assert_allclose(glass_blur(x, 0, Draws(9)), expected, atol=1e-12)
    assert set(np.unique(right)) == {-1, 0}

"""Digital corruptions against Pillow, Python's colours, and worked cases."""

import colorsys
import io

import numpy as np
import pytest
from PIL import Image

from vitlab.data.corruptions import corrupt
from vitlab.data.corruptions.digital import CONTRAST, ELASTIC, SATURATION, contrast, elastic_transform, saturate
from vitlab.data.corruptions.draws import Draws

RANDOM = np.random.default_rng(0).random((32, 32, 3))
BYTES = np.random.default_rng(1).integers(0, 256, (32, 32, 3), dtype=np.uint8)
every = pytest.mark.parametrize("severity", range(5))


@every
def test_contrast_keeps_the_mean_colour(severity: int) -> None:
    found = contrast(RANDOM, severity, Draws(0))
    mean = RANDOM.reshape(-1, 3).mean(axis=0)
    np.testing.assert_allclose(found.reshape(-1, 3).mean(axis=0), mean)
    np.testing.assert_allclose(found.reshape(-1, 3).std(axis=0), CONTRAST[severity] * RANDOM.reshape(-1, 3).std(axis=0))
    np.testing.assert_allclose(found[3, 5], mean + CONTRAST[severity] * (RANDOM[3, 5] - mean))


@every
def test_saturation(severity: int) -> None:
    times, plus = SATURATION[severity]
    x = RANDOM[:8, :8].copy()
    x[0, :2] = np.array([[0.0], [0.6]])  # black, and grey, whose hue is red
    found = saturate(x, severity, Draws(0))
    for i in range(8):
        for j in range(8):
            h, s, v = colorsys.rgb_to_hsv(*x[i, j])
            np.testing.assert_allclose(found[i, j], colorsys.hsv_to_rgb(h, min(s * times + plus, 1), v), atol=1e-12)


@every
def test_jpeg_is_pillows(severity: int) -> None:
    file = io.BytesIO()
    Image.fromarray(BYTES).save(file, "JPEG", quality=(80, 65, 58, 50, 40)[severity])
    np.testing.assert_array_equal(corrupt(BYTES, "jpeg_compression", severity + 1), np.asarray(Image.open(file)))


@every
def test_coarse_pixels_are_pillows(severity: int) -> None:
    side = (30, 28, 27, 24, 20)[severity]
    small = Image.fromarray(BYTES).resize((side, side), Image.Resampling.BOX)
    expected = np.asarray(small.resize((32, 32), Image.Resampling.BOX))
    np.testing.assert_array_equal(corrupt(BYTES, "pixelate", severity + 1), expected)


def test_elastic_at_first_moves_three_corners_only() -> None:
    """In ramps of x and of y each pixel says where it comes from: an affine map that takes the corners to theirs."""
    y, x = np.mgrid[:32, :32] / 31.0
    found = elastic_transform(np.stack([x, y, x], axis=2), 0, Draws(8)) * 31
    reach = 32 * ELASTIC[0][2]
    moves = Draws(8).uniform((3, 2), -reach, reach)
    before = np.array([[26, 26], [26, 6], [6, 6]])
    matrix = np.linalg.solve(np.column_stack([before + moves, np.ones(3)]), before)
    inner = [(row, column) for row in range(8, 24) for column in range(8, 24)]
    for row, column in inner:
        assert found[row, column, :2] == pytest.approx(np.array([column, row, 1]) @ matrix, abs=1e-9)


@pytest.mark.parametrize("severity", range(1, 5))
def test_elastic_steps_are_small_and_smooth(severity: int) -> None:
    far, smooth, corners = (32 * part for part in ELASTIC[severity])
    y, x = np.mgrid[:32, :32] / 31.0
    found = elastic_transform(np.stack([x, y, x], axis=2), severity, Draws(8))[8:24, 8:24] * 31
    steps = found[..., :2] - 31 * np.stack([x, y], axis=2)[8:24, 8:24]
    assert 0.05 < np.abs(steps).max() < far + 3.5 * corners
    rough = np.abs(np.diff(steps, n=2, axis=0)).max()
    assert rough < 4 * far / max(smooth, 0.5) ** 2
    flat = np.full((32, 32, 3), 0.3)
    np.testing.assert_allclose(elastic_transform(flat, severity, Draws(8)), flat, atol=1e-12)

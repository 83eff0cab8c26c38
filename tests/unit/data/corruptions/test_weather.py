"""Weather: hand-worked cases, a plain loop, and what must hold of any snow and ice."""

import colorsys

import numpy as np
import pytest

from vitlab.data.corruptions.draws import Draws
from vitlab.data.corruptions.weather import FOG, FROST, ICE, LIGHT, SNOW, brightness, crystals, fog, frost, plasma, snow

RANDOM = np.random.default_rng(0).random((32, 32, 3))


@pytest.mark.parametrize("severity", range(5))
def test_brightness_raises_the_value_of_hsv(severity: int) -> None:
    x = RANDOM[:8, :8].copy()
    x[0, 0] = 0  # black has no hue
    found = brightness(x, severity, Draws(0))
    for i in range(8):
        for j in range(8):
            h, s, v = colorsys.rgb_to_hsv(*x[i, j])
            expected = colorsys.hsv_to_rgb(h, s, min(v + LIGHT[severity], 1))
            np.testing.assert_allclose(found[i, j], expected, atol=1e-12)


def test_plasma_is_diamonds_and_squares() -> None:
    """A loop over single points of a torus of 8 x 8, with the same random numbers."""
    draws, side, fading, reach = Draws(4), 8, 2.0, 100.0
    values = np.zeros((side, side))
    step = side
    while step >= 2:
        half, num = step // 2, side // step
        wobble = [reach * draws.uniform((num, num), -reach, reach) for _ in range(3)]
        for i in range(num):
            for j in range(num):
                y, x = i * step, j * step
                near = [values[y, x], values[(y + step) % side, x], values[y, (x + step) % side]]
                near.append(values[(y + step) % side, (x + step) % side])
                values[y + half, x + half] = np.mean(near) + wobble[0][i, j]
        for i in range(num):
            for j in range(num):
                y, x = i * step, j * step
                middle = values[y + half, x + half]
                above, left = values[(y - half) % side, x + half], values[y + half, (x - half) % side]
                right, below = values[y, (x + step) % side], values[(y + step) % side, x]
                values[y, x + half] = (middle + above + values[y, x] + right) / 4 + wobble[1][i, j]
                values[y + half, x] = (middle + left + values[y, x] + below) / 4 + wobble[2][i, j]
        step, reach = half, reach / fading
    values = (values - values.min()) / (values.max() - values.min())
    np.testing.assert_allclose(plasma(side, fading, Draws(4)), values, atol=1e-12)


@pytest.mark.parametrize("severity", range(5))
def test_fog_is_added_and_brought_back_to_the_range(severity: int) -> None:
    thick, fading = FOG[severity]
    x = 0.8 * RANDOM
    cloud = plasma(32, fading, Draws(2))[..., None]
    expected = (x + thick * cloud) * x.max() / (x.max() + thick)
    np.testing.assert_allclose(fog(x, severity, Draws(2)), expected, atol=1e-12)
    assert fog(x, severity, Draws(2)).max() <= x.max() + 1e-12
    assert fog(RANDOM[:20, :9], severity, Draws(2)).shape == (20, 9, 3)


@pytest.mark.parametrize("severity", range(5))
def test_snow_falls_twice_the_second_time_turned(severity: int) -> None:
    """On black: flakes and the same flakes turned by half a circle, on a pale ground."""
    kept = SNOW[severity][-1]
    found = snow(np.zeros((32, 32, 3)), severity, Draws(3))
    np.testing.assert_allclose(found, found[::-1, ::-1], atol=1e-12)
    flakes = found - (1 - kept) * 0.5
    assert flakes.min() == pytest.approx(0, abs=1e-9)
    assert flakes.max() > 0.05
    assert (found[..., 0] == found[..., 2]).all()
    pale = kept * RANDOM + (1 - kept) * np.maximum(RANDOM, (RANDOM @ [0.299, 0.587, 0.114])[..., None] * 1.5 + 0.5)
    np.testing.assert_allclose(snow(RANDOM, severity, Draws(3)) - pale, flakes, atol=1e-9)


@pytest.mark.parametrize("severity", range(5))
def test_frost_lies_on_a_dimmed_picture(severity: int) -> None:
    picture, ice = FROST[severity]
    texture = crystals((32, 32), Draws(6))
    assert 0 <= texture.min() < 0.3
    assert 0.7 < texture.max() <= 1
    found = frost(RANDOM, severity, Draws(6))
    np.testing.assert_allclose(found - picture * RANDOM, ice * texture[..., None] * ICE, atol=1e-12)
    assert crystals((17, 40), Draws(6)).shape == (17, 40)

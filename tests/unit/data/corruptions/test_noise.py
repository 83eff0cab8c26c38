"""Noise: the moments and distributions that its definition gives."""

import numpy as np
import pytest
from scipy import stats

from vitlab.data.corruptions.draws import Draws
from vitlab.data.corruptions.noise import (
    GAUSSIAN,
    IMPULSES,
    PHOTONS,
    SPECKLE,
    gaussian_noise,
    impulse_noise,
    shot_noise,
    speckle_noise,
)

GREY = np.full((150, 150, 3), 102 / 255)
every = pytest.mark.parametrize("severity", range(5))


@every
def test_gaussian_and_speckle(severity: int) -> None:
    for found, deviation in (
        (gaussian_noise(GREY, severity, Draws(1)), GAUSSIAN[severity]),
        (speckle_noise(GREY, severity, Draws(1)), SPECKLE[severity] * GREY[0, 0, 0]),
    ):
        assert stats.kstest(((found - GREY) / deviation).ravel(), "norm").pvalue > 0.01


@every
def test_shot_noise_is_poissons(severity: int) -> None:
    """Each level's counts, number by number, against scipy's quantiles of the same uniform numbers."""
    white = PHOTONS[severity]
    levels = np.arange(256).repeat(40).reshape(256, 40, 1)
    found = shot_noise(levels / 255, severity, Draws(5)) * white
    expected = stats.poisson.ppf(Draws(5).uniform(levels.shape), levels * white / 255)
    expected[levels == 0] = 0  # scipy has no quantiles of a mean of 0
    assert np.abs(found - np.rint(found)).max() < 1e-9
    assert (np.rint(found) != expected).mean() < 1e-4  # but for a sum's last digit
    assert np.abs(found - expected).max() < 1.5


@every
def test_impulses(severity: int) -> None:
    found = impulse_noise(GREY, severity, Draws(1))
    num = GREY.size
    assert set(np.unique(found)) == {0.0, GREY[0, 0, 0], 1.0}
    assert stats.binomtest(int((found != GREY).sum()), num, IMPULSES[severity]).pvalue > 0.01
    assert stats.binomtest(int((found == 1).sum()), int((found != GREY).sum()), 0.5).pvalue > 0.01
    assert (found != GREY).any(axis=2).mean() - (found != GREY).all(axis=2).mean() > 0  # channels by themselves

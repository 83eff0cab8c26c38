"""Water and mud: edges and histograms by hand, and what drops may do to a picture."""

import numpy as np
import pytest

from vitlab.data.corruptions.draws import Draws
from vitlab.data.corruptions.spatter import MUD, WATER, drops, edges, equalized, spatter

RANDOM = np.random.default_rng(0).random((32, 32, 3))


def test_the_edges_of_a_square() -> None:
    """One closed line of pixels, where the step is; a step that is too weak has none."""
    levels = np.zeros((20, 20))
    levels[6:14, 6:14] = 200
    found = edges(levels, 50, 150)
    assert found.any()
    y, x = np.nonzero(found)
    near = np.minimum.reduce([np.abs(y - 5.5), np.abs(y - 13.5), np.abs(x - 5.5), np.abs(x - 13.5)])
    assert near.max() <= 0.5
    for row in range(8, 12):
        assert found[row].sum() == 2  # left and right, one pixel each
        assert found[:, row].sum() == 2
    assert not edges(levels / 20, 50, 150).any()  # 4 * 10 is below the lower threshold
    assert not edges(levels / 10, 50, 150).any()  # 4 * 20, in corners 120, is between: nothing strong to hold on to
    assert not edges(np.full((5, 5), 9.0), 50, 150).any()


def test_equalized_by_hand() -> None:
    """Counts 2, 1, 1 of 0, 5, 9: the sums after the first are 0, 1, 2 of 2."""
    np.testing.assert_array_equal(equalized(np.array([[0, 0], [5, 9]])), [[0, 0], [128, 255]])
    np.testing.assert_array_equal(equalized(np.full((2, 2), 7)), np.full((2, 2), 7))


@pytest.mark.parametrize("severity", [0, 1, 2])
def test_water_only_brightens(severity: int) -> None:
    found = spatter(RANDOM, severity, Draws(1)) - RANDOM
    assert found.min() >= -1e-12
    assert 0.2 < found.max() <= 0.5
    wet = found[..., 0] > 1e-3
    assert 0.02 < wet.mean() < 0.9
    np.testing.assert_allclose(found[wet] / found[wet][:, 1:2], np.tile(WATER / WATER[1], (wet.sum(), 1)))


@pytest.mark.parametrize("severity", [3, 4])
def test_mud_covers(severity: int) -> None:
    white = spatter(np.ones((32, 32, 3)), severity, Draws(1))
    cover = (1 - white) / (1 - MUD)
    np.testing.assert_allclose(cover, cover[..., :1].repeat(3, axis=2), atol=1e-12)
    assert set(np.unique(cover.round(9)) > 0) == {False, True}
    assert cover[cover > 1e-9].min() >= 0.8
    np.testing.assert_allclose(spatter(RANDOM, severity, Draws(1)), RANDOM * (1 - cover) + cover * MUD, atol=1e-12)


def test_no_liquid_is_no_water() -> None:
    assert (drops(np.zeros((8, 8))) == 0).all()

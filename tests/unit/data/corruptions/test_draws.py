"""Counted random numbers: their distributions, and that they depend on the key alone."""

import numpy as np
from scipy import stats

from vitlab.data.corruptions.draws import Draws


def test_the_distributions() -> None:
    draws = Draws(12345)
    assert stats.kstest(draws.normal((200, 100)).ravel(), "norm").pvalue > 0.01
    assert stats.kstest(draws.uniform((20000,), -2, 3), stats.uniform(-2, 5).cdf).pvalue > 0.01
    counts = np.bincount(draws.integers((30000,), -1, 2) + 1)
    assert stats.chisquare(counts).pvalue > 0.01
    assert len(counts) == 3


def test_the_key_alone_decides() -> None:
    first, again, other = Draws(1), Draws(1), Draws(2)
    before = first.normal((3, 4))
    np.testing.assert_array_equal(before, again.normal((3, 4)))
    assert (before != other.normal((3, 4))).all()
    assert (first.uniform((5,)) != Draws(1).uniform((5,))).all()  # one array after the other
    assert first.one(2, 3) == again_one(again)


def again_one(draws: Draws) -> float:
    draws.uniform((5,))
    return draws.one(2, 3)

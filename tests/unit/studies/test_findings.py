"""Differences beside scipy's, and sentences that say no more than the numbers do."""

import pytest
from scipy.stats import ttest_ind

from vitlab.studies.findings import Sample, against, difference, pair, rank_correlation

LOW = Sample((0.90, 0.91, 0.92))
HIGH = Sample((0.95, 0.955, 0.96))
NEAR = Sample((0.905, 0.915, 0.93))


@pytest.mark.parametrize("comparisons", [1, 4])
def test_the_interval_is_welchs(comparisons: int) -> None:
    found = difference(HIGH, LOW, comparisons=comparisons)
    level = 1 - 0.05 / comparisons
    low, high = ttest_ind(HIGH.values, LOW.values, equal_var=False).confidence_interval(level)
    assert found.half_width is not None
    assert found.value - found.half_width == pytest.approx(low)
    assert found.value + found.half_width == pytest.approx(high)


def test_what_cannot_be_told_apart_is_not_called_a_difference() -> None:
    assert not difference(NEAR, LOW).is_seen
    assert difference(HIGH, LOW).is_seen
    assert not difference(Sample((0.9,)), Sample((0.1,))).is_seen  # one seed says nothing
    assert difference(Sample((0.9, 0.9)), Sample((0.8, 0.8))).is_seen


def test_sentences_name_the_base_and_sort_the_others() -> None:
    above, same, how = against("low", {"low": LOW, "high": HIGH, "near": NEAR})
    assert above.startswith("Above low (91.0 ± 1.0%): high by 4.5 ± ")
    assert same.startswith("No difference seen from low (91.0 ± 1.0%): near (+0.7 ± ")
    assert how.endswith("over 3 seeds each, widened for 2 comparisons.")
    below, _ = against("high", {"low": LOW, "high": HIGH})
    assert below.startswith("Below high (95.5 ± 0.5%): low by 4.5 ± ")


def test_one_seed_is_never_sure() -> None:
    (said,) = against("a", {"a": Sample((0.5,)), "b": Sample((0.75,))})
    assert "b +25.0 points" in said
    assert "nothing of it is sure" in said
    assert against("a", {"a": LOW}) == []
    assert against("gone", {"a": LOW, "b": HIGH}) == []


def test_a_pair() -> None:
    assert "high is above low by 4.5 ±" in pair("low", "high", {"low": LOW, "high": HIGH})
    assert "no difference seen (-0.7 ±" in pair("low", "near", {"low": LOW, "near": NEAR})


def test_ranks() -> None:
    assert rank_correlation([1, 2, 3], [10, 20, 15]) == pytest.approx(0.5)

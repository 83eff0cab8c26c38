"""Differences beside scipy's, and sentences that say no more than the numbers do."""

import numpy as np
import pytest
from scipy.stats import dunnett, ttest_ind

from vitlab.studies.findings import Sample, against, contrast, difference, pair, rank_correlation, uneven

LOW = Sample((0.90, 0.91, 0.92))
HIGH = Sample((0.95, 0.955, 0.96))
NEAR = Sample((0.905, 0.915, 0.93))


@pytest.mark.parametrize("level", [0.95, 0.9875])
def test_the_interval_of_two_is_students(level: float) -> None:
    found = difference(HIGH, LOW, comparisons=round(0.05 / (1 - level)))
    low, high = ttest_ind(HIGH.values, LOW.values).confidence_interval(level)
    assert found.half_width is not None
    assert found.value - found.half_width == pytest.approx(low)
    assert found.value + found.half_width == pytest.approx(high)


def test_the_interval_of_a_change_is_that_of_an_interaction() -> None:
    """Which least squares has: ones, two sides, and their product."""
    groups = {(0, 0): LOW, (1, 0): HIGH, (0, 1): NEAR, (1, 1): Sample((0.97, 0.98, 0.985))}
    rows = np.array([[1, a, b, a * b] for a, b in groups for _ in range(3)], float)
    scores = np.concatenate([sample.values for sample in groups.values()])
    fitted, (left,), *_ = np.linalg.lstsq(rows, scores)
    error = np.sqrt(left / 8 * np.linalg.inv(rows.T @ rows)[3, 3])
    signs = {place: 1 - 2 * (sum(place) % 2) for place in groups}
    found = contrast([(signs[place], sample) for place, sample in groups.items()])
    assert found.value == pytest.approx(fitted[3])
    assert found.half_width == pytest.approx(2.306004 * error)  # Student's, 8 degrees of freedom, of any table


def test_the_interval_among_several_is_nearly_dunnetts() -> None:
    """Which is the exact one for a control and others: Bonferroni's is a little wider."""
    rows = [LOW, HIGH, NEAR]
    exact = dunnett(HIGH.values, NEAR.values, control=LOW.values, rng=np.random.default_rng(0)).confidence_interval(
        0.95
    )
    for other, low, high in zip((HIGH, NEAR), exact.low, exact.high, strict=True):
        found = difference(other, LOW, among=rows, comparisons=2)
        assert found.value == pytest.approx((low + high) / 2)
        assert found.half_width is not None
        assert 1 < found.half_width / ((high - low) / 2) < 1.06


def test_what_cannot_be_told_apart_is_not_called_a_difference() -> None:
    assert not difference(NEAR, LOW).is_seen
    assert difference(HIGH, LOW).is_seen
    assert not difference(Sample((0.9,)), Sample((0.1,))).is_seen  # one seed says nothing
    assert difference(Sample((0.9, 0.9)), Sample((0.8, 0.8))).is_seen


def test_sentences_name_the_base_and_sort_the_others() -> None:
    above, same, how = against("low", {"low": LOW, "high": HIGH, "near": NEAR})
    assert above.startswith("Above low (91.0 ± 1.0%): high by 4.5 ± ")
    assert same.startswith("No difference seen beside low (91.0 ± 1.0%): near (+0.7 ± ")
    assert how.endswith("over 3 seeds each, widened for 2 comparisons.")
    below, _ = against("high", {"low": LOW, "high": HIGH})
    assert below.startswith("Below high (95.5 ± 0.5%): low by 4.5 ± ")


@pytest.mark.parametrize(("deviation", "said"), [(3.6, False), (3.7, True)])
def test_a_row_that_varies_too_much_to_be_pooled(deviation: float, said: bool) -> None:
    """Cochran's tables have .871 as the bound of the largest share for three variances of three values at 5%.

    Beside two deviations of 1 that is a deviation of sqrt(2 * .871 / .129) = 3.67.
    """
    rows = {"a": Sample((0.8, 0.81, 0.82)), "b": Sample((0.9, 0.91, 0.92))}
    wide = {"wide": Sample((0.5 - deviation / 100, 0.5, 0.5 + deviation / 100))}
    assert bool(uneven(rows | wide)) == said
    assert any(each.startswith("wide varies over seeds") for each in against("a", rows | wide)) == said
    assert uneven({"a": Sample((0.5,)), "b": Sample((0.9,))}) == []
    assert uneven({"a": Sample((0.5, 0.5)), "b": Sample((0.9, 0.9))}) == []


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

"""What the report says of features that got better or worse."""

from pathlib import Path

import pytest

from vitlab.reporting.predictions import collapse_remarks, neighbours_said
from vitlab.reporting.record import RunRecord


def record_of(*shares: float, first: int = 0, count: float = 100.0) -> RunRecord:
    lines = tuple(
        {"step": first + 5 * i, "val score": -1.0, "val kNN accuracy": share, "val kNN chance": 0.1, "val count": count}
        for i, share in enumerate(shares)
    )
    return RunRecord(folder=Path("run"), recipe={}, environment={}, data={}, lines=lines, result={}, state="done")


@pytest.mark.parametrize(
    ("record", "said"),
    [
        (record_of(0.5, 0.4, 0.625), "kNN accuracy: 50.00% before, 62.50% after"),
        (record_of(0.5, 0.4, first=5), "kNN accuracy: 40.00%"),  # from fresh weights: not measured before
        (record_of(), None),
    ],
)
def test_neighbours_in_a_line(record: RunRecord, said: str | None) -> None:
    assert neighbours_said(record) == said


def test_features_that_got_worse_by_more_than_an_error_are_remarked_on() -> None:
    """The standard error of 50% of 100 pictures is 5 points."""
    assert collapse_remarks(record_of(0.5, 0.46)) == []
    assert collapse_remarks(record_of(0.5, 0.8)) == []
    (worse,) = collapse_remarks(record_of(0.5, 0.6, 0.44))
    assert "of 44.0% of held-out pictures, and of 50.0% before" in worse.text
    assert collapse_remarks(record_of(0.5, 0.44, first=5)) == []

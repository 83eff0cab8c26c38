"""Figures show what they are given, at its place."""

from typing import Any

import numpy as np

from vitlab.studies.drawing import bars, dots, lines
from vitlab.studies.findings import Sample

ROWS = {"a": Sample((0.1, 0.2)), "b": Sample((0.3,)), "c": Sample((0.5, 0.7))}


def points(line: Any) -> list[tuple[float, float]]:
    return [(round(x, 6), round(y, 6)) for x, y in np.asarray(line.get_xydata()).tolist()]


def test_dots_stand_at_their_rows() -> None:
    """Also the published ones, whatever order they come in."""
    figure = dots(ROWS, label="percent", published={"c": 0.9, "gone": 0.1, "a": 0.8})
    measured, published = figure.axes
    assert [text.get_text() for text in measured.get_yticklabels()] == ["a", "b", "c"]
    means = [points(line)[0] for line in measured.lines if line.get_marker() == "o"]
    assert means == [(15, 0), (30, 1), (60, 2)]
    (line,) = published.lines
    assert points(line) == [(80, 0), (90, 2)]
    assert len(dots(ROWS, label="percent").axes) == 1


def test_lines_and_bars() -> None:
    figure = lines({"panel": {"one": [(1.0, ROWS["a"]), (10.0, ROWS["b"])]}}, across="images")
    (axes,) = figure.axes
    assert axes.get_xscale() == "log"
    assert points(axes.lines[0]) == [(1, 15), (10, 30)]
    (axes,) = bars({"one": ROWS, "two": {"b": ROWS["b"]}}, label="percent").axes
    heights: list[Any] = list(axes.patches)
    assert sorted(round(patch.get_height(), 6) for patch in heights) == [15, 30, 30, 60]

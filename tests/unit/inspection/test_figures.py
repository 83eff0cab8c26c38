import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from vitlab.inspection import figures
from vitlab.inspection.drawing import draw, inline_svg, save_drawing

rng = np.random.default_rng(0)
PIXELS = rng.integers(0, 256, (32, 48, 3), dtype=np.uint8)


def all_figures() -> dict[str, Figure]:
    return {
        "filters": figures.filters_figure(rng.random((9, 4, 4, 3))),
        "positions": figures.positions_figure(rng.random((2, 3, 2, 3))),
        "distance": figures.distance_figure({1: rng.random(3), 4: rng.random(3)}, 0.5),
        "entropy": figures.entropy_figure({1: rng.random(3)}),
        "rollout": figures.rollout_figure(PIXELS, {"a map": rng.random((2, 3))}),
        "heads": figures.heads_figure(PIXELS, {2: rng.random((3, 2, 3)), 7: rng.random((4, 2, 3))}),
        "similarity": figures.similarity_figure(rng.random((3, 4)), "another"),
    }


@pytest.mark.parametrize("name", all_figures())
def test_files_and_elements(name: str, tmp_path: Path) -> None:
    before = dict(mpl.rcParams)
    drawing = draw(all_figures()[name])
    png, svg = save_drawing(drawing, tmp_path / "a figure.v2")
    assert [file.name for file in (png, svg)] == ["a figure.v2.png", "a figure.v2.svg"]
    with Image.open(png) as picture:
        corner = picture.convert("RGB").getpixel((0, 0))
        assert corner == (255, 255, 255)
        assert min(picture.size) > 100
    root = ET.parse(svg).getroot()
    assert root.tag.endswith("svg")
    assert root[0].attrib["fill"] == "#ffffff"
    assert "<dc:date>" not in svg.read_text()

    element = inline_svg(drawing.svg, 'what "it" <shows> & means')
    root = ET.fromstring(element)
    assert root.attrib["aria-label"] == 'what "it" <shows> & means'
    assert "width" not in root.attrib
    assert "http" not in element
    assert figures.INK not in element
    references = [value for node in root.iter() for key, value in node.attrib.items() if key == "href"]
    assert all(value.startswith(("data:image/png;base64,", "#")) for value in references)
    assert dict(mpl.rcParams) == before


def test_a_dot_a_head_at_its_layer() -> None:
    values = {2: np.array([10.0, 30.0]), 5: np.array([5.0, 7.0, 60.0])}
    (axes,) = figures.distance_figure(values, 40.0).axes
    dots = [np.asarray(line.get_xydata()) for line in axes.lines if line.get_marker() == "o"]
    assert np.concatenate(dots).tolist() == [[2, 10], [2, 30], [5, 5], [5, 7], [5, 60]]
    assert any(np.asarray(line.get_xydata()).tolist() == [[2, 20], [5, 24]] for line in axes.lines)
    assert axes.get_ylim()[0] == 0
    assert axes.get_ylim()[1] > 60
    assert "pixels" in axes.get_ylabel()


def test_a_grid_of_grids_has_each_place_at_its_place() -> None:
    similarity = rng.random((2, 3, 2, 3))
    axes, *_ = figures.positions_figure(similarity).axes
    drawn: Any = axes.images[0].get_array()
    canvas = np.ma.filled(drawn, np.nan)
    assert canvas.shape == (2 * 3 - 1, 3 * 4 - 1)  # a gap of one
    np.testing.assert_array_equal(canvas[3:5, 4:7], similarity[1, 1])
    assert np.isnan(canvas[2]).all()


def test_heat_is_brightest_where_the_map_is_most() -> None:
    gray = np.full((40, 40, 3), 128, dtype=np.uint8)
    values = np.zeros((4, 4))
    values[3, 0] = 2
    hot = figures.heated(gray, values).astype(int)
    luminance = hot @ [299, 587, 114]
    assert luminance[-1, 0] == luminance.max()
    assert luminance[0, -1] == luminance.min()
    alike = figures.heated(gray, np.ones((4, 4)))
    assert (alike == alike[0, 0]).all()

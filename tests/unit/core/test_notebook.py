import os
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pytest
from PIL import Image

from report_pages import Page
from shown import HOSTILE
from vitlab.core import notebook
from vitlab.core.thumbnails import thumbnail


def test_cells_are_escaped_and_aligned() -> None:
    page = Page(notebook.table(["name", ">value"], [[HOSTILE, "1"], ["<b>", "22"]]))
    assert [row[-1] for row in page.rows] == ["value", "1", "22"]
    assert page.rows[2][0] == "<b>"
    assert "\\x1b[2J" in page.rows[1][0]
    assert page.source.count("text-align:right") == 3
    assert "<thead>" not in notebook.table(["", ">"], [["a", "b"]])


@pytest.mark.parametrize(("share", "width"), [(0.253, "25.3%"), (0.0, "0.0%"), (1.0, "100.0%"), (1.7, "100.0%")])
def test_a_bar_is_as_long_as_its_share(share: float, width: str) -> None:
    assert f"width:{width};" in notebook.bar(share)


@pytest.mark.parametrize(
    ("size", "shown"), [((8, 4), ("88", "44")), ((300, 600), ("44", "88")), ((900, 1), ("88", "1"))]
)
def test_a_picture_keeps_its_aspect(size: tuple[int, int], shown: tuple[str, str]) -> None:
    picture = Image.fromarray(np.zeros((size[1], size[0], 3), np.uint8))
    (image,) = Page(notebook.image(thumbnail(picture), "black")).images
    assert (image["width"], image["height"]) == shown
    assert ("pixelated" in (image["style"] or "")) == (max(size) <= 64)


def test_a_link_leads_to_the_file_from_where_the_notebook_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    for path in (Path("runs", "javascript:alert(1)", "a b#c?.html"), here / "x.html"):
        (link,) = Page(notebook.link(path, "it")).links
        assert ":" not in link
        assert here / unquote(link) == here / path
    (outside,) = Page(notebook.link(tmp_path / "other #1.html", "it")).links
    assert unquote(outside) == f"file://{tmp_path}/other #1.html"
    assert notebook.link(Path(os.fsdecode(b"\xff.html")), "it").startswith('<a href="%FF.html"')

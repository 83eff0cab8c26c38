"""Words below a picture: letters of any script that the machine has, all of them within the picture."""

import numpy as np
import pytest
from fontTools.ttLib import TTFont
from PIL import Image

from vitlab.inference.lettering import font_with, with_words

BLUE = (0, 0, 255)


def bright(picture: Image.Image, below: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows and columns of the words' pixels."""
    rows, columns = np.nonzero(np.asarray(picture)[below:].min(axis=2) > 150)
    return rows, columns


@pytest.mark.parametrize("words", ["beagle 29.3%", "Бирма 25.9%", "سفنكس 22%", "καλλικάντζαρος, 🐱"])
def test_the_font_has_the_letters(words: str, caplog: pytest.LogCaptureFixture) -> None:
    known = TTFont(font_with([words]), fontNumber=0).getBestCmap() or {}
    assert {ord(letter) for letter in words if letter != " "} <= known.keys()
    assert not caplog.records


def test_letters_that_no_font_has_are_said(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr("matplotlib.font_manager.findSystemFonts", list)
    assert font_with(["cat", "고양이"]).endswith("DejaVuSans.ttf")
    [said] = [entry.getMessage() for entry in caplog.records]
    assert said == "No one font on this machine has all letters of the class names: boxes stand for 고 양 이."


def test_words_are_whole_below_a_small_picture() -> None:
    font = font_with(["cat"])
    small = with_words(Image.new("RGB", (32, 32), BLUE), "Labrador retriever 16.4%, cat 3.0%", font)
    rows, columns = bright(small, 32)
    assert small.width > 32
    assert columns.max() < small.width - 2
    assert rows.max() < small.height - 32 - 2
    assert np.asarray(small)[:32, :32].tolist() == [[list(BLUE)] * 32] * 32


def test_many_answers_take_several_lines() -> None:
    font = font_with(["cat"])
    one, five = (
        with_words(Image.new("RGB", (300, 20), BLUE), ", ".join([f"retriever {i}.5%" for i in range(num)]), font)
        for num in (1, 5)
    )
    assert (one.width, five.width) == (300, 300)
    assert one.height < five.height < one.height + 80
    assert len(bright(five, 20)[1]) > 4 * len(bright(one, 20)[1])

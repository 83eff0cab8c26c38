import base64
import copy
import io
import pickle
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import vitlab
from report_pages import Page
from shown import HOSTILE, shown
from tiny_vits import COLOURS, colours_vit
from vitlab.core.pictures import class_color
from vitlab.inference.predict import MOST_SHOWN, Prediction, Predictions
from vitlab.tasks.contract import Answer, Scored

PURE = {"red": (250, 10, 10), "green": (10, 250, 10), "blue": (10, 10, 250)}


def plain(name: str) -> Image.Image:
    return Image.new("RGB", (300, 200), PURE[name])


def pixels(page: Page) -> list[tuple[int, ...]]:
    """The mean colour of each picture that is shown, to a few steps."""
    found = []
    for image in page.images:
        content = (image["src"] or "").partition(";base64,")[2]
        with Image.open(io.BytesIO(base64.b64decode(content))) as picture:
            found.append(tuple(np.asarray(picture.convert("RGB")).reshape(-1, 3).mean(axis=0).round(-1).astype(int)))
    return found


def rounded(name: str) -> tuple[int, ...]:
    return tuple(np.round(PURE[name], -1).astype(int))


def test_pictures_of_any_kind_stand_beside_their_answers(tmp_path: Path) -> None:
    plain("blue").save(tmp_path / "sky.png")
    answers = vitlab.predict(colours_vit(), [plain("red"), np.asarray(plain("green")), tmp_path / "sky.png"], top=2)
    page = shown(answers)
    assert pixels(page) == [rounded("red"), rounded("green"), rounded("blue")]
    assert [row[-1] for row in page.rows][::2] == list(COLOURS)
    for answer, row in zip(answers, page.rows[::2], strict=True):
        assert row[0] == f"{answer.classes[0].probability:.1%}"
        assert f"width:{100 * answer.classes[0].probability:.1f}%" in page.source
    assert page.text.startswith("3 pictures: 1 red, 1 green, 1 blue.")
    assert str(tmp_path / "sky.png")[-20:] in page.text
    assert pixels(shown(answers[2])) == [rounded("blue")]


def test_a_file_that_went_away_is_still_named(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    plain("red").save(path)
    (answer,) = vitlab.predict(colours_vit(), path)
    path.unlink()
    page = shown(answer)
    assert page.images == []
    assert "a.png" in page.text
    assert "red" in page.text


def test_an_unreadable_picture_says_why(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"none")
    plain("red").save(tmp_path / "b.png")
    answers = vitlab.predict(colours_vit(), [tmp_path / "a.png", tmp_path / "b.png"])
    assert "1 could not be read" in shown(answers).text
    assert answers[0].error is not None
    assert answers[0].error in shown(answers[0]).text
    assert answers[0].error in repr(answers[0])


@pytest.mark.parametrize(
    "prediction",
    [
        Prediction(HOSTILE, Answer(classes=(Scored(HOSTILE, 0, 0.5), Scored("<b>", 1, 0.5)))),
        Prediction(None, Answer(numbers={HOSTILE: 1.5, "<i>": float("nan")})),
        Prediction(None, Answer(mask=np.array([[0, 1]], np.uint8), labels=(HOSTILE, "<i>"))),
        Prediction(HOSTILE, error=HOSTILE),
        Prediction("\udcff.png", Answer()),
    ],
    ids=["classes", "numbers", "mask", "error", "none"],
)
def test_names_cannot_be_markup_or_commands(prediction: Prediction) -> None:
    for page in (shown(prediction), shown(Predictions([prediction]))):
        assert "\\x1b[2J" in page.text or "none of its classes" in page.text
        page.source.encode()
    for text in (repr(prediction), repr(Predictions([prediction]))):
        assert text.isprintable()


def test_a_mask_is_shown_in_the_colours_of_its_classes() -> None:
    mask = np.full((80, 80), 2, np.uint8)
    page = shown(Prediction(None, Answer(mask=mask, labels=("sky", "tree", "road"))))
    assert pixels(page) == [tuple(np.round(class_color(2), -1).astype(int))]
    assert page.rows == [["100.0%", "", "road"]]
    assert f"background:rgb{class_color(2)}" in page.source


def test_long_lists_are_cut_and_few_pictures_are_kept() -> None:
    answers = vitlab.predict(colours_vit(), [plain("red")] * (MOST_SHOWN + 30), batch_size=64)
    page = shown(answers)
    assert len(page.images) == MOST_SHOWN
    assert page.text.endswith("… and 30 more")
    assert "42 pictures: 42 red." in page.text
    assert sum(answer.small is not None for answer in answers) == MOST_SHOWN
    assert len(page.source) < 60_000


def test_the_list_is_a_list() -> None:
    answers = vitlab.predict(colours_vit(), [plain("red"), plain("blue")])
    assert isinstance(answers, list)
    assert isinstance(answers[:1], Predictions)
    assert answers[1:] == [answers[1]] == list(answers)[1:]
    assert copy.deepcopy(answers) == pickle.loads(pickle.dumps(answers)) == answers
    assert repr(answers[0]).startswith("<Prediction for a picture: red ")
    assert "0 pictures" in shown(Predictions()).text

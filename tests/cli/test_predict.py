import json
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import vitlab
from box_stand_in import boxed
from tiny_vits import COLOURS, colours_vit
from vitlab.cli import main
from vitlab.models.vit import ViT

__all__ = ["boxed"]  # a fixture


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    model = colours_vit()
    path = tmp_path_factory.mktemp("a model") / "colours"
    vitlab.save(model, path)
    return str(path)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "my photos"
    (folder / "inside").mkdir(parents=True)
    Image.new("RGB", (20, 10), (250, 10, 10)).save(folder / "a red one.png")
    Image.new("RGB", (10, 20), (10, 250, 10)).save(folder / "green.jpg")
    Image.new("RGB", (10, 10), (10, 10, 250)).save(folder / "inside" / "blue.gif")
    return folder


def test_the_answer_is_right_as_a_table(source: str, photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", str(photos), "--model", source, "--top", "1"]) == 0
    printed = capsys.readouterr()
    lines = printed.out.splitlines()
    assert lines[0].split() == ["image", "probability", "class"]
    assert [line.split()[-1] for line in lines[1:]] == ["red", "green", "blue"]
    assert [line[: len(str(photos))] for line in lines[1:]] == [str(photos)] * 3
    assert printed.err == ""


def test_the_answer_is_right_as_json(source: str, photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", str(photos / "green.jpg"), str(photos), "--model", source, "--json"]) == 0
    answers = json.loads(capsys.readouterr().out)
    names = ["green.jpg", "a red one.png", "green.jpg", "inside/blue.gif"]
    assert [answer["image"] for answer in answers] == [str(photos / name) for name in names]
    assert [answer["classes"][0]["label"] for answer in answers] == ["green", "red", "green", "blue"]
    for answer in answers:
        assert len(answer["classes"]) == 3  # --top 5 of three classes
        assert all(COLOURS[c["index"]] == c["label"] for c in answer["classes"])
        assert np.sum([c["probability"] for c in answer["classes"]]) == pytest.approx(1)


def test_a_table_and_the_pictures_sorted_or_drawn(
    source: str, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["predict", str(photos), "--model", source, "--out", str(tmp_path / "out")]
    assert main([*given, "--csv", str(tmp_path / "all.csv"), "--top", "1"]) == 0
    assert capsys.readouterr().err == f"Written to {tmp_path / 'all.csv'} and {tmp_path / 'out'}.\n"
    lines = (tmp_path / "all.csv").read_text().splitlines()
    assert lines[0] == "image,predicted,probability"
    assert [line.split(",")[1] for line in lines[1:]] == ["red", "green", "blue"]
    written = {str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert written == {"red/a red one.png", "green/green.jpg", "blue/inside/blue.gif"}
    assert main([*given[:-1], str(tmp_path / "drawn"), "--draw"]) == 0
    assert {path.name for path in (tmp_path / "drawn").rglob("*.png")} == {"a red one.png", "green.png", "blue.png"}
    capsys.readouterr()
    assert main([*given[:-2], "--draw"]) == 2
    assert "give a folder with --out" in capsys.readouterr().err


def test_what_cannot_be_written_is_said_before_the_model_answers(
    source: str, photos: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def answers(*_: object, **__: object) -> None:
        pytest.fail("the model was asked")

    monkeypatch.setattr("vitlab.api.predict", answers)
    file = photos / "green.jpg"
    before = file.read_bytes()
    for option in (["--csv", str(photos)], ["--csv", str(file / "a.csv")], ["--out", str(file)], ["--csv", str(file)]):
        assert main(["predict", str(photos), "--model", source, *option]) == 2
        assert capsys.readouterr().err.startswith("vitlab: ")
    assert file.read_bytes() == before
    (photos / "picture").mkdir()  # as of a class of that name
    with pytest.raises(pytest.fail.Exception, match="the model was asked"):
        main(["predict", str(file), "--model", source, "--out", str(photos)])


def test_answers_that_cannot_be_written_are_shown(
    source: str, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (photos / "a red one.png").read_bytes()
    assert main(["predict", str(photos), "--model", source, "--draw", "--out", str(photos), "--top", "1"]) == 2
    printed = capsys.readouterr()
    assert "a red one.png is one of the pictures and would be written over" in printed.err
    assert [line.split()[-1] for line in printed.out.splitlines()[1:]] == ["red", "green", "blue"]
    assert (photos / "a red one.png").read_bytes() == before


def test_a_name_that_is_not_utf8_is_escaped_in_the_table(source: str, photos: Path, tmp_path: Path) -> None:
    (photos / "green.jpg").rename(os.fsdecode(os.fsencode(photos) + b"/\xff.jpg"))
    assert main(["predict", str(photos), "--model", source, "--csv", str(tmp_path / "all.csv"), "--top", "1"]) == 0
    lines = (tmp_path / "all.csv").read_text().splitlines()
    assert [line.rpartition("/")[2].split(",")[:2] for line in lines if "\\" in line] == [["\\udcff.jpg", "green"]]


def test_an_unreadable_file_is_named_and_the_rest_answered(
    source: str, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = photos / "broken.jpg"
    bad.write_text("no image")
    assert main(["predict", str(photos), str(photos / "gone.png"), "--model", source, "--json"]) == 1
    printed = capsys.readouterr()
    answers = json.loads(printed.out)
    assert [answer.get("classes", [{}])[0].get("label") for answer in answers] == ["red", None, "green", "blue", None]
    assert answers[1] == {"image": str(bad), "error": f"{bad} is not an image that can be read."}
    assert printed.err.splitlines() == [
        f"vitlab: skipped: {bad} is not an image that can be read.",
        f"vitlab: skipped: There is no file {photos / 'gone.png'}.",
    ]
    assert main(["predict", str(photos), "--model", source, "--top", "1"]) == 1
    assert len(capsys.readouterr().out.splitlines()) == 4


def test_nothing_readable_is_an_error(source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", str(tmp_path / "gone.png"), "--model", source]) == 2
    assert capsys.readouterr() == ("", f"vitlab: skipped: There is no file {tmp_path / 'gone.png'}.\n")
    assert main(["predict", str(tmp_path), "--model", source]) == 2
    assert capsys.readouterr() == ("", f"vitlab: The folder {tmp_path} holds no images.\n")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--top", "0"], "--top must be at least 1, not 0."),
        (["--batch-size", "-3"], "--batch-size must be at least 1, not -3."),
    ],
)
def test_impossible_options(
    arguments: list[str], sentence: str, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["predict", str(photos), "--model", "unread", *arguments]) == 2
    assert capsys.readouterr() == ("", f"vitlab: {sentence}\n")


@pytest.mark.parametrize("arguments", [["--model", "x"], ["a.jpg"], ["a.jpg", "--model", "x", "--top", "many"]])
def test_missing_or_malformed_arguments(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err
    assert "Traceback" not in printed.err


def test_a_model_that_is_not_there(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", str(photos), "--model", str(photos / "no model")]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert len(printed.err.splitlines()) == 1
    assert str(photos / "no model") in printed.err


def test_a_model_without_a_head_is_answered_with_what_it_is_for(
    source: str, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    vitlab.save(vitlab.load(source, num_classes=0), tmp_path / "features")
    assert main(["predict", str(photos), "--model", str(tmp_path / "features")]) == 2
    sentence = "it gives features (`vitlab embed`), not classes; `vitlab finetune` gives it one."
    assert capsys.readouterr().err == f"vitlab: The model has no classifier: {sentence}\n"


def test_a_file_name_cannot_command_the_terminal(source: str, photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (photos / "green.jpg").rename(photos / "\x1b[31m[red]x[bold].jpg")
    assert main(["predict", str(photos), "--model", source, "--top", "1"]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "\\x1b[31m[red]x[bold].jpg" in out


def test_a_mistyped_image_or_model_is_answered_with_the_nearest(
    source: str, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    right = next(path for path in sorted(photos.iterdir()) if path.suffix == ".png")
    wrong = right.with_name(f"{right.stem[:-1]}.jpeg")
    assert main(["predict", str(wrong), "--model", source]) == 2
    assert capsys.readouterr().err == f"vitlab: skipped: There is no file {wrong}. Did you mean {right}?\n"
    assert main(["predict", str(right), "--model", source[:-1]]) == 2
    assert f"Did you mean {source}" in capsys.readouterr().err


def test_without_a_model_it_is_the_one_in_the_package(
    boxed: ViT, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["predict", str(photos), "--json"]) == 0
    answers = json.loads(capsys.readouterr().out)
    assert {scored["label"] for answer in answers for scored in answer["classes"]} <= {*(boxed.labels or ())}

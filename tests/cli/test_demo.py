import json
from pathlib import Path

import numpy as np
import pytest

from box_stand_in import boxed, unboxed
from vitlab.cli import demo, main
from vitlab.cli.drawing import cut, heat, picture
from vitlab.core.imagenet import words_of
from vitlab.models.vit import ViT

__all__ = ["boxed", "unboxed"]  # fixtures


def test_the_whole_story_in_short(
    boxed: ViT, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo, "PHOTOS", ("flower.jpg",))
    assert main(["demo", "--epochs", "1"]) == 0
    out = capsys.readouterr().out
    assert [line[:2] for line in out.splitlines() if line[1:3] == ". "] == [f"{i}." for i in range(1, 8)]
    for shape in ("16 x 12", "16 x 64", "17 x 64"):
        assert shape in out
    assert "\x1b" not in out
    assert "vitlab finetune photos/" in out
    assert "vitlab explore" in out
    assert "CC BY 2.0" in out
    for file in ("report.html", "model/model.safetensors", "inspect/inspect.html", "photos/inspect.html"):
        assert (tmp_path / "runs" / "demo" / file).is_file()
    (line,) = [line for line in out.splitlines() if line.startswith("  flower.jpg: ")]
    assert any(f"flower.jpg: {words_of(label)} (" in line for label in boxed.labels or ())


def test_figures_as_json(unboxed: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    del unboxed
    assert main(["demo", "--epochs", "1", "--json", "--out", str(tmp_path / "a run")]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["test_images"] == 400
    assert figures["accuracy_of_logistic_regression"] > 0.9  # an independent look at the same parts
    assert figures["photos"] == []  # this installation came without a trained model


@pytest.mark.parametrize("option", ["epochs", "seed"])
def test_impossible_options(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", f"--{option}", "-1"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert f"{option} must be" in printed.err


def test_a_run_that_is_there_stops_the_story_before_it_begins(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "recipe.json").touch()
    assert main(["demo", "--out", str(tmp_path)]) == 2
    assert capsys.readouterr() == ("", f"vitlab: {tmp_path} holds a run already: choose another folder (--out).\n")
    file = tmp_path / "recipe.json"
    assert main(["demo", "--out", str(file)]) == 2
    assert capsys.readouterr() == ("", f"vitlab: {file} is a file; give the name of a folder for the run (--out).\n")


@pytest.mark.slow
def test_it_reads_ninety_eight_of_a_hundred_digits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--json", "--out", str(tmp_path / "run")]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["accuracy"] >= 0.98


def test_drawings_have_the_shape_of_what_they_draw() -> None:
    pixels = np.zeros((8, 6, 3), np.uint8)
    pixels[:4] = 255
    assert [line.plain for line in picture(pixels)] == ["@" * 6] * 2 + [" " * 6] * 2
    assert [line.plain for line in heat(np.array([[0.0, 0.5], [0.95, 1.0]]), 0, 1)] == ["0 5 ", "9 9 "]
    np.testing.assert_array_equal(cut(np.full((4, 4, 3), 255, np.uint8), 2)[:, :, 0] // 255, [
        [1, 1, 0, 1, 1],
        [1, 1, 0, 1, 1],
        [0, 0, 0, 0, 0],
        [0, 0, 0, 0, 0],
        [1, 1, 0, 1, 1],
        [1, 1, 0, 1, 1],
    ])  # fmt: skip

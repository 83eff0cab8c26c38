"""Names that would command a terminal, or look like lines of ours, are shown escaped by every verb."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from changing import changed
from short_runs import short, small_set
from vitlab import api
from vitlab.cli import main
from vitlab.cli.terminal import print_table, say
from vitlab.cli.train import report
from vitlab.training.recipe import Recipe

__all__ = ["short", "small_set"]

RED, LINES = "red\x1b[31m", "two\nlines"
CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def test_tables_and_lines(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["name", ">value"], [[RED, "1"], [LINES, "2"], ["\u202egnp.exe", "3"], ["café\u00a0✓", "4"]])
    say(f"vitlab: {RED}")
    printed = capsys.readouterr()
    assert printed.out.splitlines() == [
        "name           value",
        "red\\x1b[31m        1",
        "two\\nlines         2",
        "\\u202egnp.exe      3",
        "café\u00a0✓             4",
    ]
    assert printed.err == "vitlab: red\\x1b[31m\n"


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A data set of two classes whose folders, and one of whose files, have such names."""
    generator = np.random.default_rng(0)
    for name in (RED, LINES):
        for split, count in (("train", 24), ("val", 6), ("test", 4)):
            (tmp_path / "data" / split / name).mkdir(parents=True)
            for number in range(count):
                image = Image.fromarray(generator.integers(0, 256, (12, 12, 3), dtype=np.uint8))
                image.save(tmp_path / "data" / split / name / f"{number}\x1b[2J.png")
    (tmp_path / "data" / "train" / RED / "broken\x1b[2J\n.png").write_bytes(b"no image")
    return tmp_path / "data"


def test_wide_characters_keep_columns_in_line(capsys: pytest.CaptureFixture[str]) -> None:
    """A Hangul syllable takes two places of a terminal."""
    print_table(["image", ">share"], [["한글.jpg", "1%"], ["abcdefgh", "20%"]])
    assert capsys.readouterr().out.splitlines() == ["image     share", "한글.jpg     1%", "abcdefgh    20%"]


def test_a_narrow_terminal_gets_whole_names_and_fewer_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    told: dict[int, str] = {}
    for columns in (60, 80, 120):
        monkeypatch.setenv("COLUMNS", str(columns))
        assert main(["models", "vit-gigantic14-*"]) == 0
        told[columns] = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
        assert "vit-gigantic14-224 " in told[columns]
        assert "1882.80 M" in told[columns]
        assert max(map(len, told[columns].splitlines())) <= columns
    said = {columns: " ".join(text.split()).partition("want of room: ")[2] for columns, text in told.items()}
    assert said == {60: "published, tokens, pixels, patch, size.", 80: "published, tokens, pixels.", 120: ""}
    assert "48 / 1664 / 8192 / 16" in told[80]


def test_every_verb_escapes_names(
    hostile: Path, short: Recipe, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = changed(short, **{"data.source": str(hostile), "data.max_unreadable": 0.1, "schedule.total": "4 steps"})
    outcome = api.train(recipe, out=tmp_path / "run\x1b[0m", device="cpu", show=True)
    assert report(outcome, as_json=False) == 0
    model, image = str(outcome.folder / "model"), str(hostile / "test" / RED / "0\x1b[2J.png")
    assert main(["predict", image, str(tmp_path / "gone\x1b\n.png"), "--model", model, "--device", "cpu"]) == 1
    assert main(["evaluate", "accuracy", "--model", model, "--data", str(hostile), "--device", "cpu"]) == 0
    assert main(["report", str(outcome.folder), "--device", "cpu"]) == 0
    printed = capsys.readouterr()
    for text in (printed.out, printed.err, (outcome.folder / "report.html").read_text(encoding="utf-8")):
        assert not CONTROLS.search(text)
        assert "red\\x1b[31m" in text or text is printed.err
    assert "two\\nlines" in printed.out
    assert "gone\\x1b\\n.png" in printed.err

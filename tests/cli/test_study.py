"""`vitlab study` as it is typed: the list, the one of docs/studies.md, and a second call that trains nothing."""

import contextlib
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from vitlab.cli import main
from vitlab.studies import STUDIES

PAGE = Path(__file__).parents[2] / "docs" / "studies.md"


@pytest.fixture(autouse=True)
def here(tmp_path: Path) -> Iterator[None]:
    """A folder with the file that docs/studies.md shows."""
    (example,) = re.findall(r"```python\n(# lengths.py\n.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "lengths.py").write_text(example)
    with contextlib.chdir(tmp_path):
        yield


def test_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["study"]) == 0
    printed = capsys.readouterr().out
    assert all(study.name in printed and study.summary in printed for study in STUDIES)
    assert main(["study", "--json"]) == 0
    assert [each["name"] for each in json.loads(capsys.readouterr().out)] == STUDIES.names()


def test_one_of_ones_own_is_run_then_reused(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["study", "lengths.py:LENGTHS", "--out", "grid", "--seeds", "1", "--device", "cpu", "--steps", "2"]
    assert main([*arguments, "--forecast"]) == 0
    assert "lengths: 2 runs; about a few seconds on this CPU" in capsys.readouterr().out
    assert not Path("grid").exists()
    assert main(arguments) == 0
    said = capsys.readouterr()
    assert said.out.startswith("**Two lengths**")
    assert "With one seed nothing of it is sure." in said.out
    assert "lengths: 2 runs; about a few seconds on this CPU" in said.err
    assert "In grid: study.md, study.json, figure.png." in said.err
    written = {path: path.stat().st_mtime_ns for path in Path("grid/runs").rglob("*.*")}
    assert main([*arguments, "--json"]) == 0
    again = capsys.readouterr()
    assert "lengths: 2 runs, all done already." in again.err
    result = json.loads(again.out)
    assert result["format"] == "vitlab study 1"
    assert (result["study"], result["scale"], result["cost"]["runs"]) == ("lengths", "digits", 2)
    assert {path: path.stat().st_mtime_ns for path in Path("grid/runs").rglob("*.*")} == written
    assert json.loads(Path("grid/study.json").read_text())["tables"] == result["tables"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["postions"], "There is no study named 'postions'. Did you mean positions?"),
        (["--scale", "digits"], "Name a study before '--scale': vitlab study NAME; `vitlab study` lists them."),
        (["positions", "--seeds", "0"], "A study needs a seed or more, not 0."),
        (["positions", "--executor", "moon"], "There is no executor named 'moon'. There are here, ray"),
        (["positions", "--only", "3-D"], "The study positions has no cell '3-D'."),
    ],
)
def test_mistakes_are_one_sentence(arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["study", *arguments, "--out", "grid"]) == 2
    assert sentence in capsys.readouterr().err


def test_another_studys_folder_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    Path("grid").mkdir()
    Path("grid", "grid.json").write_text('{"study": "shape", "scale": "digits"}')
    assert main(["study", "positions", "--out", "grid"]) == 2
    assert "was planned otherwise (study: 'shape', now 'positions')" in capsys.readouterr().err

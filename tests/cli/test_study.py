"""`vitlab study` as it is typed: the list, one of one's own, its files, and a second call that trains nothing."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from vitlab.cli import main
from vitlab.studies import STUDIES

MINE = '''
"""Two lengths of a run."""

from dataclasses import dataclass, replace

from vitlab.studies.contract import Study, StudyResult, Table


@dataclass(frozen=True, kw_only=True)
class Options:
    """Lengths: a run of some steps, and of twice as many."""

    steps: int = 1
    """Of the shorter run."""


def run(context, options: Options) -> StudyResult:
    from vitlab.recipes.scales import scale_recipe
    from vitlab.studies.context import samples
    from vitlab.training.schedules import Schedule

    recipe = scale_recipe(context.scale)
    both = (f"{options.steps} steps", f"{2 * options.steps} steps")
    lengths = {total: replace(recipe, schedule=Schedule(total=total)) for total in both}
    found = samples(context.over_seeds(lengths))
    rows = [[row, each.percent()] for row, each in found.items()]
    return StudyResult(tables=[Table("Lengths", ["", ">test %"], rows)], findings=["Two lengths were run."])


LENGTHS = Study(name="lengths", summary="two lengths of a run", options=Options, run=run, scales=("digits",), seeds=1)
'''


@pytest.fixture(autouse=True)
def here(tmp_path: Path) -> Iterator[None]:
    (tmp_path / "mine.py").write_text(MINE)
    with contextlib.chdir(tmp_path):
        yield


def test_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["study"]) == 0
    printed = capsys.readouterr().out
    assert all(study.name in printed and study.summary in printed for study in STUDIES)
    assert main(["study", "--json"]) == 0
    assert [each["name"] for each in json.loads(capsys.readouterr().out)] == STUDIES.names()


def test_one_of_ones_own_is_run_then_reused(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["study", "mine.py:LENGTHS", "--out", "grid", "--device", "cpu", "--steps", "2"]
    assert main([*arguments, "--forecast"]) == 0
    assert "lengths: 2 runs; about a few seconds on this CPU" in capsys.readouterr().out
    assert not Path("grid").exists()
    assert main(arguments) == 0
    said = capsys.readouterr()
    assert said.out.startswith("**Lengths**")
    assert "Two lengths were run." in said.out
    assert "lengths: 2 runs; about a few seconds on this CPU" in said.err
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
        (["positions", "--executor", "moon"], "There is no executor named 'moon'. There are here."),
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

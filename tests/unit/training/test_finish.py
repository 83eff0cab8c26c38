import json
import math
import re
from pathlib import Path

import pytest

from shown import HOSTILE, shown
from vitlab.cli import main
from vitlab.training.finish import RunOutcome
from vitlab.training.scoring import Scoring


def test_a_run_says_how_it_ended_and_where_things_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = Path("runs", "mine")
    outcome = RunOutcome(
        folder, "done", 0, 120, {"test accuracy": 0.91}, ("best validation accuracy: 93.00%", "test accuracy: 91.00%")
    )
    assert shown(outcome).links == []
    (folder / "model").mkdir(parents=True)
    (folder / "report.html").write_text("")
    page = shown(outcome)
    assert page.links == ["runs/mine/report.html"]
    assert page.rows == [["best validation accuracy", "93.00%"], ["test accuracy", "91.00%"]]
    assert "Done after 120 steps." in page.text
    assert "vitlab.load('runs/mine/model')" in page.text
    assert (
        repr(outcome)
        == "<Run runs/mine: Done after 120 steps. best validation accuracy: 93.00%, test accuracy: 91.00%>"
    )


@pytest.mark.parametrize(
    ("reason", "words"),
    [("early", "Stopped early"), ("signal", "Stopped at step 3; resume with: vitlab train --resume")],
)
def test_runs_that_ended_otherwise_and_names_that_are_markup(reason: str, words: str) -> None:
    outcome = RunOutcome(Path(HOSTILE.replace("/", "")), reason, 0, 3, {}, ("a line without a value",))
    page = shown(outcome)
    assert words in page.text
    assert ["", "a line without a value"] in page.rows
    assert "\x1b" not in repr(outcome)


def test_what_is_done_with_a_generator_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--schedule.total", "2 steps", "--data.workers", "0", "--task.features", "pixels", "--device", "cpu"]
    assert main(["train", "transgan-digits", *arguments, "--out", str(tmp_path / "run")]) == 0
    said = capsys.readouterr().out
    assert f"use it: vitlab sample {tmp_path / 'run'} samples" in said
    (best,) = [line for line in said.splitlines() if "validation" in line]
    assert re.fullmatch(r"  best validation Frechet distance of 8 x 8 pixels: [0-9.]+", best)
    assert "score" not in said


def test_a_result_is_json_also_where_the_loss_is_no_number(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    nan = {"loss": math.nan, "score": math.nan, "count": 1.0}
    monkeypatch.setattr(Scoring, "own_score", lambda *_: nan)
    arguments = ["--schedule.total", "2 steps", "--data.workers", "0", "--device", "cpu"]
    assert main(["train", "mae-digits", *arguments, "--out", str(tmp_path / "run")]) == 0
    result = json.loads((tmp_path / "run" / "result.json").read_text(), parse_constant=refused)
    assert result["val score"] is None
    assert "loss nan: numbers overflow" in capsys.readouterr().err
    assert (tmp_path / "run" / "report.html").exists()

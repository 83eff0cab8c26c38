"""What a run shows while it runs."""

import json
import sys
from pathlib import Path

import pytest

from vitlab.training import log
from vitlab.training.log import ProgressView


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, to be set by hand."""
    now = [0.0]
    monkeypatch.setattr(log.time, "monotonic", lambda: now[0])
    return now


def test_lines_begin_with_the_first_step_and_have_the_time_left(
    clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    view = ProgressView(500)
    view.begin(0, 2.0)
    view.update(1, {})
    clock[0] = 9.0
    view.update(4, {"seconds per step": 3.0})  # too soon for another line
    clock[0] = 10.0
    view.update(5, {"seconds per step": 1.5})
    clock[0] = 25.0
    view.update(20, {"seconds per step": 1.0, "images per second": 16.0, "loss": 0.5})
    clock[0] = 26.0
    view.update(500, {})
    assert capsys.readouterr().err.splitlines() == [
        "step 1/500  16:38 left",
        "step 5/500  12:22 left",
        "step 20/500  16 images/s  loss 0.500  8:00 left",
        "step 500/500  16 images/s  loss 0.500  0:00 left",
    ]


def test_without_an_estimate_the_first_line_has_no_time(capsys: pytest.CaptureFixture[str]) -> None:
    view = ProgressView(500)
    view.begin(0)
    view.update(1, {})
    assert capsys.readouterr().err == "step 1/500\n"


def test_a_resumed_run_on_a_terminal_counts_from_where_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "100")
    view = ProgressView(500)
    view.begin(300, 2.0)
    view.update(301, {"seconds per step": 3.0})
    view.say("a line")
    view.close()
    shown = capsys.readouterr().err
    assert "301/500" in shown
    assert "9:57 left" in shown
    assert "a line" in shown


def test_a_run_that_begins_anew_drops_what_was_measured_before_its_first_step(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    for after, evaluated, kept in ((0, 0, [0]), (4, 2, [0, 2])):
        path.write_text("".join(json.dumps({"step": step, "val score": 1.0}) + "\n" for step in (0, 2, 5)))
        lines = log.JsonLines(path, after=after, evaluated=evaluated)
        if not after:
            lines.write(0, {"val score": 2.0})
        lines.close()
        found = [json.loads(line) for line in path.read_text().splitlines()]
        assert [line["step"] for line in found] == kept
        assert found[0]["val score"] == (1.0 if after else 2.0)

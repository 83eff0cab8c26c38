"""How far something is."""

import sys

import pytest

from vitlab.core import progress
from vitlab.core.progress import bar, stage
from vitlab.core.words import about, clock


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_without_a_terminal_a_stage_is_said_and_lines_follow(
    time: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    with stage("Scoring 1,000 test images") as done:
        done(0, 1000)
        for seconds, number in ((5.0, 100), (10.0, 250), (12.0, 300), (40.0, 1000)):
            time[0] = seconds
            done(number, 1000)
    said = "Scoring 1,000 test images"
    assert capsys.readouterr().err.splitlines() == [f"{said}.", f"{said}: 250/1,000  0:30 left"]


def test_a_second_count_has_its_own_pace(time: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    with stage("study") as done:
        for seconds, number in ((0.0, 1), (1000.0, 2), (1010.0, 1), (1030.0, 3)):
            time[0] = seconds
            done(number, 4 if seconds > 1000 else 2)
    assert capsys.readouterr().err.splitlines()[-1] == "study: 3/4  0:10 left"


def test_on_a_terminal_it_is_a_bar(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "100")
    with stage("Writing [the] report") as done:
        done(3, 4)
    shown = capsys.readouterr().err
    assert "Writing [the] report" in shown
    assert "3/4" in shown


@pytest.mark.parametrize("columns", [40, 60, 80])
def test_on_any_terminal_the_counts_and_the_time_are_whole(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    shown = bar()
    shown.add_task("7 images/s  loss 0.586  accuracy 88.13%", total=1500, completed=360, left="1:02:28 left")
    with shown.console.capture() as printed:
        shown.console.print(shown.get_renderable())
    (line,) = printed.get().splitlines()
    assert "360/1500 7 im" in line
    assert line.endswith("1:02:28 left")


def test_nobody_watches(capsys: pytest.CaptureFixture[str]) -> None:
    with stage("Writing the report", shown=False) as done:
        done(1, 2)
    assert capsys.readouterr().err == ""


def test_durations_in_words() -> None:
    assert [clock(seconds) for seconds in (0, 59.6, 187, 4800)] == ["0:00", "1:00", "3:07", "1:20:00"]
    given = (3, 44, 89, 91, 239, 5300, 5500, 100_000, 200_000)
    assert [about(seconds) for seconds in given] == [
        *("a few seconds", "40 s", "90 s", "2 minutes", "4 minutes", "88 minutes", "2 hours", "28 hours", "2 days"),
    ]

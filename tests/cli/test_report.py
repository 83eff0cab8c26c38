import contextlib
import dataclasses
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from report_pages import Page
from short_runs import short, small_set
from vitlab import api
from vitlab.cli import main
from vitlab.core.config import to_dict
from vitlab.core.errors import Error
from vitlab.core.record import write_json
from vitlab.training import distribution, session
from vitlab.training.distribution import World
from vitlab.training.recipe import Recipe
from vitlab.training.session import RunOutcome

__all__ = ["short", "small_set"]


def test_a_run_ends_with_a_report_that_can_be_made_again(
    short: Recipe, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "a run"
    outcome = api.train(short, out=folder, device="cpu")
    assert outcome.reason == "done"
    page = Page((folder / "report.html").read_text(encoding="utf-8"))
    page.check()
    assert "finished" in page.text
    best = json.loads((folder / "result.json").read_text())["best_score"]
    assert float(page.row("accuracy: right answers")[0].rstrip("%")) == pytest.approx(100 * best, abs=0.05)

    from vitlab.cli.train import report

    assert report(outcome, as_json=False) == 0
    assert f"the report: {folder / 'report.html'}\n" in capsys.readouterr().out
    before = (folder / "report.html").read_bytes()
    for wrong, words in (
        (["--data", str(tmp_path / "gone")], f"There is no file or folder {tmp_path / 'gone'}."),
        (["--data", "digits"], f"digits is not what {folder} was trained on"),
        (["--task", "segmentation"], f"{folder} was trained for classification, not for segmentation."),
    ):
        assert main(["report", str(folder), *wrong]) == 2
        assert words in capsys.readouterr().err
        assert (folder / "report.html").read_bytes() == before
    (folder / "report.html").unlink()
    assert main(["report", str(folder), "--images", "10", "--device", "cpu", "--json"]) == 0
    printed = capsys.readouterr()
    told = {"report": str(folder / "report.html"), "state": "done", "images": 10}
    assert (json.loads(printed.out), printed.err) == (told, "")
    assert re.search(
        r"on 10 of the \d+ validation pictures", Page((folder / "report.html").read_text(encoding="utf-8")).text
    )


@pytest.fixture
def begun(short: Recipe, tmp_path: Path) -> Path:
    """A run that was killed before anything was logged."""
    write_json(tmp_path / "begun" / "recipe.json", to_dict(short))
    return tmp_path / "begun"


def test_an_unfinished_run(begun: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(begun)]) == 0
    printed = capsys.readouterr()
    assert printed.out == f"Written to {begun / 'report.html'}.\n"
    assert printed.err.startswith("vitlab: There is no model yet")
    page = Page((begun / "report.html").read_text(encoding="utf-8"))
    assert "Step 0 of 24 (0%)." in page.text
    assert f"vitlab train --resume {begun}" in page.commands


def test_mistakes_are_one_sentence(tmp_path: Path, begun: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, sentence in (
        ([str(tmp_path)], f"{tmp_path} is not a run's folder: recipe.json is missing."),
        ([str(tmp_path / "no")], f"There is no folder {tmp_path / 'no'}: give the folder of a run."),
        ([str(begun), "--images", "0"], "--images must be at least 1, not 0."),
    ):
        assert main(["report", *arguments]) == 2
        assert capsys.readouterr() == ("", f"vitlab: {sentence}\n")
    (begun / "recipe.json").write_text("{")
    assert main(["report", str(begun)]) == 2
    assert capsys.readouterr().err.startswith(f"vitlab: {begun / 'recipe.json'}: cannot be read")


def test_a_report_that_fails_is_a_sentence_and_no_failure(
    begun: Path, short: Recipe, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    done = RunOutcome(begun, "done", 0, 24, {})
    monkeypatch.setattr(session, "train", lambda *_, **__: done)
    monkeypatch.setattr("vitlab.reporting.make.page", lambda _: 1 / 0)
    assert api.train(short, out=begun) is done
    expected = f"The report of {begun} could not be made (division by zero); `vitlab report {begun}` tries again."
    assert [entry.getMessage() for entry in caplog.records] == [expected]


def test_a_report_that_is_interrupted_is_named(
    begun: Path, short: Recipe, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def interrupted(_: object) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(session, "train", lambda *_, **__: RunOutcome(begun, "done", 0, 24, {}))
    monkeypatch.setattr("vitlab.reporting.make.page", interrupted)
    with pytest.raises(KeyboardInterrupt):
        api.train(short, out=begun)
    expected = f"The run is done, its report is not: `vitlab report {begun}` writes it."
    assert [entry.getMessage() for entry in caplog.records] == [expected]


@pytest.mark.parametrize(
    ("rank", "reason", "written"), [("0", "early", True), ("1", "done", False), ("0", "signal", False)]
)
def test_only_the_first_process_reports_and_only_what_ended(
    rank: str, reason: str, written: bool, begun: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "resume", lambda *_, **__: RunOutcome(begun, reason, 0, 24, {}))
    world = World(int(rank), 2, torch.device("cpu"))
    monkeypatch.setattr(distribution, "join", lambda _: contextlib.nullcontext(world))
    for name, value in (("is_initialized", True), ("get_world_size", 2), ("get_rank", int(rank))):
        monkeypatch.setattr(torch.distributed, name, lambda value=value: value)
    monkeypatch.delattr(torch.distributed.distributed_c10d, "_get_default_store")  # nobody is there to wait for
    api.resume(begun)
    assert (begun / "report.html").exists() == written


def test_help_needs_nothing_heavy() -> None:
    code = (
        "import sys; from vitlab.cli import main; status = main(['report', '--help']);"
        " sys.exit(status or bool({'torch', 'numpy', 'matplotlib'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "vitlab report" in done.stdout


def test_a_run_in_the_place_of_a_file_is_refused(short: Recipe, tmp_path: Path) -> None:
    (tmp_path / "photo.jpg").write_text("x")
    with pytest.raises(Error, match=r"photo\.jpg is a file; give the name of a folder for the run\."):
        api.train(short, out=tmp_path / "photo.jpg", device="cpu")
    assert (tmp_path / "photo.jpg").read_text() == "x"


def test_a_run_among_its_images_is_refused(short: Recipe, tmp_path: Path) -> None:
    for source in (f"{tmp_path}/.", f"photos:{tmp_path}"):
        among = dataclasses.replace(short, data=dataclasses.replace(short.data, source=source))
        with pytest.raises(Error, match="holds the images, and a run's files would lie among them"):
            api.train(among, out=tmp_path, device="cpu")
    assert not (tmp_path / "recipe.json").exists()

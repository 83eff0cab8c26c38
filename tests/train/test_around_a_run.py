"""What happens around a run's steps: trackers that fail, folders without locks, signals at its start and end."""

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
import types
from pathlib import Path
from typing import Any

import pytest

import vitlab
from changing import changed, spoil_at
from short_runs import write_damaged_folder
from vitlab.core.errors import ConfigError, Error
from vitlab.training import session
from vitlab.training.finish import RunOutcome
from vitlab.training.hooks import DivergedError
from vitlab.training.recipe import Recipe
from vitlab.training.run import RunError, locked
from vitlab.training.scoring import Scoring


def run(recipe: Recipe, folder: Path) -> RunOutcome:
    return session.train(recipe, folder, device="cpu", show=False)


def resume(folder: Path) -> RunOutcome:
    return session.resume(folder, device="cpu", show=False)


class Service:
    """What MLflow and W&B have in common: runs by their ids, and what was logged to them."""

    def __init__(self) -> None:
        self.runs: dict[str, list[int]] = {}
        self.open, self.fails_at = "", 10**9

    def begin(self, known: str | None) -> types.SimpleNamespace:
        self.open = known or f"run {len(self.runs)}"
        self.runs.setdefault(self.open, [])
        return types.SimpleNamespace(
            id=self.open, info=types.SimpleNamespace(run_id=self.open), log=self.log, finish=lambda: None
        )

    def log(self, values: dict[str, float], *, step: int) -> None:
        assert values
        if step >= self.fails_at:
            raise ConnectionError("the network is down")
        self.runs[self.open].append(step)


@pytest.mark.parametrize("name", ["mlflow", "wandb"])
def test_a_tracker_that_fails_does_not_end_the_run(
    short: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    service, module = Service(), types.ModuleType(name)
    here: Any = module
    here.start_run = lambda **known: service.begin(known.get("run_id"))
    here.log_metrics, here.end_run = service.log, lambda: None
    here.init = lambda **known: service.begin(known["id"])
    monkeypatch.setitem(sys.modules, name, module)
    recipe = changed(short, tracker=name)
    service.fails_at = 9
    ended = session.train(recipe, tmp_path / "run", device="cpu")
    assert ended.step == 24
    assert capsys.readouterr().err.count(f"{name} failed at step 9") == 1
    assert max(service.runs["run 0"]) == 6
    service.fails_at = 10**9
    with monkeypatch.context() as patch:
        spoil_at(9, patch)
        with pytest.raises(DivergedError):
            run(changed(recipe, max_skipped=2), tmp_path / "other")
    resume(tmp_path / "other")  # the same one there
    assert list(service.runs) == ["run 0", "run 1"]
    assert max(service.runs["run 1"]) == 24


def test_a_checkpoint_amid_skipped_steps_is_not_called_good(short: Recipe, tmp_path: Path) -> None:
    fields = {"optimizer.name": "sgd", "optimizer.weight_decay": 0.0, "optimizer.clip": None, "optimizer.lr": 1e25}
    with pytest.raises(DivergedError, match="there is no checkpoint from before them"):
        run(changed(short, max_skipped=4, **fields), tmp_path / "run")


@pytest.mark.parametrize("part", ["middle", "last", "test"])
def test_a_signal_in_an_evaluation_does_not_wait_for_its_end(
    short: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    write_damaged_folder(tmp_path / "data", {})
    (tmp_path / "data" / "val").rename(tmp_path / "data" / "test")
    recipe = changed(short, **{"data.source": str(tmp_path / "data")})
    whole = run(recipe, tmp_path / "whole")
    begun, nth = [], {"middle": 1, "last": 4, "test": 5}[part]
    batches = Scoring._batches

    def told(*args: Any) -> Any:
        begun.append(args)
        if len(begun) == nth:
            signal.raise_signal(signal.SIGTERM)
        return batches(*args)

    with monkeypatch.context() as patch:
        patch.setattr(Scoring, "_batches", told)
        ended = run(recipe, tmp_path / "stopped")
    assert (ended.status, ended.step) == (143, 6 if part == "middle" else 24)
    assert len(begun) == nth
    assert not (tmp_path / "stopped" / "result.json").exists()
    assert resume(tmp_path / "stopped").scores == whole.scores
    lines = [
        [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        for name in ("whole", "stopped")
    ]
    kept = [[(line["step"], line.get("val score"), line.get("loss")) for line in each] for each in lines]
    assert kept[0] == kept[1]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_workers_are_started(number: signal.Signals, tmp_path: Path) -> None:
    """To the whole group, as a terminal's Ctrl-C, when the server that they come from has only begun."""
    write_damaged_folder(tmp_path / "data", {})
    command = [sys.executable, "-m", "vitlab", "train", "digits", "--data.source", str(tmp_path / "data")]
    options = ["--data.workers", "1", "--data.resident", "False", "--device", "cpu", "--out", str(tmp_path / "run")]
    with subprocess.Popen(
        [*command, *options, "--batch-size", "16"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        while not serves(process.pid):
            assert process.poll() is None
            time.sleep(0.02)
        time.sleep(0.2)
        os.killpg(process.pid, number)
        said, _ = process.communicate()
    assert process.returncode == 128 + number, said
    assert "Traceback" not in said


def serves(process: int) -> bool:
    """Whether the process has a fork server."""
    children = Path(f"/proc/{process}/task/{process}/children")
    try:
        found = children.read_text().split()
        return any("forkserver" in Path(f"/proc/{child}/cmdline").read_text() for child in found)
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_disk_that_has_no_locks_is_not_a_run_under_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: Any) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", none)
    with pytest.raises(RunError, match=r"cannot be locked.*No locks available"), locked(tmp_path / "run"):
        pass


def test_a_refused_run_leaves_no_folder(short: Recipe, tmp_path: Path) -> None:
    with pytest.raises(Error, match="nosuch"):
        run(changed(short, **{"model.source": "nosuch"}), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mine.txt").write_text("kept")
    with pytest.raises(Error, match="nosuch"):
        run(changed(short, **{"model.source": "nosuch"}), tmp_path / "run")
    assert (tmp_path / "run" / "mine.txt").read_text() == "kept"


def test_an_empty_name_is_no_folder(short: Recipe) -> None:
    with pytest.raises(ConfigError, match="An empty name is no folder"):
        vitlab.train(short, out="")


def test_unreadable_pictures_that_are_known_before_the_start_prevent_it(short: Recipe, tmp_path: Path) -> None:
    write_damaged_folder(tmp_path / "data", {"val": list(range(8))})
    fields = {"data.source": str(tmp_path / "data"), "data.resident": False, "data.workers": 0}
    with pytest.raises(Error, match=r"(?s)8 of 12 images cannot be read, and 6 are allowed.*val/a/00\.png"):
        session.train(changed(short, **fields), tmp_path / "run", device="cpu")
    assert not (tmp_path / "run").exists()

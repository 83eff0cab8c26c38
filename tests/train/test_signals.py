"""Ctrl-C and SIGTERM finish the step, write a checkpoint, and end with 130 and 143."""

import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from changing import changed, signal_at
from vitlab.recipes import find_recipe
from vitlab.training import checkpoints, session


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_a_run_in_order(number: signal.Signals, status: int, small_set: Path, tmp_path: Path) -> None:
    run = tmp_path / "a run"
    command = [sys.executable, "-m", "vitlab", "train", "digits", "--out", str(run), "--data.source", str(small_set)]
    options = ["--schedule.total", "100k steps", "--log-every", "1 step", "--device", "cpu", "--batch-size", "16"]
    with subprocess.Popen([*command, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("step "):
                break
        process.send_signal(number)
        said, _ = process.communicate()
    assert process.returncode == status
    assert "vitlab train --resume" in said
    [(step, _)] = checkpoints.complete(run / "checkpoints")
    assert f"Stopped at step {step}" in said


def test_an_interrupted_run_can_go_on(small_set: Path, tmp_path: Path) -> None:
    """The signal arrives between two steps; what follows is the run that was asked for."""
    recipe = find_recipe("digits")
    short = changed(recipe, **{"data.source": str(small_set), "schedule.total": "12 steps", "batch_size": 16})
    with pytest.MonkeyPatch.context() as patch:
        signal_at(5, signal.SIGTERM, patch)
        ended = session.train(short, tmp_path / "run", device="cpu", show=False)
    assert (ended.reason, ended.status, ended.step) == ("signal", 143, 6)
    assert session.resume(tmp_path / "run", device="cpu", show=False).step == 12
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert np.all(np.diff([int(line.split(",")[0].split(":")[1]) for line in lines]) >= 0)

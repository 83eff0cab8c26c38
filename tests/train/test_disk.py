"""Disks that are full, or that turned read-only: one sentence, the last good state, and nothing half written."""

import errno
import os
import shutil
import subprocess
import sys
import threading
from collections import deque
from pathlib import Path
from typing import Any

import pytest

from disks import fill, make_read_only, small_disk
from short_runs import write_small_set
from unit.training.test_step import make
from vitlab.cli import main
from vitlab.core.files import CannotWriteError
from vitlab.models.create import fresh_model
from vitlab.models.vit import ViTConfig
from vitlab.training import checkpoints
from vitlab.training.log import TensorBoard
from vitlab.weights import native
from vitlab.weights.load import save

__all__ = ["small_disk"]
FORMATS = {"vitlab": "model", "google": "a.npz", "timm": "a.safetensors", "torchvision": "a.pth", "hf": "model"}
REFUSED = (errno.ENOSPC, errno.EROFS)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    config = ViTConfig(
        image_size=(32, 32), patch_size=16, width=64, depth=2, mlp_dim=256, heads=1, num_classes=3, gelu="exact"
    )
    save(fresh_model(config), tmp_path / "source")
    return tmp_path / "source"


def refusal(capsys: pytest.CaptureFixture[str], source: Path, target: Path, form: str) -> str:
    """What `convert` says that cannot write."""
    set_gelu = ["--set", f"gelu={'tanh' if form == 'google' else 'exact'}"]
    assert main(["convert", str(source), str(target), "--format", form, *set_gelu]) == 2
    *others, line = capsys.readouterr().err.splitlines()
    assert all("gelu" in other for other in others)
    assert line.startswith("vitlab: Cannot write ")
    return line


@pytest.mark.parametrize("form", FORMATS)
def test_converting_to_a_full_disk(
    small_disk: Path, source: Path, form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(small_disk, leave=1 << 16)
    said = refusal(capsys, source, small_disk / FORMATS[form], form)
    assert "No space left on device." in said or "the disk is full" in said
    assert [path.name for path in small_disk.iterdir()] == ["other"]


@pytest.mark.parametrize("form", ["vitlab", "google"])
def test_converting_to_a_read_only_disk(
    small_disk: Path, source: Path, form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    make_read_only(small_disk)
    assert refusal(capsys, source, small_disk / FORMATS[form], form).endswith(": Read-only file system.")


@pytest.mark.parametrize("number", REFUSED)
def test_a_write_that_is_refused_in_the_middle(
    tmp_path: Path, source: Path, number: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(state: Any, path: Path, **_: Any) -> None:
        del state
        path.write_bytes(b"half")
        raise OSError(number, os.strerror(number), str(path))

    monkeypatch.setattr(native, "save_file", refuse)
    assert refusal(capsys, source, tmp_path / "model", "vitlab").endswith(f": {os.strerror(number)}.")
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_a_checkpoint_on_a_disk_that_fills_while_it_is_written(
    small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, _ = make()
    state.progress.step = 1
    kept = checkpoints.write(small_disk / "checkpoints", state)
    fill(small_disk, leave=1 << 16)
    state.progress.step = 2
    with pytest.raises(checkpoints.DiskFullError, match=r"MiB are needed, 0 are free.*make room.*step-000000001\.$"):
        checkpoints.write(small_disk / "checkpoints", state)
    free = type("Usage", (), {"free": 1 << 40})
    monkeypatch.setattr(shutil, "disk_usage", lambda _: free)
    with pytest.raises(checkpoints.DiskFullError, match=r"No space left.*make room and resume.*step-000000001\.$"):
        checkpoints.write(small_disk / "checkpoints", state)
    assert [path for _, path in checkpoints.complete(small_disk / "checkpoints")] == [kept]
    assert not list((small_disk / "checkpoints").glob(".*"))
    checkpoints.read(kept, state)
    assert state.progress.step == 1


def test_a_checkpoint_on_a_disk_that_turned_read_only(small_disk: Path) -> None:
    state, _ = make()
    state.progress.step = 1
    checkpoints.write(small_disk, state)
    make_read_only(small_disk)
    state.progress.step = 2
    with pytest.raises(checkpoints.DiskFullError, match=r"Read-only file system.*mend that.*step-000000001\.$"):
        checkpoints.write(small_disk, state)


@pytest.mark.parametrize("number", REFUSED)
def test_a_checkpoint_that_is_refused_in_the_middle(
    tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(number, os.strerror(number))

    state, _ = make()
    monkeypatch.setattr(checkpoints.dcp, "save", refuse)
    with pytest.raises(checkpoints.DiskFullError, match=os.strerror(number)):
        checkpoints.write(tmp_path, state)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("number", REFUSED)
def test_tensorboard_on_a_disk_that_refuses(
    tmp_path: Path, number: int, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tensorboard.summary.writer.record_writer import RecordWriter

    def refuse(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(threading, "excepthook", threading.excepthook)  # which it replaces
    events = TensorBoard(tmp_path, after=0)
    monkeypatch.setattr(RecordWriter, "write", refuse)
    with pytest.raises(CannotWriteError, match=rf"Cannot write TensorBoard's events in .*: {os.strerror(number)}\.$"):
        deque((events.write(step, {"loss": 1.0}) for step in range(10_000)), maxlen=0)
    events.close()
    assert capfd.readouterr().err == ""


def test_a_run_on_a_disk_that_fills(small_disk: Path, tmp_path: Path) -> None:
    data = write_small_set(tmp_path / "set.npz")
    fill(small_disk, leave=400_000)
    command = [sys.executable, "-m", "vitlab", "train", "digits", "--data.source", str(data), "--out", "run"]
    quick = ["--schedule.total", "40 steps", "--checkpoint-every", "2 steps", "--model.set", "depth=1"]
    done = subprocess.run([*command, *quick], cwd=small_disk, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert "vitlab: No checkpoint could be written to run/checkpoints" in done.stderr
    assert "Traceback" not in done.stderr
    assert "Exception" not in done.stderr

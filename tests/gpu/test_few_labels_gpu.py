"""FixMatch, Noisy Student and a teacher of our own on a GPU: captured, compiled and captured, and resumed."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import vitlab
from changing import changed, lose_at
from vitlab.core.config import Choice
from vitlab.objectives import OBJECTIVES
from vitlab.objectives.pseudo_labels import FILE
from vitlab.training import session
from vitlab.training.captured import CapturedStepper
from vitlab.training.recipe import Recipe

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores"),  # float32 here is to be exact
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),  # torch's, hidden by it
]

OPTIONS: dict[str, dict[str, Any]] = {
    "fixmatch": {"ratio": 3, "threshold": 0.5},
    "fixmatch+average": {"ratio": 3, "threshold": 0.5, "teacher_ema": 0.8},
    "noisy-student": {"ratio": 3, "threshold": 0.2, "quota": 40},
    "distillation": {"kind": "soft"},
}
TAUGHT = ("noisy-student", "distillation")


@pytest.fixture(params=list(OPTIONS))
def few(request: pytest.FixtureRequest, short: Recipe, tmp_path: Path) -> Recipe:
    """24 steps without dropout, whose numbers a GPU draws otherwise, and in float32 throughout."""
    plain = {"augmentation.mixup": 0.0, "augmentation.cutmix": 0.0, "model.dropout": 0.0, "model.drop_path": 0.0}
    exact = {"precision": "float32", "keep": "last", "optimizer.lr": 1e-3, "optimizer.ema": None, "data.labelled": 0.2}
    name, options = request.param.split("+")[0], dict(OPTIONS[request.param])
    if name in TAUGHT:
        torch.manual_seed(0)
        vitlab.save(vitlab.create("vit-digits", depth=1, num_classes=3), tmp_path / "teacher")
        options["teacher"] = str(tmp_path / "teacher")
    return dataclasses.replace(changed(short, **plain, **exact), objective=Choice(name, options))


def final(folder: Path) -> torch.Tensor:
    return torch.cat([value.flatten() for value in load_file(folder / "model" / "model.safetensors").values()])


def close(a: torch.Tensor, b: torch.Tensor) -> float:
    return ((a - b).norm() / b.norm()).item()


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.compiled)])
def test_it_trains_captured(few: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiled: bool) -> None:
    """The same as step by step: both streams, and labels that are decided on the device."""
    used: list[int] = []
    made = CapturedStepper.__call__
    monkeypatch.setattr(
        CapturedStepper, "__call__", lambda self, step, lr: (used.append(step), made(self, step, lr))[1]
    )
    session.train(changed(few, compile=compiled), tmp_path / "captured", device="cuda", show=False)
    assert used == list(range(24))
    monkeypatch.setattr(OBJECTIVES.find(few.objective.name).objective, "capturable", False)
    session.train(few, tmp_path / "eager", device="cuda", show=False)
    assert len(used) == 24
    assert close(final(tmp_path / "captured"), final(tmp_path / "eager")) < 1e-3


def test_a_lost_captured_run_resumes(few: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A teacher's labels are those of the first start."""
    session.train(few, tmp_path / "whole", device="cuda", show=False)
    with monkeypatch.context() as patch:
        lose_at(13, patch, CapturedStepper)
        with pytest.raises(KeyboardInterrupt):
            session.train(few, tmp_path / "lost", device="cuda", show=False)
    labels = tmp_path / "lost" / FILE
    before = labels.read_bytes() if few.objective.name == "noisy-student" else b""
    session.resume(tmp_path / "lost", device="cuda", show=False)
    assert not before or labels.read_bytes() == before
    assert close(final(tmp_path / "lost"), final(tmp_path / "whole")) < 1e-4


@pytest.mark.compiled
def test_it_trains_compiled_in_bf16(few: Recipe, tmp_path: Path) -> None:
    ended = session.train(changed(few, precision="auto", compile=True), tmp_path / "run", device="cuda", show=False)
    assert ended.step == 24
    assert final(tmp_path / "run").isfinite().all()

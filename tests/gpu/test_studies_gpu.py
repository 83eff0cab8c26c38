"""Every study at the scale of CIFAR-10 on a GPU, eight steps per run: all runs in this process, all steps captured."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import vitlab
from vitlab.recipes import scales
from vitlab.studies import STUDIES, noisy_student
from vitlab.training.captured import CapturedStepper
from vitlab.training.step import Stepper

pytestmark = pytest.mark.gpu
STEPS = 8  # three before the capture, then replays
NAMES = [name for name in STUDIES.names() if "cifar" in STUDIES.find(name).scales]
OPTIONS = {"noisy-student": {"rounds": 1, "labelled": 0.2, "threshold": 0.0, "quota": 60}}


@pytest.fixture
def small_cifar(tmp_path: Path) -> Path:
    """640 pictures of ten colours, and 64 to test."""
    rng, arrays = np.random.default_rng(0), dict[str, Any]()
    colors = rng.integers(0, 200, (10, 1, 1, 3))
    for part, num in (("train", 640), ("test", 64)):
        labels = np.arange(num) % 10
        images = colors[labels] + rng.integers(0, 56, (num, 32, 32, 3))
        arrays |= {f"x_{part}": images.astype(np.uint8), f"y_{part}": labels}
    np.savez(tmp_path / "small.npz", **arrays)
    return tmp_path / "small.npz"


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_it_runs_captured(name: str, small_cifar: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    short = dataclasses.replace(scales.SMALL["cifar"], total=f"{STEPS} steps", batch_size=32)
    monkeypatch.setitem(scales.SMALL, "cifar", short)
    monkeypatch.setitem(scales.TUNING, "cifar", (STEPS, 0.03))
    monkeypatch.setitem(noisy_student.SHORTER, "cifar", (f"{STEPS} steps", 0.9))
    used, made = list[bool](), Stepper.__init__

    def noted(stepper: Stepper, *args: Any, **named: Any) -> None:
        used.append(isinstance(stepper, CapturedStepper))
        made(stepper, *args, **named)

    monkeypatch.setattr(Stepper, "__init__", noted)
    options = {"scale": "cifar", "data": str(small_cifar), "seeds": 1, "device": "cuda", **OPTIONS.get(name, {})}
    result = vitlab.study(name, out=tmp_path / "study", **options)
    assert not result.failed
    assert used
    assert all(used)
    assert torch.cuda.memory_allocated() < 2**30  # what runs held is let go

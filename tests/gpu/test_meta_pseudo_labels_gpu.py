"""Meta Pseudo Labels on a GPU: two phases captured as one graph; compiled, in bf16, and resumed."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from changing import changed, lose_at
from vitlab.core.config import Choice
from vitlab.objectives.meta_pseudo_labels import MetaPseudoLabels
from vitlab.training import session
from vitlab.training.captured import CapturedStepper
from vitlab.training.recipe import Recipe

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores"),  # float32 here is to be exact
]

OPTIONS: dict[str, Any] = {"labels": "sampled", "sign": "theory", "ratio": 2, "wait": 0.1, "ramp": 0.2}


@pytest.fixture
def recipe(short: Recipe) -> Recipe:
    """24 steps without dropout, whose numbers a GPU draws otherwise, and in float32 throughout."""
    plain = {"augmentation.mixup": 0.0, "augmentation.cutmix": 0.0, "model.dropout": 0.0, "model.drop_path": 0.0}
    exact = {"precision": "float32", "keep": "last", "optimizer.lr": 1e-3, "data.labelled": 0.25}
    return dataclasses.replace(changed(short, **plain, **exact), objective=Choice("meta-pseudo-labels", OPTIONS))


def final(folder: Path) -> torch.Tensor:
    return torch.cat([value.flatten() for value in load_file(folder / "model" / "model.safetensors").values()])


def close(a: torch.Tensor, b: torch.Tensor) -> float:
    return ((a - b).norm() / b.norm()).item()


def test_it_trains_as_on_a_cpu_and_resumes(recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    used, made = list[int](), CapturedStepper.__call__
    monkeypatch.setattr(
        CapturedStepper, "__call__", lambda self, step, factor: (used.append(step), made(self, step, factor))[1]
    )
    session.train(recipe, tmp_path / "whole", device="cuda", show=False)
    assert used == list(range(24))
    session.train(recipe, tmp_path / "cpu", device="cpu", show=False)
    assert close(final(tmp_path / "whole"), final(tmp_path / "cpu")) < 1e-2
    with monkeypatch.context() as patch:
        lose_at(13, patch, CapturedStepper)
        with pytest.raises(KeyboardInterrupt):
            session.train(recipe, tmp_path / "lost", device="cuda", show=False)
    session.resume(tmp_path / "lost", device="cuda", show=False)
    assert close(final(tmp_path / "lost"), final(tmp_path / "whole")) < 1e-4


def test_it_trains_captured(recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same as turn by turn, with the draws of dropout, which each turn has for itself."""
    recipe = changed(recipe, **{"model.dropout": 0.1})
    session.train(recipe, tmp_path / "captured", device="cuda", show=False)
    monkeypatch.setattr(MetaPseudoLabels, "capturable", False)
    session.train(recipe, tmp_path / "eager", device="cuda", show=False)
    assert close(final(tmp_path / "captured"), final(tmp_path / "eager")) < 1e-3


@pytest.mark.compiled
def test_it_trains_compiled_in_bf16(recipe: Recipe, tmp_path: Path) -> None:
    """The student's loss is measured in full precision all the same: a step's change is below bf16's."""
    dropping = {"model.dropout": 0.1, "model.drop_path": 0.1}
    ended = session.train(
        changed(recipe, precision="auto", compile=True, **dropping), tmp_path / "run", device="cuda", show=False
    )
    assert ended.step == 24
    assert final(tmp_path / "run").isfinite().all()

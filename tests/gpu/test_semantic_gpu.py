"""The semantic softmax on a GPU: captured and compiled as step by step, and as on a CPU."""

import dataclasses
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from changing import changed
from vitlab.core.config import Choice
from vitlab.objectives.semantic_softmax import SemanticSoftmax
from vitlab.training import session
from vitlab.training.captured import CapturedStepper
from vitlab.training.recipe import Recipe

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores"),  # float32 here is to be exact
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),  # torch's, hidden by it
]


def final(folder: Path) -> torch.Tensor:
    return torch.cat([value.flatten() for value in load_file(folder / "model" / "model.safetensors").values()])


def apart(a: torch.Tensor, b: torch.Tensor) -> float:
    return ((a - b).norm() / b.norm()).item()


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.compiled)])
def test_it_trains_captured(compiled: bool, short: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With mixed targets, and a class that is on the first level only."""
    (tmp_path / "tree.csv").write_text("0,dark\n1,dark\n2\n")
    exact = {"precision": "float32", "keep": "last", "model.dropout": 0.0, "model.drop_path": 0.0}
    sgd = {"optimizer.name": "sgd", "optimizer.weight_decay": 0.0, "optimizer.lr": 0.05}
    objective = Choice("semantic-softmax", {"hierarchy": str(tmp_path / "tree.csv")})
    recipe = dataclasses.replace(changed(short, **exact, **sgd), objective=objective)
    used, made = list[int](), CapturedStepper.__call__
    monkeypatch.setattr(
        CapturedStepper, "__call__", lambda self, step, factor: (used.append(step), made(self, step, factor))[1]
    )
    session.train(changed(recipe, compile=compiled), tmp_path / "captured", device="cuda", show=False)
    assert used == list(range(24))
    monkeypatch.setattr(SemanticSoftmax, "capturable", False)
    session.train(recipe, tmp_path / "eager", device="cuda", show=False)
    session.train(recipe, tmp_path / "cpu", device="cpu", show=False)
    assert len(used) == 24
    assert apart(final(tmp_path / "captured"), final(tmp_path / "eager")) < 1e-3
    assert apart(final(tmp_path / "eager"), final(tmp_path / "cpu")) < 1e-3

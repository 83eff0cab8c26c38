"""Masked patches and masked autoencoders on a GPU: captured, compiled and captured, in bf16, and resumed."""

import dataclasses
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from changing import changed, lose_at
from vitlab.core.config import Choice
from vitlab.objectives import OBJECTIVES
from vitlab.training import session
from vitlab.training.captured import CapturedStepper
from vitlab.training.recipe import Recipe

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores"),  # float32 here is to be exact
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),  # torch's, hidden by it
]
DECODER = {"decoder_width": 32, "decoder_depth": 1, "decoder_heads": 2}
TARGETS = ["color", "thumbnail", "pixels"]
CHOICES = [Choice("mae", DECODER), *(Choice("masked-patches", {"target": target}) for target in TARGETS)]
every = pytest.mark.parametrize("choice", CHOICES, ids=["mae", *TARGETS])


def masked(short: Recipe, choice: Choice) -> Recipe:
    """24 steps without dropout, whose numbers a GPU draws otherwise, and in float32 throughout."""
    plain = {"augmentation.mixup": 0.0, "augmentation.cutmix": 0.0, "model.dropout": 0.0, "model.drop_path": 0.0}
    exact = {"precision": "float32", "keep": "last", "optimizer.lr": 1e-3}
    if choice.options.get("target") == "thumbnail":
        exact |= {"model.set": ("depth=1", "patch_size=4")}  # a thumbnail has 4 x 4 colours
    return dataclasses.replace(changed(short, **plain, **exact), objective=choice)


def final(folder: Path) -> torch.Tensor:
    return torch.cat([value.flatten() for value in load_file(folder / "model" / "model.safetensors").values()])


def close(a: torch.Tensor, b: torch.Tensor) -> float:
    return ((a - b).norm() / b.norm()).item()


@every
@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.compiled)])
def test_it_trains_captured(
    choice: Choice, short: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiled: bool
) -> None:
    """The same as step by step, and as on a CPU: what is hidden is counted from places, wherever it is computed."""
    recipe, used = masked(short, choice), list[int]()
    made = CapturedStepper.__call__
    monkeypatch.setattr(
        CapturedStepper, "__call__", lambda self, step, lr: (used.append(step), made(self, step, lr))[1]
    )
    session.train(changed(recipe, compile=compiled), tmp_path / "captured", device="cuda", show=False)
    assert used == list(range(24))
    monkeypatch.setattr(OBJECTIVES.find(choice.name).objective, "capturable", False)
    session.train(recipe, tmp_path / "eager", device="cuda", show=False)
    assert len(used) == 24
    session.train(recipe, tmp_path / "cpu", device="cpu", show=False)
    assert close(final(tmp_path / "captured"), final(tmp_path / "eager")) < 1e-3
    assert close(final(tmp_path / "eager"), final(tmp_path / "cpu")) < 1e-3


@every
def test_a_lost_captured_run_resumes(
    choice: Choice, short: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = masked(short, choice)
    session.train(recipe, tmp_path / "whole", device="cuda", show=False)
    with monkeypatch.context() as patch:
        lose_at(13, patch, CapturedStepper)
        with pytest.raises(KeyboardInterrupt):
            session.train(recipe, tmp_path / "lost", device="cuda", show=False)
    session.resume(tmp_path / "lost", device="cuda", show=False)
    assert close(final(tmp_path / "lost"), final(tmp_path / "whole")) < 1e-5


@every
@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.compiled)])
def test_it_trains_in_bf16(choice: Choice, short: Recipe, tmp_path: Path, compiled: bool) -> None:
    recipe = changed(masked(short, choice), precision="auto", compile=compiled)
    ended = session.train(recipe, tmp_path / "run", device="cuda", show=False)
    worst = 6.3 if choice.options.get("target") in ("color", "thumbnail") else 1.6
    assert 0 < -ended.scores["val score"] < worst  # ln 512, or about the variance of normalised pixels

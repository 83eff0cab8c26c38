"""Two players on a GPU: in float32 as on a CPU, in bf16, compiled, and resumed; and the same pictures from a seed."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import vitlab
from changing import changed, lose_at
from vitlab.core.config import Choice
from vitlab.objectives.transgan import TransGAN
from vitlab.recipes import find_recipe
from vitlab.training import session
from vitlab.training.captured import CapturedStepper
from vitlab.training.recipe import Recipe

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores"),  # float32 here is to be exact
]


@pytest.fixture
def short() -> Recipe:
    """Twelve steps on digits with all options at work."""
    steps = {"schedule.total": "12 steps", "evaluate_every": "6 steps", "checkpoint_every": "5 steps", "keep": "last"}
    recipe = changed(find_recipe("transgan-digits"), **steps, **{"precision": "float32", "optimizer.lr": 1e-4})
    options = {**recipe.objective.options, "augment": ["color", "translation", "cutout"], "n_critic": 2}
    return dataclasses.replace(recipe, objective=Choice("transgan", options))


def final(folder: Path) -> torch.Tensor:
    return torch.cat([value.flatten() for value in load_file(folder / "model" / "model.safetensors").values()])


def close(a: torch.Tensor, b: torch.Tensor) -> float:
    return ((a - b).norm() / b.norm()).item()


def test_it_trains_as_on_a_cpu(short: Recipe, tmp_path: Path) -> None:
    """Noise, changes and places between images are counted: the same on both."""
    session.train(short, tmp_path / "gpu", device="cuda", show=False)
    session.train(short, tmp_path / "cpu", device="cpu", show=False)
    assert close(final(tmp_path / "gpu"), final(tmp_path / "cpu")) < 0.01


def test_its_turns_are_captured(short: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The critic's several and the generator's one: as turn by turn."""
    used, made = list[int](), CapturedStepper.__call__
    monkeypatch.setattr(
        CapturedStepper, "__call__", lambda self, step, factor: (used.append(step), made(self, step, factor))[1]
    )
    session.train(short, tmp_path / "captured", device="cuda", show=False)
    assert used == list(range(12))
    monkeypatch.setattr(TransGAN, "capturable", False)
    session.train(short, tmp_path / "eager", device="cuda", show=False)
    assert len(used) == 12
    assert close(final(tmp_path / "captured"), final(tmp_path / "eager")) < 1e-3


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.compiled)])
def test_it_trains_in_bf16(short: Recipe, tmp_path: Path, compiled: bool) -> None:
    """The critic's own attention is by a kernel that cannot be differentiated twice; the penalty's is not."""
    changes = {"precision": "auto", "compile": compiled}
    ended = session.train(changed(short, **changes), tmp_path / "run", device="cuda", show=False)
    assert ended.step == 12
    assert final(tmp_path / "run").isfinite().all()


def test_a_lost_run_resumes(short: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session.train(short, tmp_path / "whole", device="cuda", show=False)
    with monkeypatch.context() as patch:
        lose_at(7, patch, CapturedStepper)
        with pytest.raises(KeyboardInterrupt):
            session.train(short, tmp_path / "lost", device="cuda", show=False)
    session.resume(tmp_path / "lost", device="cuda", show=False)
    assert close(final(tmp_path / "lost"), final(tmp_path / "whole")) < 1e-3


def test_a_seed_gives_the_same_pictures(short: Recipe, tmp_path: Path) -> None:
    session.train(short, tmp_path / "run", device="cuda", show=False)
    first, again = (vitlab.sample(tmp_path / "run", num=5, seed=1, device="cuda") for _ in range(2))
    assert np.array_equal(first, again)
    on_cpu = vitlab.sample(tmp_path / "run", num=5, seed=1, device="cpu")
    assert np.abs(first.astype(int) - on_cpu).max() <= 2

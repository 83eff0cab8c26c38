"""SAM, ASAM and GSAM on a GPU: captured as step by step and as on a CPU, with the same draws in both passes."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from changing import changed, lose_at
from vitlab.training import session
from vitlab.training.captured import CapturedStepper
from vitlab.training.execution import Execution, decide
from vitlab.training.hooks import DivergedError
from vitlab.training.recipe import Recipe

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores"),  # float32 here is to be exact
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),  # torch's, hidden by it
]
KINDS: dict[str, dict[str, object]] = {
    "sam": {"optimizer.sam": 0.1},
    "asam": {"optimizer.sam": 0.5, "optimizer.sam_kind": "asam"},
    "gsam": {"optimizer.sam": 0.2, "optimizer.sam_kind": "gsam", "optimizer.sam_rho_min": 0.05},
}
every = pytest.mark.parametrize("kind", KINDS)


def exact(recipe: Recipe, **fields: object) -> Recipe:
    """Without dropout, whose numbers a GPU draws otherwise, and in float32 throughout."""
    same = {"model.dropout": 0.0, "model.drop_path": 0.0, "precision": "float32", "keep": "last"}
    sgd = {"optimizer.name": "sgd", "optimizer.weight_decay": 0.0, "optimizer.lr": 0.05}
    return changed(recipe, **(same | sgd | fields))


def final(folder: Path) -> torch.Tensor:
    return torch.cat([value.flatten() for value in load_file(folder / "model" / "model.safetensors").values()])


def apart(a: torch.Tensor, b: torch.Tensor) -> float:
    return ((a - b).norm() / b.norm()).item()


def capture_nothing(patch: pytest.MonkeyPatch) -> None:
    """Every step from here on is launched kernel by kernel."""

    def launched(*args: Any) -> Execution:
        return dataclasses.replace(decide(*args), capture=False)

    patch.setattr(session, "decide", launched)


@every
@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.compiled)])
def test_it_trains_captured(
    kind: str, compiled: bool, short: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe, used = exact(short, **KINDS[kind]), list[int]()
    made = CapturedStepper.__call__
    monkeypatch.setattr(
        CapturedStepper, "__call__", lambda self, step, factor: (used.append(step), made(self, step, factor))[1]
    )
    session.train(changed(recipe, compile=compiled), tmp_path / "captured", device="cuda", show=False)
    assert used == list(range(24))
    capture_nothing(monkeypatch)
    session.train(recipe, tmp_path / "eager", device="cuda", show=False)
    session.train(recipe, tmp_path / "cpu", device="cpu", show=False)
    session.train(exact(short), tmp_path / "plain", device="cuda", show=False)
    assert len(used) == 24
    assert apart(final(tmp_path / "captured"), final(tmp_path / "eager")) < 1e-3
    assert apart(final(tmp_path / "eager"), final(tmp_path / "cpu")) < 1e-3
    assert apart(final(tmp_path / "plain"), final(tmp_path / "eager")) > 5e-3, "or nothing was perturbed"


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.compiled)])
def test_both_passes_of_a_captured_step_draw_the_same(compiled: bool, short: Recipe, tmp_path: Path) -> None:
    """With no radius worth the name the second gradient is the first, dropout and all; other draws would show."""
    dropping = exact(short, **{"model.dropout": 0.3, "model.drop_path": 0.2}, compile=compiled)
    session.train(dropping, tmp_path / "plain", device="cuda", show=False)
    session.train(changed(dropping, **{"optimizer.sam": 1e-7}), tmp_path / "sam", device="cuda", show=False)
    session.train(changed(dropping, seed=1), tmp_path / "other draws", device="cuda", show=False)
    assert apart(final(tmp_path / "sam"), final(tmp_path / "plain")) < 1e-3
    assert apart(final(tmp_path / "other draws"), final(tmp_path / "plain")) > 1e-2


@every
def test_a_lost_captured_run_resumes(kind: str, short: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = exact(short, **KINDS[kind])
    session.train(recipe, tmp_path / "whole", device="cuda", show=False)
    with monkeypatch.context() as patch:
        lose_at(13, patch, CapturedStepper)
        with pytest.raises(KeyboardInterrupt):
            session.train(recipe, tmp_path / "lost", device="cuda", show=False)
    session.resume(tmp_path / "lost", device="cuda", show=False)
    assert apart(final(tmp_path / "lost"), final(tmp_path / "whole")) < 1e-4


def test_a_step_that_is_not_finite_is_left_out_on_the_device(short: Recipe, tmp_path: Path) -> None:
    fields = {"optimizer.lr": 1e30, "optimizer.clip": None, "max_skipped": 3, "optimizer.sam": 0.05}
    with pytest.raises(DivergedError, match="not finite"):
        session.train(changed(short, **fields), tmp_path / "run", device="cuda", show=False)


def test_batch_norm_counts_a_captured_batch_once(
    short: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = {"model.source": "sasa-digits", "model.set": (), "model.image_size": 32, "optimizer.lr": 1e-3}
    recipe = exact(short, **plain, **{"optimizer.sam": 0.1})
    session.train(recipe, tmp_path / "captured", device="cuda", show=False)
    capture_nothing(monkeypatch)
    session.train(recipe, tmp_path / "eager", device="cuda", show=False)
    captured, eager = (load_file(tmp_path / name / "model" / "model.safetensors") for name in ("captured", "eager"))
    means = [name for name in eager if name.endswith("running_mean")]
    assert means
    for name in means:
        assert apart(captured[name].double(), eager[name].double()) < 5e-3 or eager[name].norm() == 0, name

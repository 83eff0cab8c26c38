"""DINO with masked patches and KoLeo, SimCLR and LeJEPA on a GPU: captured, compiled and captured, and resumed."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from changing import changed, lose_at
from vitlab.core.compiling import compile_options
from vitlab.core.config import Choice
from vitlab.objectives import OBJECTIVES
from vitlab.objectives.lejepa import directions, sigreg
from vitlab.objectives.whole_batch import Projector
from vitlab.training import session
from vitlab.training.captured import CapturedStepper
from vitlab.training.recipe import Recipe

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores"),  # float32 here is to be exact
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),  # torch's, hidden by it
]

HEAD: dict[str, Any] = {"hidden": 32, "out_dim": 16}
SMALL: dict[str, Any] = {"num_small": 2, "small_side": 0.5, "small_area": [0.3, 0.6]}
OPTIONS: dict[str, dict[str, Any]] = {
    "dino": {**HEAD, **SMALL, "bottleneck": 8, "momentum": 0.9, "freeze_last": 0.2, "patch_weight": 1.0, "koleo": 0.1},
    "simclr": HEAD,
    "lejepa": {**HEAD, **SMALL, "slices": 32},
}


@pytest.fixture(params=list(OPTIONS))
def views(request: pytest.FixtureRequest, short: Recipe) -> Recipe:
    """24 steps without dropout, whose numbers a GPU draws otherwise, and in float32 throughout."""
    plain = {"augmentation.mixup": 0.0, "augmentation.cutmix": 0.0, "model.dropout": 0.0, "model.drop_path": 0.0}
    colors = {"augmentation.hue": 0.1, "augmentation.gray": 0.2, "augmentation.jitter": 0.3}
    exact = {"precision": "float32", "keep": "last", "optimizer.lr": 1e-3, "optimizer.ema": None}
    recipe = changed(short, **plain, **colors, **exact)
    return dataclasses.replace(recipe, objective=Choice(request.param, OPTIONS[request.param]))


def final(folder: Path) -> torch.Tensor:
    return torch.cat([value.flatten() for value in load_file(folder / "model" / "model.safetensors").values()])


def close(a: torch.Tensor, b: torch.Tensor) -> float:
    return ((a - b).norm() / b.norm()).item()


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.compiled)])
def test_it_trains_captured(views: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiled: bool) -> None:
    """The same as step by step: schedules follow the run and masks the places, in a graph too."""
    used: list[int] = []
    made = CapturedStepper.__call__
    monkeypatch.setattr(
        CapturedStepper, "__call__", lambda self, step, lr: (used.append(step), made(self, step, lr))[1]
    )
    session.train(changed(views, compile=compiled), tmp_path / "captured", device="cuda", show=False)
    assert used == list(range(24))
    monkeypatch.setattr(OBJECTIVES.find(views.objective.name).objective, "capturable", False)
    session.train(views, tmp_path / "eager", device="cuda", show=False)
    assert len(used) == 24
    assert close(final(tmp_path / "captured"), final(tmp_path / "eager")) < 1e-3


def test_a_lost_captured_run_resumes(views: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session.train(views, tmp_path / "whole", device="cuda", show=False)
    with monkeypatch.context() as patch:
        lose_at(13, patch, CapturedStepper)
        with pytest.raises(KeyboardInterrupt):
            session.train(views, tmp_path / "lost", device="cuda", show=False)
    session.resume(tmp_path / "lost", device="cuda", show=False)
    assert close(final(tmp_path / "lost"), final(tmp_path / "whole")) < 1e-4


@pytest.mark.compiled
def test_it_trains_compiled_in_bf16(views: Recipe, tmp_path: Path) -> None:
    ended = session.train(changed(views, precision="auto", compile=True), tmp_path / "run", device="cuda", show=False)
    assert ended.step == 24
    assert final(tmp_path / "run").isfinite().all()


def drawn(progress: torch.Tensor) -> torch.Tensor:
    return directions(7, progress, 16, 256)


def spread(z: torch.Tensor) -> torch.Tensor:
    return sigreg(z, directions(7, torch.ones_like(z[0, 0, 0]) / 4, 16, 256))


@pytest.mark.compiled
@pytest.mark.parametrize("part", ["directions", "sigreg", "projector"])
def test_parts_of_lejepa_compile_at_the_recipes_sizes(part: str) -> None:
    """One by one: of a whole step that does not compile, this tells which part it is."""
    device = torch.device("cuda")
    torch.manual_seed(0)
    inputs = {"directions": (), "sigreg": (4, 512, 16), "projector": (2048, 384)}[part]
    called: Any = {"directions": drawn, "sigreg": spread, "projector": Projector(384, 2048, 16, num_layers=3)}[part]
    called = called.to(device) if isinstance(called, torch.nn.Module) else called
    given = torch.full((), 0.25, device=device) if part == "directions" else torch.randn(*inputs, device=device)
    given.requires_grad_(part != "directions")
    compiled = torch.compile(called, fullgraph=True, options=compile_options(device))
    for make in (lambda: called(given), lambda: compiled(given)):
        found = make()
        if given.requires_grad:
            [gradient] = torch.autograd.grad(found.square().mean(), given)
            assert gradient.isfinite().all()
    torch.testing.assert_close(compiled(given), called(given), rtol=1e-3, atol=1e-4)

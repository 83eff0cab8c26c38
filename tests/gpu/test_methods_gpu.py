"""The recipes of benchmarks/methods.py on a GPU as they run there: compiled, in bf16, and captured where one can."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import vitlab
from changing import changed
from vitlab.recipes import find_recipe
from vitlab.training import session
from vitlab.training.captured import CapturedStepper
from vitlab.training.recipe import Recipe

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),  # torch's, hidden by it
]
STEPS = 8  # three before the capture, then replays
CAPTURED: dict[str, dict[str, Any]] = {
    "cifar10": {},
    "masked-patches-cifar10": {},
    "mae-cifar10": {},
    "dino-cifar10": {},
    "dino-cifar10+ibot": {"patch_weight": 1.0, "koleo": 0.1},
    "simclr-cifar10": {},
    "lejepa-cifar10": {},
    "few-labels-cifar10": {},
    "fixmatch-cifar10": {"threshold": 0.2},
    "noisy-student-cifar10": {"threshold": 0.0, "quota": 60},
    "meta-pseudo-labels-cifar10": {},
}


@pytest.fixture
def small_cifar(tmp_path: Path) -> Path:
    """640 pictures of ten colours."""
    rng, labels = np.random.default_rng(0), np.arange(640) % 10
    colors = rng.integers(0, 200, (10, 1, 1, 3))
    images = colors[labels] + rng.integers(0, 56, (640, 32, 32, 3))
    np.savez(tmp_path / "small.npz", images=images.astype(np.uint8), labels=labels)
    return tmp_path / "small.npz"


def cut_short(name: str, source: Path, options: dict[str, Any]) -> Recipe:
    """Two layers of the recipe's model, small batches and few steps."""
    recipe = find_recipe(name.split("+")[0])
    steps = {"schedule.total": f"{STEPS} steps", "evaluate_every": "100%", "checkpoint_every": "100%"}
    small = {"data.source": str(source), "data.val_fraction": 0.1, "batch_size": 32}
    few = {"data.labelled": 0.2} if recipe.data.labelled < 1 else {}
    shallow = {"model.set": (*recipe.model.set, "depth=2")}
    objective = dataclasses.replace(recipe.objective, options={**recipe.objective.options, **options})
    return dataclasses.replace(changed(recipe, **steps, **small, **few, **shallow), objective=objective)


@pytest.mark.compiled
@pytest.mark.parametrize("name", CAPTURED)
def test_it_is_captured(name: str, small_cifar: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    used, made, options = list[int](), CapturedStepper.__call__, dict(CAPTURED[name])
    monkeypatch.setattr(
        CapturedStepper, "__call__", lambda self, step, factor: (used.append(step), made(self, step, factor))[1]
    )
    if name.startswith("noisy-student"):
        vitlab.save(vitlab.create("vit-s4-32", depth=1, num_classes=10), tmp_path / "teacher")
        options["teacher"] = str(tmp_path / "teacher")
    check(session.train(cut_short(name, small_cifar, options), tmp_path / "run", device="cuda", show=False))
    assert used == list(range(STEPS))


@pytest.mark.compiled
def test_patch_dropout_is_captured(small_cifar: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sorting draws is no operation of the compiler's own."""
    used, made = list[int](), CapturedStepper.__call__
    monkeypatch.setattr(
        CapturedStepper, "__call__", lambda self, step, factor: (used.append(step), made(self, step, factor))[1]
    )
    recipe = changed(cut_short("cifar10", small_cifar, {}), **{"model.patch_dropout": 0.75})
    recipe = changed(recipe, **{"model.set": (*recipe.model.set, "patch_size=2")})
    check(session.train(recipe, tmp_path / "run", device="cuda", show=False))
    assert used == list(range(STEPS))


@pytest.mark.compiled
def test_a_convolutional_stem_is_captured(small_cifar: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its batch norms count inside the graph."""
    used, made = list[int](), CapturedStepper.__call__
    monkeypatch.setattr(
        CapturedStepper, "__call__", lambda self, step, factor: (used.append(step), made(self, step, factor))[1]
    )
    recipe = changed(cut_short("cifar10", small_cifar, {}), **{"model.source": "vitc-s4-32"})
    ended = session.train(recipe, tmp_path / "run", device="cuda", show=False)
    check(ended)
    assert used == list(range(STEPS))
    weights = load_file(ended.folder / "model" / "model.safetensors")
    assert weights["convolutions.0.norm.running_mean"].any()


def check(ended: Any) -> None:
    """It ended, no step was skipped, and it was compiled to the end."""
    assert (ended.reason, ended.step) == ("done", STEPS)
    weights = load_file(ended.folder / "model" / "model.safetensors")
    assert all(value.isfinite().all() for value in weights.values() if torch.is_floating_point(value))
    said = ended.folder / "compile.log"
    assert not said.exists(), said.read_text()[-4000:]

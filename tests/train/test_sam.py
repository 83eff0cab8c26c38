"""SAM, ASAM and GSAM find flatter places than broken ones do; two processes perturb as one."""

import functools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import processes
from batches import labelled, stepping
from changing import changed
from digit_pictures import CLASSES, digits, small_vit
from short_runs import short_recipe, write_small_set
from vitlab.core.config import to_dict
from vitlab.data.batch import Batch
from vitlab.objectives.cross_entropy import CrossEntropy
from vitlab.objectives.supervised import Supervised
from vitlab.training import session
from vitlab.training.optimizers import Optimizer
from vitlab.training.recipe import Recipe

SCRIPT = """
import json, sys
from pathlib import Path
from vitlab.training import session
from vitlab.training.recipe import read_recipe

for path in sorted(Path(sys.argv[1]).glob("*.json")):
    recipe = read_recipe(json.loads(path.read_text()), where="test")
    session.train(recipe, path.with_suffix(""), device="cpu", show=False)
"""
SAM: dict[str, object] = {"optimizer.sam": 0.5}
ASAM: dict[str, object] = {"optimizer.sam": 2.0, "optimizer.sam_kind": "asam"}
GSAM: dict[str, object] = {"optimizer.sam": 0.5, "optimizer.sam_kind": "gsam", "optimizer.sam_rho_min": 0.1}
# as in test_spread_experts.py: groups of images that are the same on one process and on two
EXPERTS = {
    "model.source": "vmoe-digits",
    "model.set": ("depth=2", "router_noise=0.0", "group=4", "capacity=0.8", "eval_capacity=4.0"),
}
RUNS: dict[str, dict[str, object]] = {
    "copies gsam in parts": {**GSAM, "accumulate": 2},
    "shards gsam": {**GSAM, "strategy": "shard"},
    "experts gsam": {**GSAM, **EXPERTS, "strategy": "experts"},
}
MORE: dict[str, dict[str, object]] = {
    "copies sam": SAM,
    "shards asam": {**ASAM, "strategy": "shard"},
    "experts asam in parts": {**ASAM, **EXPERTS, "strategy": "experts", "accumulate": 2},
}


def recipe_for(source: Path, **fields: object) -> Recipe:
    plain = {"model.dropout": 0.0, "model.drop_path": 0.0, "keep": "last", "evaluate_every": "4 steps"}
    sgd = {"optimizer.name": "sgd", "optimizer.weight_decay": 0.0, "optimizer.lr": 0.05}
    steps = {"schedule.total": "4 steps", "schedule.warmup": "1 step", "checkpoint_every": "4 steps"}
    return changed(short_recipe(source), **{**plain, **sgd, **steps, **fields})


def weights(run: Path) -> torch.Tensor:
    found = load_file(run / "model" / "model.safetensors")
    return torch.cat([found[name].flatten() for name in sorted(found)])


@pytest.mark.parametrize("runs", [RUNS, pytest.param(MORE, marks=pytest.mark.slow)], ids=["gsam", "others"])
def test_two_processes_are_one(runs: dict[str, dict[str, object]], tmp_path: Path) -> None:
    source = write_small_set(tmp_path / "small.npz")
    for name, fields in runs.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(to_dict(recipe_for(source, **fields))))
    (tmp_path / "launched.py").write_text(processes.LOOK_BEHIND + SCRIPT)
    launched = processes.forked(tmp_path / "launched.py", tmp_path)
    assert launched.returncode == 0, launched.stderr[-3000:]
    for name, fields in runs.items():
        alone = recipe_for(source, **{**fields, "strategy": "auto"})
        session.train(alone, tmp_path / f"{name}, alone", device="cpu", show=False)
        expected = weights(tmp_path / f"{name}, alone")
        torch.testing.assert_close(weights(tmp_path / name), expected, rtol=1e-5, atol=1e-5, msg=name)


KINDS: dict[str, Any] = {
    "sam": {"sam": 0.2},
    "asam": {"sam": 1.0, "sam_kind": "asam"},
    "gsam": {"sam": 0.2, "sam_kind": "gsam", "sam_rho_min": 0.1, "sam_alpha": 0.1},
}
STEPS, FAR = 150, 1.0
BAR = 1.6  # over three seeds sound ones have 0.82 to 1.31, broken ones at least 1.88


class Digits:
    """Batches of 64 digits with their labels."""

    def __init__(self, seed: int) -> None:
        self.seed, self.damaged = seed, dict[int, str]()

    def batch(self, step: int) -> Batch:
        images, labels = digits("train")
        chosen = torch.randint(len(images), (64,), generator=torch.Generator().manual_seed(step + 1000 * self.seed))
        return labelled(images[chosen], torch.eye(CLASSES)[labels[chosen]])

    def close(self) -> None: ...


@functools.cache
def uphill_loss(kind: str, uphill: float = 1.0, seed: int = 0) -> tuple[float, float]:
    """Of test digits: the accuracy, and the loss a step uphill from where training ended, by autograd alone."""
    model, spec = small_vit(CLASSES, seed), Optimizer(name="sgd", lr=0.1, weight_decay=0.0, **KINDS[kind])
    _, stepper = stepping(model, Supervised(CrossEntropy()), spec, Digits(seed), total=STEPS)
    perturbation = stepper.turns[0].perturbation
    assert perturbation is not None
    perturbation.smallest, perturbation.largest = uphill * perturbation.smallest, uphill * perturbation.largest
    for step in range(STEPS):
        assert stepper(step, min((step + 1) / 10, 1 - step / STEPS))
    (images, labels), weights = digits("test"), list(model.eval().parameters())
    answers = model(images)
    gradients = torch.autograd.grad(torch.nn.functional.cross_entropy(answers, labels), weights)
    norm = torch.cat([gradient.flatten() for gradient in gradients]).norm()
    with torch.no_grad():
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.add_(FAR * gradient / norm)
        loss = torch.nn.functional.cross_entropy(model(images), labels).item()
    return (answers.argmax(dim=1) == labels).float().mean().item(), loss


@pytest.mark.parametrize("kind", KINDS)
def test_it_finds_a_flat_place_and_broken_ones_do_not(kind: str) -> None:
    """Not so where nothing is perturbed, or downhill."""
    accuracy, loss = uphill_loss(kind)
    assert accuracy > 0.85
    assert loss < BAR
    assert uphill_loss("sam", 0.0)[1] > BAR
    assert uphill_loss(kind, -1.0)[1] > BAR

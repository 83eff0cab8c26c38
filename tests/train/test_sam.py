"""SAM, ASAM and GSAM over two processes against one: the perturbation is of the whole batch, whoever holds what."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import processes
from changing import changed
from short_runs import short_recipe, write_small_set
from vitlab.core.config import to_dict
from vitlab.training import session
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

"""Whole runs with each process holding its own experts, against the same runs in one process.

How much room an expert has is a matter of a group of images. Here groups of four are routed together, two in each of
two processes or four in one, and there is room for .8 of all choices, so that tokens do lose theirs. With `group=None`
a group is the batch of a process, and two processes are no longer one. Outside training that is always so, hence room
for all there. No router noise, which follows the rank.
"""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from changing import changed, lose_at
from processes import LOOK_BEHIND, torchrun
from short_runs import short_recipe, write_small_set
from vitlab.core.config import to_dict
from vitlab.training import session
from vitlab.training.recipe import Recipe

# Runs one after the other; of the first, what this process has of what is spread, and how much there is of it.
JOBS = """
import json, os, signal, sys
from pathlib import Path
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from vitlab.core.config import from_dict
from vitlab.training import assembly, session
from vitlab.training.recipe import Recipe
from vitlab.training.step import Stepper

built, build, make, lost_at = [], assembly.build, Stepper.__call__, None

def building(*arguments, **named):
    built.append(build(*arguments, **named))
    return built[-1]

def losing(self, step, rate):
    if step == lost_at:
        os.kill(os.getpid(), signal.SIGKILL)
    return make(self, step, rate)

assembly.build, Stepper.__call__ = building, losing
jobs, held = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[1]).parent
for folder, recipe, lost_at in jobs:
    if recipe is None:
        session.resume(Path(folder), device="cpu", show=False)
    else:
        session.train(from_dict(Recipe, recipe, where="test"), Path(folder), device="cpu", show=False)
    if folder == jobs[0][0]:
        parts = [p for optimizer in built[0] for group in optimizer.param_groups for p in group["params"]]
        parts += [v for optimizer in built[0] for kept in optimizer.state.values() for v in kept.values()]
        parts = [(v.to_local().numel(), v.numel()) for v in parts if isinstance(v, DTensor)]
        (held / f"held{dist.get_rank()}.json").write_text(json.dumps(parts))
"""
SGD = {"optimizer.name": "sgd", "optimizer.lr": 0.05, "optimizer.weight_decay": 0.0}
Job = tuple[Path, Recipe | None, int | None]  # a run's folder; None: to go on with; the step at which it is killed


def with_experts(source: Path) -> Recipe:
    fields = {
        "model.source": "vmoe-digits",
        "model.set": ("depth=2", "router_noise=0.0", "group=4", "capacity=0.8", "eval_capacity=4.0"),
        "model.dropout": 0.0,
        "model.drop_path": 0.0,
        "schedule.total": "20 steps",
        "evaluate_every": "10 steps",
        "checkpoint_every": "10 steps",
        "log_every": "1 steps",
    }
    return changed(short_recipe(source), **fields, **SGD)


def on_two(folder: Path, *jobs: Job) -> str:
    """What the processes said in the end; they may be killed by the last job only."""
    script, file = folder / "jobs.py", folder / "jobs.json"
    script.write_text(LOOK_BEHIND + JOBS)
    given = [(str(run), None if recipe is None else to_dict(recipe), lost) for run, recipe, lost in jobs]
    file.write_text(json.dumps(given))
    ended = torchrun(script, file)
    assert (ended.returncode != 0) == (jobs[-1][-1] is not None), ended.stderr[-3000:]
    return ended.stderr


def checkpoint(run: Path, step: int) -> dict[str, Tensor]:
    """All tensors of a checkpoint by name, each whole."""
    whole = run.with_name(f"{run.name}.pt")
    dcp_to_torch_save(run / "checkpoints" / f"step-{step:09d}", whole)
    return dict(tensors(torch.load(whole), ""))


def tensors(tree: Any, name: str) -> Iterator[tuple[str, Tensor]]:
    if isinstance(tree, Tensor):
        yield name, tree
    elif isinstance(tree, dict):
        for part, value in tree.items():
            yield from tensors(value, f"{name}.{part}")


def exported(run: Path) -> dict[str, Tensor]:
    return load_file(run / "model" / "model.safetensors")


def assert_close(found: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float = 1e-5) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(
            found[name], value, rtol=tolerance, atol=tolerance, msg=lambda text, name=name: f"{name}: {text}"
        )


def logged(run: Path, *names: str) -> dict[str, list[float]]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return {name: [line[name] for line in lines if name in line] for name in names}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """20 steps by one process and by two; begun by one and ended by two; begun by two, which were killed."""
    folder = tmp_path_factory.mktemp("runs")
    recipe = with_experts(write_small_set(folder / "a set.npz"))
    session.train(recipe, folder / "one", device="cpu", show=False)
    with pytest.MonkeyPatch.context() as patch:
        lose_at(12, patch)
        with pytest.raises(KeyboardInterrupt):
            session.train(recipe, folder / "begun by one", device="cpu", show=False)
    on_two(
        folder,
        (folder / "two", recipe, None),
        (folder / "begun by one", None, None),
        (folder / "begun by two", recipe, 12),
    )
    return folder


def test_twenty_steps_leave_the_weights_of_one_process(runs: Path) -> None:
    """Weights, momenta and averages: a checkpoint and the model handed out are whole, whoever wrote them."""
    found, expected = (checkpoint(runs / name, 20) for name in ("two", "one"))
    assert any("experts.up" in name and value.shape[0] == 4 for name, value in found.items())
    assert {name.split(".")[1] for name in found} == {"model", "optimiser", "average"}
    assert_close(found, expected)
    assert_close(exported(runs / "two"), exported(runs / "one"))


def test_every_expert_counts_once_in_what_is_logged(runs: Path) -> None:
    names = ("loss", "gradient norm", "importance loss", "load loss", "val loss", "val accuracy", "val count")
    found, expected = (logged(runs / run, *names) for run in ("two", "one"))
    assert len(expected["gradient norm"]) == 20
    assert max(expected["gradient norm"]) > 1, "or clipping was never seen"
    assert min(expected["importance loss"]) > 0
    for name in names:
        assert found[name] == pytest.approx(expected[name], rel=1e-5), name


def test_a_process_holds_its_own_experts_only(runs: Path) -> None:
    for rank in (0, 1):
        parts = json.loads((runs / f"held{rank}.json").read_text())
        assert len(parts) == 8, "four tensors of the one layer of experts, and a momentum of each"
        assert all(2 * here == all_of_it for here, all_of_it in parts)


def test_two_processes_go_on_where_one_was_lost(runs: Path) -> None:
    assert_close(checkpoint(runs / "begun by one", 20), checkpoint(runs / "one", 20))
    assert_close(exported(runs / "begun by one"), exported(runs / "one"))


def test_one_process_goes_on_where_two_were_killed(runs: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(runs / "begun by two", tmp_path / "begun by two")
    session.resume(folder, device="cpu", show=False)
    assert_close(checkpoint(folder, 20), checkpoint(runs / "one", 20))
    assert_close(exported(folder), exported(runs / "one"))


@pytest.mark.slow
def test_two_processes_that_were_killed_go_on_to_the_same_bits(runs: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(runs / "begun by two", tmp_path / "begun by two")
    on_two(tmp_path, (folder, None, None))
    assert_close(checkpoint(folder, 20), checkpoint(runs / "two", 20), tolerance=0.0)
    assert_close(exported(folder), exported(runs / "two"), tolerance=0.0)


# eps is large where a small one would make steps of what is only rounded off
OPTIONS: dict[str, dict[str, object]] = {
    "adamw": {"optimizer.name": "adamw", "optimizer.lr": 3e-3, "optimizer.eps": 1e-4, "optimizer.weight_decay": 0.1},
    "lamb": {"optimizer.name": "lamb", "optimizer.lr": 1e-3, "optimizer.eps": 1e-4, "optimizer.weight_decay": 0.1},
    "muon": {"optimizer.name": "muon", "optimizer.lr": 1e-3, "optimizer.eps": 1e-4, "optimizer.weight_decay": 0.1},
    "adafactor": {"optimizer.name": "adafactor", "optimizer.lr": 1e-3},
    "lion": {"optimizer.name": "lion", "optimizer.lr": 1e-4},
    "sam": {"optimizer.sam": 0.05},
    "asam": {"optimizer.sam": 0.5, "optimizer.sam_kind": "asam"},
    "in parts": {"accumulate": 2},
    "second pass": {"model.checkpoint_blocks": True},
    "layers apart": {"optimizer.layer_decay": 0.7},
    "head": {"model.train_only": "head"},
    "adapters": {"model.lora": 2},
}


@pytest.mark.slow
def test_every_optimiser_and_option_gives_what_one_process_gives(tmp_path: Path) -> None:
    recipe = with_experts(write_small_set(tmp_path / "a set.npz"))
    jobs: list[Job] = []
    for name, fields in OPTIONS.items():
        run = changed(recipe, **fields)
        session.train(run, tmp_path / f"{name}, one", device="cpu", show=False)
        jobs.append((tmp_path / f"{name}, two", changed(run, strategy="experts"), None))
    on_two(tmp_path, *jobs)
    for name in OPTIONS:
        found, expected = (exported(tmp_path / f"{name}, {number}") for number in ("two", "one"))
        for part in [part for part in expected if part.endswith("qkv.bias")]:
            # The keys' share has no gradient but what is rounded off, and Adafactor and Lion make that a whole step.
            del found[part], expected[part]
        assert_close(found, expected, 1e-4 if name in ("adafactor", "lion") else 1e-5)


@pytest.mark.slow
@pytest.mark.compiled
def test_compiled(runs: Path, tmp_path: Path) -> None:
    recipe = with_experts(runs / "a set.npz")
    on_two(tmp_path, (tmp_path / "two", changed(recipe, compile=True), None))
    assert_close(exported(tmp_path / "two"), exported(runs / "one"))


@pytest.mark.slow
def test_the_command_line(tmp_path: Path) -> None:
    """`train`, and `finetune` of what it made; three processes for four experts are refused, or hold copies."""
    data = write_small_set(tmp_path / "a set.npz")
    train = ("-m", "vitlab", "train", "vmoe-digits", "--data.source", data)
    train = (*train, "--schedule.total", "4 steps", "--batch-size", "48", "--device", "cpu")
    made = torchrun(*train, "--out", tmp_path / "run")
    assert made.returncode == 0, made.stderr[-3000:]
    assert made.stderr.count("Each of 2 processes holds 2 of the 4 experts of a layer.") == 1
    tune = ("-m", "vitlab", "finetune", "--data", data, "--model", tmp_path / "run", "--device", "cpu")
    tuned = torchrun(*tune, "--steps", "4", "--batch-size", "48", "--out", tmp_path / "tuned")
    assert tuned.returncode == 0, tuned.stderr[-3000:]
    assert "Each of 2 processes holds 2 of the 4 experts" in tuned.stderr
    assert exported(tmp_path / "tuned")["blocks.1.mlp.experts.up.weight"].shape[0] == 4
    refused = torchrun(*train, "--out", tmp_path / "refused", "--strategy", "experts", processes=3)
    assert refused.returncode != 0
    assert "cannot be spread evenly over 3 processes: start a number of processes that divides 4" in refused.stderr
    assert "Traceback" not in refused.stderr.split("torch/distributed", maxsplit=1)[0]
    copies = torchrun(*train, "--out", tmp_path / "copies", processes=3)
    assert copies.returncode == 0, copies.stderr[-3000:]
    assert "cannot be spread evenly over 3 processes: each process holds all of them." in copies.stderr

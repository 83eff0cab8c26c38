"""Two gloo processes against one: the same run, however it is divided."""

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from subprocess import CompletedProcess

import pytest
import torch
from safetensors.torch import load_file

import processes
from changing import changed, lose_at
from short_runs import write_damaged_folder
from vitlab.core.config import to_dict
from vitlab.training import session
from vitlab.training.recipe import Recipe
from vitlab.training.run import locked

SCRIPT = """
import json, sys
from pathlib import Path
from vitlab.core.config import from_dict
from vitlab.training import session
from vitlab.training.recipe import Recipe

folder, recipe = Path(sys.argv[1]), Path(sys.argv[2])
if recipe.name == "resume":
    ended = session.resume(folder, device="cpu", show=False)
else:
    given = from_dict(Recipe, json.loads(recipe.read_text()), where="test")
    ended = session.train(given, folder, device="cpu", show=False)
"""
# A collective of the first process ends while its interpreter does, since the other one comes a second late: gloo's
# thread asks for the interpreter in its last two seconds, to let go of a tensor, and would get it when it is no more.
LATE = """
import atexit, os, sys, time
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from vitlab.training.distribution import join

def busy():
    end = time.monotonic() + 2
    while time.monotonic() < end:
        pass

sys.setswitchinterval(100)
atexit.register(busy)
os.environ["RANK"] = "0" if os.fork() else "1"
with join("cpu") as world:
    layer = fully_shard(torch.nn.Linear(8, 8))
    layer(torch.ones(4, 8)).sum().backward()
    for parameter in layer.parameters():
        parameter.grad.mul_(2)
del layer, parameter
values = torch.ones(8)
time.sleep(world.rank)
dist.all_reduce(values, async_op=world.first)
if not world.first:
    os._exit(0)
"""
AT_A_STEP = """
import os, signal, sys
from vitlab.training.step import Stepper

make = Stepper.__call__

def changed(self, step, factor):
    if {when}: {does}
    return make(self, step, factor)

Stepper.__call__ = changed
"""


def launch(
    folder: Path, recipe: Recipe | None, *, before: str = "", after: str = "", launcher: bool = False
) -> CompletedProcess[str]:
    """A run by two processes, or one gone on with, and code around it."""
    script, file = folder.parent / "launched.py", folder.parent / ("resume" if recipe is None else "given.json")
    script.write_text(processes.LOOK_BEHIND + before + SCRIPT + after)
    if recipe is not None:
        file.write_text(json.dumps(to_dict(recipe)))
    run = processes.torchrun if launcher else processes.forked
    return run(script, folder, file)


def on_two(folder: Path, recipe: Recipe | None) -> None:
    run = launch(folder, recipe)
    assert run.returncode == 0, run.stderr[-3000:]


def weights(folder: Path, *, keys: bool = True) -> torch.Tensor:
    """A run's weights, or those but for the keys' biases."""
    found = load_file(folder / "model" / "model.safetensors")
    for name in () if keys else [name for name in found if name.endswith("qkv.bias")]:
        queries, _, values = found[name].chunk(3)
        found[name] = torch.cat([queries, values])
    return torch.cat([value.flatten() for value in found.values()])


def logged(folder: Path, name: str) -> list[float]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line[name] for line in lines if name in line]


@pytest.fixture
def exact(short: Recipe) -> Recipe:
    """20 steps without dropout, whose numbers follow the rank."""
    fields = {"model.dropout": 0.0, "model.drop_path": 0.0, "schedule.total": "20 steps", "keep": "last"}
    return changed(short, **fields, **{"optimizer.name": "sgd", "optimizer.weight_decay": 0.0, "optimizer.lr": 0.05})


@pytest.mark.parametrize(("optimizer", "lr"), [("sgd", 0.05), ("adamw", 1e-3)])
def test_two_processes_are_one(exact: Recipe, tmp_path: Path, optimizer: str, lr: float) -> None:
    """AdamW magnifies the rounding that is all of the gradients by the keys' biases, which change no answer."""
    exact = changed(exact, **{"optimizer.name": optimizer, "optimizer.lr": lr})
    session.train(exact, tmp_path / "one", device="cpu", show=False)
    on_two(tmp_path / "two", exact)
    keys = optimizer == "sgd"
    found, expected = (weights(tmp_path / name, keys=keys) for name in ("two", "one"))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    assert logged(tmp_path / "two", "loss") == pytest.approx(logged(tmp_path / "one", "loss"), rel=1e-4)
    assert logged(tmp_path / "two", "val count") == logged(tmp_path / "one", "val count")


@pytest.mark.parametrize(
    ("strategy", "optimizer"),
    [("replicate", "sgd"), pytest.param("shard", "sgd", marks=pytest.mark.slow), ("shard", "muon")],
)
def test_a_run_moves_between_one_process_and_two(
    exact: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strategy: str, optimizer: str
) -> None:
    """Begun by one process, gone on with by two, copies or shards of the model in each."""
    exact = changed(exact, **{"optimizer.name": optimizer, "optimizer.lr": 0.05 if optimizer == "sgd" else 1e-3})
    session.train(exact, tmp_path / "whole", device="cpu", show=False)
    recipe = changed(exact, strategy=strategy)
    with monkeypatch.context() as patch:
        lose_at(10, patch)
        with pytest.raises(KeyboardInterrupt):
            session.train(exact, tmp_path / "begun by one", device="cpu", show=False)
    folder = tmp_path / "begun by one"
    (folder / "recipe.json").write_text(json.dumps(to_dict(recipe)))
    on_two(folder, None)
    torch.testing.assert_close(weights(folder), weights(tmp_path / "whole"), rtol=1e-4, atol=1e-5)


def test_what_two_processes_cannot_read_is_counted_together(exact: Recipe, tmp_path: Path) -> None:
    write_damaged_folder(tmp_path / "data", {"train": list(range(0, 60, 5))})
    fields = {"data.source": str(tmp_path / "data"), "data.resident": False, "data.workers": 0, "log_every": "1 step"}
    recipe = changed(exact, **fields, **{"schedule.total": "3 steps", "schedule.warmup": "0 steps", "batch_size": 20})
    ended = launch(tmp_path / "run", recipe)  # one epoch, of which each process reads a half
    assert ended.returncode != 0
    assert re.search(r"1[12] of 60 images cannot be read, and 10 are allowed", ended.stderr)


def test_saved_by_two_resumed_on_one(exact: Recipe, tmp_path: Path) -> None:
    session.train(exact, tmp_path / "whole", device="cpu", show=False)
    half = changed(exact, **{"schedule.total": "20 steps", "max_skipped": 10})
    lost = AT_A_STEP.format(when="step == 10", does="raise SystemExit(7)")
    assert launch(tmp_path / "two", half, before=lost).returncode != 0
    session.resume(tmp_path / "two", device="cpu", show=False)
    torch.testing.assert_close(weights(tmp_path / "two"), weights(tmp_path / "whole"), rtol=1e-4, atol=1e-5)
    # the loss logged at step 9 is of two steps before the checkpoint and one after it, of both processes' images
    assert logged(tmp_path / "two", "loss") == pytest.approx(logged(tmp_path / "whole", "loss"), rel=1e-4)


def test_a_process_that_dies_ends_the_run_with_a_clear_message(exact: Recipe, tmp_path: Path) -> None:
    """Also where the launcher, which ends the others, is quicker than the message."""
    dying = AT_A_STEP.format(when="step == 10 and self.world.rank == 1", does="os._exit(9)") + (
        "say = sys.excepthook\n"
        "def ended_first(*error):\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    say(*error)\n"
        "sys.excepthook = ended_first\n"
    )
    died = launch(tmp_path / "run", exact, before=dying, launcher=True)
    assert died.returncode != 0
    assert "This run lost one of its processes, whose own message says why" in died.stderr
    session.resume(tmp_path / "run", device="cpu", show=False)
    session.train(exact, tmp_path / "whole", device="cpu", show=False)
    torch.testing.assert_close(weights(tmp_path / "run"), weights(tmp_path / "whole"), rtol=1e-4, atol=1e-5)


def test_all_processes_are_told_of_a_folder_that_is_taken(exact: Recipe, tmp_path: Path) -> None:
    telling = "import sys\nsys.excepthook = lambda kind, error, _: print(f'{kind.__name__}: {error}', flush=True)\n"
    with locked(tmp_path / "run"):
        refused = launch(tmp_path / "run", exact, before=telling)
    assert refused.returncode != 0
    lines = refused.stdout.splitlines()
    assert any(line.startswith("RunError: A run is under way in") for line in lines)
    assert all(line.startswith("RunError: ") for line in lines)


def test_an_objectives_own_head_is_the_same_in_all_processes(exact: Recipe, tmp_path: Path) -> None:
    headed = (
        "import os, torch\nfrom vitlab.objectives.contract import Objective\nfrom vitlab.training.plan import Plan\n"
        "class Headed(Objective):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        torch.manual_seed(int(os.environ['RANK']))\n"
        "        self.own = torch.nn.Linear(3, 3)\n"
        "    def loss(self, model, batch, progress):\n"
        "        return (self.own(model(batch.images)) - batch.targets['label']).square().mean(), {}\n"
        "headed = Headed()\n"
        "Plan.objective = lambda *_: headed\n"
    )
    kept = "torch.save(headed.own.weight, folder / f'own{os.environ[\"RANK\"]}.pt')\n"
    recipe = changed(exact, **{"schedule.total": "3 steps", "schedule.warmup": "0 steps"})
    ended = launch(tmp_path / "run", recipe, before=headed, after=kept)
    assert ended.returncode == 0, ended.stderr[-3000:]
    one, other = (torch.load(tmp_path / "run" / f"own{rank}.pt") for rank in (0, 1))
    assert torch.equal(one, other)


def test_a_signal_to_one_process_is_the_status_of_both(exact: Recipe, tmp_path: Path) -> None:
    when = "step == 3 and self.world.rank == 1"
    told = AT_A_STEP.format(when=when, does="os.kill(os.getpid(), signal.SIGTERM)")
    said = "os.write(1, f'status {ended.status}\\n'.encode())\n"  # whole: both write to one pipe
    run = launch(tmp_path / "run", exact, before=told, after=said)
    assert run.returncode == 0, run.stderr[-3000:]
    assert run.stdout.count("status 143") == 2


def test_the_others_wait_for_what_the_first_process_does_alone(tmp_path: Path) -> None:
    """Twice, for its turns are counted; also where what it does fails."""
    waiting = (
        "import os, sys, time\nfrom pathlib import Path\nfrom vitlab.core.processes import first_alone\n"
        "from vitlab.training.distribution import join\n"
        "done = Path(sys.argv[1])\n"
        "with join('cpu'):\n"
        "    for turn in ('1', '2'):\n"
        "        try:\n"
        "            with first_alone() as own:\n"
        "                if own:\n"
        "                    time.sleep(0.5)\n"
        "                    (done / turn).touch()\n"
        "                    raise KeyError\n"
        "        except KeyError:\n"
        "            pass\n"
        "        assert (done / turn).exists()\n"
    )
    (tmp_path / "waiting.py").write_text(processes.LOOK_BEHIND + waiting)
    run = processes.forked(tmp_path / "waiting.py", tmp_path)
    assert run.returncode == 0, run.stderr[-3000:]


LABELLED = """
import sys, time
from datetime import timedelta
from pathlib import Path
import numpy as np
import torch
import torch.distributed as dist
import vitlab
from vitlab.data.contract import DataSet, Split
from vitlab.data.sources.pixels import Pixels
from vitlab.objectives import pseudo_labels

def slowly(*given, computed=pseudo_labels._computed):
    time.sleep(1.5)
    return computed(*given)

pseudo_labels._computed = slowly
dist.init_process_group("gloo", timeout=timedelta(seconds=1))
torch.manual_seed(0)
images = Split(Pixels(np.zeros((4, 8, 8, 3), np.uint8), "them"))
dataset, teacher = DataSet("them", ("a", "b"), {}, ""), vitlab.create("vit-digits", depth=1, num_classes=2)
kept = pseudo_labels.labelled_by(
    teacher, dataset, images, pseudo_labels.Rule(), device=torch.device("cpu"), folder=Path(sys.argv[1])
)
assert kept.images.tolist() == [0, 1, 2, 3]
dist.destroy_process_group()
"""


def test_a_teacher_may_label_for_longer_than_processes_wait_for_each_other(tmp_path: Path) -> None:
    (tmp_path / "labelled.py").write_text(LABELLED)
    run = processes.forked(tmp_path / "labelled.py", tmp_path)
    assert run.returncode == 0, run.stderr[-3000:]


def test_gloos_threads_end_before_the_interpreter_does(tmp_path: Path) -> None:
    """In a process that forks once, not under the server of the other tests, whose end is another one's."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    script = tmp_path / "late.py"
    script.write_text(LATE)
    environment = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    run = subprocess.run(
        [sys.executable, script], env=environment, capture_output=True, text=True, check=False, timeout=120
    )
    assert run.returncode == 0, run.stderr[-3000:]

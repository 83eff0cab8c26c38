"""Experts in two gloo processes against all of them in one."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from batches import labelled
from changing import changed
from processes import torchrun
from vitlab.core.config import to_dict
from vitlab.models.create import create
from vitlab.objectives.cross_entropy import CrossEntropy
from vitlab.objectives.supervised import Supervised
from vitlab.training import session
from vitlab.training.learner import Learner
from vitlab.training.recipe import Recipe

STEP = """
import sys
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from vitlab.models.create import create
from vitlab.data.batch import Batch, Stream
from vitlab.objectives.cross_entropy import CrossEntropy
from vitlab.objectives.supervised import Supervised
from vitlab.training.distribution import World, wrap
from vitlab.training.learner import Learner

dist.init_process_group("gloo")
rank = dist.get_rank()
given = torch.load(sys.argv[1])
model = create("vmoe-digits", router_noise=0.0, group=4, capacity=0.8)
model.load_state_dict(given["weights"])
learner = Learner(model.train(), Supervised(CrossEntropy()))
module = wrap(learner, World(rank, 2, torch.device("cpu")), "experts", torch.float32)["train"]
images, targets = given["images"].chunk(2)[rank], given["targets"].chunk(2)[rank]
batch = Batch({"train": Stream((images,), {"label": targets}, torch.arange(len(images)))})
logits = module(batch.images)
model.auxiliary()
for _ in range(2):  # two parts of an accumulated batch
    (module(batch, torch.zeros(()), "train")[0] * 0.5).backward()
found = {name: parameter.grad for name, parameter in model.named_parameters()}
held = {name: len(value.to_local()) for name, value in found.items() if isinstance(value, DTensor)}
assert len(held) == 8 and set(held.values()) == {2}, held
gradients = {name: value.full_tensor() if name in held else value for name, value in found.items()}
torch.save({"logits": logits.detach(), "gradients": gradients}, f"{sys.argv[2]}/{rank}.pt")
dist.barrier()
del module  # which holds on to the group
dist.destroy_process_group()
"""

SESSION = """
import json, sys
from pathlib import Path
from vitlab.core.config import from_dict
from vitlab.training import session
from vitlab.training.recipe import Recipe

recipe = from_dict(Recipe, json.loads(Path(sys.argv[2]).read_text()), where="test")
session.train(recipe, Path(sys.argv[1]), device="cpu", show=False)
"""


def two_processes(script: str, tmp_path: Path, *arguments: Path) -> None:
    file = tmp_path / "script.py"
    file.write_text(script)
    run = torchrun(file, *arguments)
    assert run.returncode == 0, run.stderr[-3000:]


def test_two_processes_match_one_in_answers_and_gradients(tmp_path: Path) -> None:
    """Groups of four images, with too little room for all: eight images in one process, four in each of two."""
    torch.manual_seed(0)
    model = create("vmoe-digits", router_noise=0.0, group=4, capacity=0.8).train()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    images, targets = torch.randn(8, 3, 8, 8), torch.eye(10)[torch.randint(10, (8,))]
    torch.save({"weights": model.state_dict(), "images": images, "targets": targets}, tmp_path / "given.pt")
    two_processes(STEP, tmp_path, tmp_path / "given.pt", tmp_path)
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1))
    torch.testing.assert_close(torch.cat([first["logits"], second["logits"]]), model(images), rtol=1e-5, atol=1e-5)
    model.auxiliary()
    learner = Learner(model, Supervised(CrossEntropy()))
    learner(labelled(images, targets), torch.zeros(()), "train")[0].backward()
    assert set(first["gradients"]) == {name for name, _ in model.named_parameters()}
    for name, parameter in model.named_parameters():
        for found in (first, second):
            torch.testing.assert_close(
                found["gradients"][name],
                parameter.grad,
                rtol=1e-5,
                atol=1e-5,
                msg=lambda text, name=name: f"{name}: {text}",
            )


@pytest.mark.slow
@pytest.mark.parametrize("spread", ["replicate", "shard"])
def test_a_run_with_copies_or_shards_of_all_experts(short: Recipe, tmp_path: Path, spread: str) -> None:
    """The loop's own ways over processes take a mixture of experts as they take any model."""
    fields = {"model.source": "vmoe-digits", "model.set": ("router_noise=0.0",), "model.dropout": 0.0}
    steps = {
        "model.drop_path": 0.0,
        "schedule.total": "10 steps",
        "evaluate_every": "10 steps",
        "keep": "last",
        "batch_size": 16,
    }
    sgd = {"optimiser.name": "sgd", "optimiser.weight_decay": 0.0, "optimiser.rate": 0.05}
    recipe = changed(short, **fields, **steps, **sgd)
    session.train(recipe, tmp_path / "one", device="cpu", show=False)
    file = tmp_path / "recipe.json"
    file.write_text(json.dumps(to_dict(changed(recipe, spread=spread))))
    two_processes(SESSION, tmp_path, tmp_path / "two", file)
    one, two = (load_file(tmp_path / name / "model" / "model.safetensors") for name in ("one", "two"))
    for name, value in one.items():
        torch.testing.assert_close(
            two[name], value, rtol=1e-4, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}"
        )
    lines = (tmp_path / "two" / "metrics.jsonl").read_text().splitlines()
    assert any("load loss" in json.loads(line) for line in lines)

"""Experts in two gloo processes against all of them in one."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from batches import labelled
from changing import changed, lose_at
from processes import forked
from vitlab.core.config import to_dict
from vitlab.core.errors import ConfigError
from vitlab.models.create import create
from vitlab.objectives.cross_entropy import CrossEntropy
from vitlab.objectives.supervised import Supervised
from vitlab.training import session
from vitlab.training.learner import Learner
from vitlab.training.model import build_model
from vitlab.training.plan import Given, make_plan, open_parts
from vitlab.training.recipe import Recipe
from vitlab.weights.load import load, save

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
    run = forked(file, *arguments)
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


def test_a_dense_checkpoint_is_upcycled_by_a_recipe(short: Recipe, tmp_path: Path) -> None:
    """It starts as the dense model answers, where there is room for every token; resumed, it is what it was."""
    dense = create("vit-digits", num_classes=3, depth=2)
    for parameter in dense.head.parameters():
        torch.nn.init.normal_(parameter)
    save(dense, tmp_path / "dense")
    model = {"model.source": str(tmp_path / "dense"), "model.pretrained": True, "model.keep_head": True}
    experts = {"model.upcycle": ("num_experts=4", "every=2", "capacity=4.0"), "model.set": ()}
    recipe = changed(short, **model, **experts, **{"schedule.total": "3 steps", "schedule.warmup": "1 step"})
    start = build_model(make_plan(recipe, tmp_path / "run", open_parts(recipe), Given())).eval()
    assert (start.config.num_experts, start.config.expert_layers) == (4, (1,))
    images = torch.randn(4, 3, 8, 8)
    torch.testing.assert_close(start(images), dense.eval()(images), rtol=1e-4, atol=1e-5)

    with pytest.MonkeyPatch.context() as patch:
        lose_at(2, patch)
        with pytest.raises(KeyboardInterrupt):
            session.train(changed(recipe, checkpoint_every="1 step"), tmp_path / "run", device="cpu", show=False)
    shutil.rmtree(tmp_path / "dense")  # a run goes on without its source
    session.resume(tmp_path / "run", device="cpu", show=False)
    made = load(tmp_path / "run").state_dict()
    up = made["blocks.1.mlp.experts.up.weight"]
    assert up.shape[0] == 4
    assert not torch.equal(up[0], up[1])  # they go their own ways


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"model.upcycle": ("num_experts=4",)}, "goes with model.pretrained"),
        ({"model.upcycle": ("num_expert=4",), "model.pretrained": True}, "Did you mean num_experts"),
        ({"model.upcycle": ("depth=6",), "model.pretrained": True}, "change depth before or after it"),
    ],
)
def test_upcycling_that_cannot_be(fields: dict[str, Any], says: str, short: Recipe, tmp_path: Path) -> None:
    save(create("vit-digits"), tmp_path / "dense")
    source = {"model.source": str(tmp_path / "dense"), "model.set": (), "data.source": "nowhere"}
    with pytest.raises(ConfigError, match=says):
        session.train(changed(short, **source, **fields), tmp_path / "run", device="cpu", show=False)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["replicate", "shard"])
def test_a_run_with_copies_or_shards_of_all_experts(short: Recipe, tmp_path: Path, strategy: str) -> None:
    """The loop's own ways over processes take a mixture of experts as they take any model."""
    fields = {"model.source": "vmoe-digits", "model.set": ("router_noise=0.0",), "model.dropout": 0.0}
    steps = {
        "model.drop_path": 0.0,
        "schedule.total": "10 steps",
        "evaluate_every": "10 steps",
        "keep": "last",
        "batch_size": 16,
    }
    sgd = {"optimizer.name": "sgd", "optimizer.weight_decay": 0.0, "optimizer.lr": 0.05}
    recipe = changed(short, **fields, **steps, **sgd)
    session.train(recipe, tmp_path / "one", device="cpu", show=False)
    file = tmp_path / "recipe.json"
    file.write_text(json.dumps(to_dict(changed(recipe, strategy=strategy))))
    two_processes(SESSION, tmp_path, tmp_path / "two", file)
    one, two = (load_file(tmp_path / name / "model" / "model.safetensors") for name in ("one", "two"))
    for name, value in one.items():
        torch.testing.assert_close(
            two[name], value, rtol=1e-4, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}"
        )
    lines = (tmp_path / "two" / "metrics.jsonl").read_text().splitlines()
    assert any("load loss" in json.loads(line) for line in lines)

"""Batch norms over two processes against torch's own over one that has the whole batch."""

from pathlib import Path

import torch
from torch import Tensor, nn

import processes
from vitlab.models.create import create
from vitlab.training.batch_norm import SyncedBatchNorm, synchronize
from vitlab.training.distribution import World

CASES: tuple[tuple[str, dict[str, bool]], ...] = (
    ("nonlocal-digits", {}),
    ("nonlocal-digits", {"checkpoint_blocks": True}),  # a batch that is computed twice counts once
    ("timm:test_efficientnet", {}),
)
SHARES = ((0, 3), (3, 8))  # of eight images: unequal, as a last batch may be
SCRIPT = """
import sys
from pathlib import Path
import torch
sys.path.insert(0, sys.argv[2])
from test_batch_norm import CASES, SHARES, in_training, small
from vitlab.training.batch_norm import synchronize
from vitlab.objectives.cross_entropy import CrossEntropy
from vitlab.objectives.supervised import Supervised
from vitlab.training.distribution import join, wrap
from vitlab.training.learner import Learner

with join("cpu") as world:
    for i, (name, fields) in enumerate(CASES):
        model = small(name, fields)
        said = synchronize(model, world)
        learner = Learner(model, Supervised(CrossEntropy()))
        module = wrap(learner, world, "replicate", torch.float32)["train"]
        found = in_training(model, module, SHARES[world.rank])
        torch.save((said, found), Path(sys.argv[1]) / f"{i}-{world.rank}.pt")
"""


def small(name: str, fields: dict[str, bool]) -> nn.Module:
    torch.manual_seed(0)
    model = create(name, image_size=32, num_classes=5, **fields).double().train()
    for norm in (module for module in model.modules() if isinstance(module, nn.BatchNorm2d)):
        nn.init.uniform_(norm.weight, 0.5, 1.5)  # some start at zero and would hide what is before them
        nn.init.uniform_(norm.bias, -0.5, 0.5)
    nn.init.normal_(model.head.get_parameter("weight"))
    return model


def in_training(model: nn.Module, module: nn.Module, share: tuple[int, int]) -> tuple[Tensor, dict[str, Tensor]]:
    """The logits of a share of eight images; gradients by name, and buffers, after two passes."""
    images = torch.randn(8, 3, 32, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    logits = torch.zeros(())
    for factor in (1.0, 2.0):
        model.zero_grad()
        logits = module(factor * images[slice(*share)])
        logits.square().sum().backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    return logits.detach(), gradients | dict(model.named_buffers())


def test_two_processes_see_one_batch(tmp_path: Path) -> None:
    (tmp_path / "run.py").write_text(SCRIPT)
    run = processes.forked(tmp_path / "run.py", tmp_path, Path(__file__).parent)
    assert run.returncode == 0, run.stderr[-3000:]
    for i, (name, _) in enumerate(CASES):
        model = small(name, {})
        logits, expected = in_training(model, model, (0, 8))
        parts = [torch.load(tmp_path / f"{i}-{rank}.pt") for rank in (0, 1)]
        torch.testing.assert_close(torch.cat([found[0] for _, found in parts]), logits)
        for said, (_, found) in parts:
            assert said == "Batch norms take their statistics over the batches of all 2 processes."
            assert found.keys() == expected.keys()
            for key, value in expected.items():
                mean = 0.5 if key in dict(model.named_parameters()) else 1  # DDP's gradient is the mean over processes
                torch.testing.assert_close(found[key], value * mean, msg=lambda text, key=key: f"{key}: {text}")


def test_names_and_evaluation_stay() -> None:
    model = create("nonlocal-digits").eval()
    state, images = {name: value.clone() for name, value in model.state_dict().items()}, torch.randn(2, 3, 32, 32)
    before = model(images)
    assert synchronize(model, World(0, 2, torch.device("cpu")))
    assert sum(isinstance(module, SyncedBatchNorm) for module in model.modules()) == 10
    torch.testing.assert_close(model(images), before)
    create("nonlocal-digits").load_state_dict(model.state_dict())
    assert list(model.state_dict()) == list(state)


def test_nothing_to_do() -> None:
    plain = create("nonlocal-digits")
    assert synchronize(plain, World(0, 1, torch.device("cpu"))) is None
    assert not any(isinstance(module, SyncedBatchNorm) for module in plain.modules())
    assert synchronize(create("vit-digits"), World(0, 2, torch.device("cpu"))) is None


def test_other_kinds_are_named() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.BatchNorm2d(4))
    said = synchronize(model, World(1, 2, torch.device("cpu")))
    assert said is not None
    assert said.startswith("1 of the model's 2 batch norms are of a kind (BatchNorm1d)")
    assert isinstance(model[2], SyncedBatchNorm)

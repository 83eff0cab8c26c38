"""Training on a real GPU: the same as on a CPU, captured or not, resumed, sharded."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from changing import changed, lose_at
from vitlab.core.config import to_dict
from vitlab.core.random import key
from vitlab.data.augmentation import Augmentation, augment, crop, erase, mix
from vitlab.models.stages import dropped
from vitlab.training import session
from vitlab.training.captured import CapturedStepper
from vitlab.training.execution import Execution, decide
from vitlab.training.hooks import DivergedError
from vitlab.training.recipe import Recipe
from vitlab.weights.load import load

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores"),  # float32 here is to be exact
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),  # torch's, hidden by it
]


def final(folder: Path) -> torch.Tensor:
    return torch.cat([value.flatten() for value in load(folder).state_dict().values()])


def close(a: torch.Tensor, b: torch.Tensor) -> float:
    return ((a - b).norm() / b.norm()).item()


def exact(recipe: Recipe, **fields: object) -> Recipe:
    """Without dropout, whose numbers a GPU draws otherwise, and in float32 throughout."""
    same = {"model.dropout": 0.0, "model.drop_path": 0.0, "precision": "float32", "keep": "last"}
    sgd = {"optimizer.name": "sgd", "optimizer.weight_decay": 0.0, "optimizer.lr": 0.05}
    return changed(recipe, **(same | sgd | fields))


def capture_nothing(patch: pytest.MonkeyPatch) -> None:
    """Every step from here on is launched kernel by kernel."""

    def launched(*args: Any) -> Execution:
        return dataclasses.replace(decide(*args), capture=False)

    patch.setattr(session, "decide", launched)


def test_cpu_and_gpu_train_alike(short: Recipe, tmp_path: Path) -> None:
    recipe = exact(short)
    session.train(recipe, tmp_path / "cpu", device="cpu", show=False)
    session.train(recipe, tmp_path / "gpu", device="cuda", show=False)
    assert close(final(tmp_path / "gpu"), final(tmp_path / "cpu")) < 1e-4


@pytest.mark.parametrize(
    ("name", "clip", "compiled"),
    [
        ("adamw", None, False),
        pytest.param("adamw", 0.1, True, marks=pytest.mark.compiled),
        ("sgd", 0.1, False),
        ("muon", 0.1, False),
        ("adafactor", 0.1, False),
    ],
)
def test_captured_steps_are_the_same_steps(
    short: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, clip: float | None, compiled: bool
) -> None:
    fields = {"optimizer.name": name, "optimizer.lr": 1e-3, "optimizer.clip": clip, "optimizer.ema": 0.9}
    recipe = exact(short, **fields, compile=compiled)
    used: list[type] = []
    made = CapturedStepper.__call__
    monkeypatch.setattr(
        CapturedStepper, "__call__", lambda self, step, factor: (used.append(type(self)), made(self, step, factor))[1]
    )
    session.train(recipe, tmp_path / "captured", device="cuda", show=False)
    assert len(used) == 24
    capture_nothing(monkeypatch)
    session.train(changed(recipe, compile=False), tmp_path / "eager", device="cuda", show=False)
    assert close(final(tmp_path / "captured"), final(tmp_path / "eager")) < 1e-3


@pytest.mark.compiled
def test_every_replay_drops_other_paths() -> None:
    """Compiled, the draws are the compiler's own: they must follow the seed of each step, and their rate."""
    compiled = torch.compile(dropped)
    ones, graph, stream = torch.ones(4096, 2, 3, device="cuda"), torch.cuda.CUDAGraph(), torch.cuda.Stream()
    compiled(ones, 0.25, True)
    with torch.cuda.graph(graph, stream=stream):
        made = compiled(ones, 0.25, True)
    torch.cuda.current_stream().wait_stream(stream)  # which writes a seed of its own as the capture begins
    drawn = []
    for seed in (1, 2, 1):
        torch.cuda.manual_seed(seed)
        graph.replay()
        drawn.append(made.clone())
    assert torch.equal(drawn[0], drawn[2])
    assert not torch.equal(drawn[0], drawn[1])
    for each in drawn:
        torch.testing.assert_close(each.unique().cpu(), torch.tensor([0, 1 / 0.75]))
        assert (each == each[:, :1, :1]).all()
        assert abs((each == 0).float().mean().item() - 0.25) < 0.03  # 4 deviations


def test_a_lost_run_goes_on(short: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = changed(short, precision="float32")
    session.train(recipe, tmp_path / "whole", device="cuda", show=False)
    with monkeypatch.context() as patch:
        lose_at(14, patch, CapturedStepper)
        with pytest.raises(KeyboardInterrupt):
            session.train(recipe, tmp_path / "lost", device="cuda", show=False)
    session.resume(tmp_path / "lost", device="cuda", show=False)
    assert close(final(tmp_path / "lost"), final(tmp_path / "whole")) < 1e-3


def test_a_step_that_is_not_finite_is_left_out_on_the_device(short: Recipe, tmp_path: Path) -> None:
    recipe = changed(short, **{"optimizer.lr": 1e30, "optimizer.clip": None, "max_skipped": 3})
    with pytest.raises(DivergedError, match="not finite"):
        session.train(recipe, tmp_path / "run", device="cuda", show=False)
    assert (tmp_path / "run" / "bad_batch_rank0.pt").exists()


@pytest.mark.parametrize("policy", ["none", "randaugment", "randaugment-official", "autoaugment", "three", "trivial"])
@pytest.mark.parametrize("kind", ["paper", "pad"])
def test_both_augmentation_paths_are_alike(policy: str, kind: str) -> None:
    """Image by image on the CPU, as workers do it, and the batch on the GPU."""
    aug = Augmentation(crop=kind, policy=policy, jitter=0.2, erase=0.5, mixup=0.8, cutmix=1.0)  # pyright: ignore[reportArgumentType]
    images = torch.randint(0, 256, (16, 3, 32, 32), dtype=torch.uint8)
    places, run = torch.arange(32, 48), key(3, "augment")
    alone = []
    for i in range(16):
        cut = crop(aug, images[i : i + 1], places[i : i + 1], run, (32, 32))
        alone.append(augment(aug, cut, places[i : i + 1], run))
    on_cpu = torch.cat(alone)
    there = places.cuda()
    on_gpu = augment(aug, crop(aug, images.cuda(), there, run, (32, 32)), there, run)
    difference = (on_gpu.cpu().int() - on_cpu.int()).abs()
    assert difference.max() <= 1
    assert (difference > 0).float().mean() < 0.01
    targets = torch.eye(10)[torch.arange(16) % 10]
    floats = on_cpu.float() / 255
    cpu = mix(aug, erase(aug, floats, places, run), targets, places, run)
    gpu = mix(aug, erase(aug, floats.cuda(), there, run), targets.cuda(), there, run)
    torch.testing.assert_close(gpu[0].cpu(), cpu[0], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(gpu[1].cpu(), cpu[1], rtol=1e-4, atol=1e-4)


@pytest.mark.compiled
def test_compiled_bf16_training_learns(short: Recipe, tmp_path: Path) -> None:
    fields = {"compile": True, "schedule.total": "120 steps", "precision": "bf16", "optimizer.ema": 0.95}
    plain = {"augmentation.mixup": 0.0, "augmentation.cutmix": 0.0, "augmentation.erase": 0.0}
    recipe = changed(short, **fields, **plain)
    ended = session.train(recipe, tmp_path / "run", device="cuda", show=False)
    assert ended.scores["best val score"] > 0.9


def test_one_sharded_rank_trains_as_one_process(short: Recipe, tmp_path: Path) -> None:
    recipe = exact(short, **{"optimizer.lr": 1e-3})
    session.train(recipe, tmp_path / "alone", device="cuda", show=False)
    script = tmp_path / "shard.py"
    script.write_text(
        "import sys, json; from pathlib import Path\n"
        "from vitlab.core.config import from_dict; from vitlab.training import session\n"
        "from vitlab.training.recipe import Recipe\n"
        "recipe = from_dict(Recipe, json.loads(Path(sys.argv[1]).read_text()), where='test')\n"
        "session.train(recipe, Path(sys.argv[2]), device='cuda', show=False)\n"
    )
    (tmp_path / "recipe.json").write_text(json.dumps(to_dict(changed(recipe, strategy="shard"))))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1", str(script)]
    run = subprocess.run(
        [*command, str(tmp_path / "recipe.json"), str(tmp_path / "sharded")],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ,
    )
    assert run.returncode == 0, run.stderr[:3000]
    assert close(final(tmp_path / "sharded"), final(tmp_path / "alone")) < 1e-3


def test_stepper_on_the_gpu_without_a_resident_set(short: Recipe, tmp_path: Path) -> None:
    recipe = changed(short, **{"data.resident": False, "data.workers": 2})
    ended = session.train(recipe, tmp_path / "run", device="cuda", show=False)
    assert ended.step == 24


@pytest.mark.parametrize(
    ("model", "sizes", "optimizer"),
    [("sasa-digits", (), "sgd"), ("wrn-28-2", ("layers=[1,1]", "width=8"), "muon")],
)
def test_captured_steps_keep_batch_norms_statistics_too(
    short: Recipe,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    model: str,
    sizes: tuple[str, ...],
    optimizer: str,
) -> None:
    plain = {"model.source": model, "model.set": sizes, "model.image_size": 32}
    recipe = exact(short, **plain, **{"optimizer.name": optimizer, "optimizer.lr": 1e-3})
    session.train(recipe, tmp_path / "captured", device="cuda", show=False)
    capture_nothing(monkeypatch)
    session.train(recipe, tmp_path / "eager", device="cuda", show=False)
    captured, eager = (load(tmp_path / name).state_dict() for name in ("captured", "eager"))
    assert any(name.endswith("running_mean") for name in captured)
    for name, value in eager.items():
        assert close(captured[name].double(), value.double()) < 5e-3 or value.norm() == 0, name

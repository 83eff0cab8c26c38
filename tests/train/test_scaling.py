"""The training of ViT-g and G, reduced: begun by one process, gone on with by two that share weights and moments."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from changing import changed, lose_at
from vitlab.core.config import to_dict
from vitlab.recipes import find_recipe
from vitlab.training import session
from vitlab.training.recipe import Recipe

RESUME = """
import sys
from pathlib import Path
from vitlab.training import session

session.resume(Path(sys.argv[1]), device="cpu", show=False)
"""


@pytest.fixture
def reduced(small_set: Path) -> Recipe:
    """Ten steps of ViT-g's recipe on a small ViT that pools by attention."""
    model = {
        "model.source": "vit-digits",
        "model.set": ["pool=attention", "class_token=false", "qkv_bias=false", "depth=2"],
        "batch_size": 16,
    }
    data = {"data.source": str(small_set), "data.val_fraction": 0.2, "augmentation.crop": "resize"}
    short = {"schedule.total": "10 steps", "schedule.warmup": "2 steps", "schedule.cooldown": "3 steps"}
    often = {"evaluate_every": "10 steps", "checkpoint_every": "2 steps", "strategy": "replicate"}
    return changed(find_recipe("vit-g14-jft"), **model, **data, **short, **often)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model" / "model.safetensors")


def test_a_killed_run_goes_on_to_the_bit(reduced: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session.train(reduced, tmp_path / "whole", device="cpu", show=False)
    with monkeypatch.context() as patch:
        lose_at(5, patch)
        with pytest.raises(KeyboardInterrupt):
            session.train(reduced, tmp_path / "killed", device="cpu", show=False)
    session.resume(tmp_path / "killed", device="cpu", show=False)
    whole, killed = weights(tmp_path / "whole"), weights(tmp_path / "killed")
    assert all(torch.equal(killed[name], value) for name, value in whole.items())


@pytest.mark.slow
def test_two_sharded_processes_go_on_as_one(reduced: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session.train(reduced, tmp_path / "whole", device="cpu", show=False)
    with monkeypatch.context() as patch:
        lose_at(4, patch)
        with pytest.raises(KeyboardInterrupt):
            session.train(reduced, tmp_path / "two", device="cpu", show=False)
    (tmp_path / "two" / "recipe.json").write_text(json.dumps(to_dict(changed(reduced, strategy="shard"))))
    script = tmp_path / "resume.py"
    script.write_text(RESUME)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    run = subprocess.run(
        [*launcher, str(script), str(tmp_path / "two")],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert run.returncode == 0, run.stderr[-3000:]
    for name, value in weights(tmp_path / "whole").items():
        if name == "attention_pool.kv.bias":
            continue  # a key's bias changes no softmax: its gradient is rounding, which a normalised update magnifies
        torch.testing.assert_close(
            weights(tmp_path / "two")[name], value, rtol=1e-3, atol=1e-4, msg=lambda text, name=name: f"{name}: {text}"
        )

"""A run that is killed with SIGKILL at random instants, and resumed until it ends, is the run that never was."""

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from changing import changed
from killing import differences, until_written
from vitlab.core.config import to_dict
from vitlab.training import session
from vitlab.training.recipe import Recipe

SCRIPT = """
import json, sys
from pathlib import Path
from vitlab.core.config import from_dict
from vitlab.training import session
from vitlab.training.recipe import Recipe

folder = Path(sys.argv[1])
print("ready", flush=True)
if (folder / "recipe.json").exists() and (folder / "data.json").exists():
    session.resume(folder, device="cpu", show=False)
else:
    recipe = from_dict(Recipe, json.loads(Path(sys.argv[2]).read_text()), where="test")
    session.train(recipe, folder, device="cpu", show=False)
"""


def killed_until_done(folder: Path, recipe: Path, script: Path, kills: int, seed: int) -> int:
    """How often the run was killed before it could end; each kill comes at a random instant of the training itself."""
    rng, done = random.Random(seed), 0
    for attempt in range(kills + 1):
        with subprocess.Popen(
            [sys.executable, str(script), str(folder), str(recipe)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            if attempt < kills:
                until_written(folder, lambda process=process: process.poll() is not None)
                time.sleep(rng.uniform(0, 0.15))
                process.send_signal(signal.SIGKILL)
            errors = process.communicate()[1]
            if process.returncode == 0:
                return done
            assert process.returncode == -signal.SIGKILL, errors
            done += 1
    raise AssertionError("the last start was not killed and should have ended")


def check(recipe: Recipe, tmp_path: Path, kills: int, seed: int) -> None:
    whole, broken, script, file = (tmp_path / name for name in ("whole", "broken", "run.py", "given.json"))
    script.write_text(SCRIPT)
    file.write_text(json.dumps(to_dict(recipe)))
    session.train(recipe, whole, device="cpu", show=False)
    assert killed_until_done(broken, file, script, kills, seed) > 0
    assert differences(whole, broken) == []


@pytest.mark.parametrize("workers", [pytest.param(0, marks=pytest.mark.slow), 2])
def test_killed_a_few_times(short: Recipe, tmp_path: Path, workers: int) -> None:
    """With averaging and mixing; with workers, and with the set in memory."""
    fields = {"data.resident": workers == 0, "data.workers": workers}
    recipe = changed(short, **fields, **{"schedule.total": "24 steps", "checkpoint_every": "2 steps"})
    check(recipe, tmp_path, kills=2, seed=workers)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_killed_fifty_times(short: Recipe, tmp_path: Path, seed: int) -> None:
    fields = {"data.resident": seed % 2 == 0, "data.workers": seed % 3, "model.lora": 2 if seed % 4 == 3 else None}
    recipe = changed(short, **fields, **{"schedule.total": "200 steps", "checkpoint_every": "2 steps"})
    check(recipe, tmp_path, kills=5, seed=100 + seed)

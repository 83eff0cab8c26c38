"""Checkpoints whose bits flipped: noticed always, and an older one is taken."""

import json
import random
from pathlib import Path

import pytest

import processes
from changing import changed
from damaging import flipped
from short_runs import short_recipe, write_small_set
from vitlab.core.config import to_dict
from vitlab.core.errors import CheckpointError, Error
from vitlab.training import checkpoints, session
from vitlab.training.recipe import Recipe
from vitlab.training.scoring import Scoring

PLACES = 40  # of each file that are tried
RESUME = """
import sys
from pathlib import Path
from vitlab.training import session

assert session.resume(Path(sys.argv[1]), device="cpu").step == 24
"""


@pytest.fixture
def two_kept(short: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run with the checkpoints of its best evaluation, at step 12, and of its end."""
    scores = {6: 0.2, 12: 0.8, 18: 0.5, 24: 0.4}
    made: list[int] = []

    def score(*_: object) -> dict[str, float]:
        made.append(6)
        return {"score": scores.get(sum(made), 0.0), "loss": 1.0, "count": 1.0}

    with monkeypatch.context() as patch:
        patch.setattr(Scoring, "score", score)
        session.train(changed(short, keep="last"), tmp_path / "run", device="cpu", show=False)
    assert [step for step, _ in checkpoints.complete(tmp_path / "run" / "checkpoints")] == [12, 24]
    return tmp_path / "run"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that ended, which resuming reads once more."""
    root = tmp_path_factory.mktemp("finished")
    recipe = changed(short_recipe(write_small_set(root / "set.npz")), **{"schedule.total": "4 steps"})
    session.train(recipe, root / "run", device="cpu", show=False)
    return root / "run"


def spoil(path: Path, seed: int = 0) -> None:
    path.write_bytes(flipped(path.read_bytes(), random.Random(seed)))


def test_every_flipped_bit_is_noticed(short: Recipe, tmp_path: Path) -> None:
    session.train(changed(short, **{"schedule.total": "4 steps"}), tmp_path / "run", device="cpu", show=False)
    [(_, path)] = checkpoints.complete(tmp_path / "run" / "checkpoints")
    files = sorted(file for file in path.iterdir())
    assert [file.name for file in files] == [".metadata", "__0_0.distcp", "checksums.json", "progress.json"]
    rng = random.Random(0)
    for file in files:
        whole = file.read_bytes()
        for _ in range(PLACES):
            file.write_bytes(flipped(whole, rng))
            with pytest.raises(CheckpointError, match="the checkpoint cannot be read") as caught:
                checkpoints.newest(path.parent, print)
            assert file.name in str(caught.value) or file.name == "checksums.json"
        file.write_bytes(whole)
    assert checkpoints.newest(path.parent, print) == path


@pytest.mark.parametrize("name", ["__0_0.distcp", ".metadata", "progress.json", "checksums.json"])
def test_the_older_checkpoint_is_taken_and_that_is_said(
    two_kept: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = two_kept / "checkpoints"
    expected = (two_kept / "model" / "model.safetensors").read_bytes()
    spoil(folder / "step-000000024" / name)
    assert session.resume(two_kept, device="cpu").step == 24
    said = capsys.readouterr().err
    assert "step-000000024: the checkpoint is damaged" in said
    assert "the run resumes from step-000000012." in said
    assert "Resuming from step 12." in said
    assert (two_kept / "model" / "model.safetensors").read_bytes() == expected  # trained again, to the bit
    assert (folder / "step-000000024.damaged").is_dir()
    assert 24 in [step for step, _ in checkpoints.complete(folder)]


def test_where_all_are_damaged_nothing_is_changed(two_kept: Path) -> None:
    folder = two_kept / "checkpoints"
    for path in folder.iterdir():
        spoil(path / "__0_0.distcp")
    with pytest.raises(CheckpointError, match=r"step-000000024: .*__0_0\.distcp is not what was written"):
        session.resume(two_kept, device="cpu", show=False)
    assert sorted(path.name for path in folder.iterdir()) == ["step-000000012", "step-000000024"]


def test_two_processes_take_the_same_one(two_kept: Path) -> None:
    """And write the checksums of what each of them wrote."""
    recipe = to_dict(changed(session.recipe_of(two_kept), strategy="shard"))
    (two_kept / "recipe.json").write_text(json.dumps(recipe))
    spoil(two_kept / "checkpoints" / "step-000000024" / "__0_0.distcp")
    script = two_kept.parent / "resume.py"
    script.write_text(RESUME)
    ended = processes.forked(script, two_kept)
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert ended.stderr.count("the run resumes from step-000000012.") == 1
    path = two_kept / "checkpoints" / "step-000000024"
    assert checkpoints.newest(path.parent, print) == path
    assert {"__0_0.distcp", "__1_0.distcp"} <= json.loads((path / "checksums.json").read_text())["files"].keys()
    spoil(path / "__1_0.distcp")
    with pytest.raises(CheckpointError, match=r"__1_0\.distcp is not what was written"):
        checkpoints.newest(path.parent, print)


@pytest.mark.parametrize("field", ["width", "mlp_dim", "depth", "image_size"])
@pytest.mark.parametrize("size", [10**6, 10**30])
def test_an_architecture_that_no_checkpoint_could_hold(finished: Path, field: str, size: int) -> None:
    path = finished / session.ARCHITECTURE
    settings = json.loads(path.read_text(encoding="utf-8"))
    settings["config"][field] = [size, size] if field == "image_size" else size
    whole = path.read_text(encoding="utf-8")
    path.write_text(json.dumps(settings), encoding="utf-8")
    try:
        with pytest.raises(Error, match=rf"architecture\.json|{field}|Size mismatch") as caught:
            session.resume(finished, device="cpu", show=False)
        assert "\n" not in str(caught.value)
    finally:
        path.write_text(whole, encoding="utf-8")

"""The transfer protocols with real runs, lost and gone on with."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from changing import lose_at
from vitlab.evaluation.contract import Result
from vitlab.evaluation.results import result_from_dict, result_to_dict
from vitlab.models.create import create
from vitlab.studies import transfer
from vitlab.studies.grid import Event, GridStopped
from vitlab.training.run import Stop
from vitlab.training.step import Stepper
from vitlab.weights.load import load, save
from vtab_folders import make_task

MACHINE = transfer.Machine(device="cpu", workers=0, precision="float32")


@pytest.fixture
def model(tmp_path: Path) -> str:
    torch.manual_seed(0)
    save(create("vit-digits", depth=1, width=16, mlp_dim=32, num_classes=7), tmp_path / "model")
    return str(tmp_path / "model")


@pytest.fixture
def bright(tmp_path: Path) -> str:
    """Two classes that differ in brightness: 60 pictures of 8 x 8 to train on, 30 to test."""
    rng, arrays = np.random.default_rng(0), dict[str, np.ndarray[Any, Any]]()
    for part, count in (("train", 60), ("test", 30)):
        labels = np.arange(count) % 2
        arrays[f"y_{part}"] = labels
        arrays[f"x_{part}"] = (rng.integers(0, 60, (count, 8, 8, 3)) + labels[:, None, None, None] * 190).astype(
            np.uint8
        )
    np.savez(tmp_path / "bright.npz", **cast("dict[str, Any]", arrays))
    return str(tmp_path / "bright.npz")


def finetuned(model: str, data: str, folder: Path, **options: Any) -> Result:
    """Two rates and two seeds; five steps each, so that a checkpoint is written at the end alone."""
    settings: dict[str, Any] = {"steps": 5, "lrs": (0.01, 0.05), "seeds": (0, 1), "batch_size": 16}
    return transfer.finetune(model, data, folder, image_size=None, machine=MACHINE, **(settings | options))


def lost(start: Callable[[], Result], run: int, step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process is lost in the so-manieth run that it makes, before that step."""
    with monkeypatch.context() as patch:
        begun, make = [0], Stepper.__init__

        def counted(self: Stepper, *parts: Any, **arguments: Any) -> None:
            make(self, *parts, **arguments)
            begun[0] += 1
            if begun[0] == run:
                lose_at(step, patch)

        patch.setattr(Stepper, "__init__", counted)
        with pytest.raises(KeyboardInterrupt):
            start()


def test_finetune_lost_twice_is_finetune(
    model: str, bright: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = finetuned(model, bright, tmp_path / "whole")
    _check(whole, tmp_path / "whole")
    folder, events = tmp_path / "lost", list[Event]()
    lost(lambda: finetuned(model, bright, folder), 2, 3, monkeypatch)  # in the second rate
    lost(lambda: finetuned(model, bright, folder), 3, 4, monkeypatch)  # which goes on; then in the second seed
    again = finetuned(model, bright, folder, watch=events.append)
    assert [event.state for event in events] == ["kept", "kept", "kept", "resumes", "ended"]
    assert (again.metrics, again.selected, again.counts) == (whole.metrics, whole.selected, whole.counts)
    assert again.cost["images_seen"] == whole.cost["images_seen"] == 4 * 5 * 16
    assert _same_weights(tmp_path / "whole", folder) == 2


def _same_weights(a: Path, b: Path) -> int:
    """How many final models two grids have, each the same to the bit."""
    files = [sorted(path.glob("final/*/model/model.safetensors")) for path in (a, b)]
    for pair in zip(*files, strict=True):
        one, other = map(load_file, pair)
        assert all(torch.equal(one[name], other[name]) for name in one)
    return len(files[0])


def _check(result: Result, folder: Path) -> None:
    """It learnt, with the rate that is best on the held-out images, and the folder holds what it should."""
    lr, scores = result.selected["lr"]["value"], result.selected["lr"]["scores"]
    assert scores[repr(lr)] == max(scores.values())
    assert result.metrics["accuracy"].value > 0.8
    assert result.counts["train"] == 60
    assert result.counts["test"] == 30
    assert {path.name for path in folder.iterdir()} == {".lock", "grid.json", "choose", "final"}
    assert {path.name for path in (folder / "choose").iterdir()} == {"rate=0.01", "rate=0.05"}
    assert not list(folder.rglob("checkpoints"))
    assert not list((folder / "choose").rglob("model"))
    for run in (folder / "choose").iterdir():  # no run that chooses was scored on test
        assert not any(name.startswith("test") for name in json.loads((run / "result.json").read_text()))
    for seed in (0, 1):
        run = folder / "final" / f"rate={lr!r},seed={seed}"
        kept = json.loads((run / "result.json").read_text())
        assert kept["test accuracy"] == result.details["test accuracies"][str(seed)]
        assert kept["test count"] == 30
        assert load(run).labels == ("0", "1")
    again = result_from_dict(json.loads(json.dumps(result_to_dict(result))), where="here")
    assert again.metrics == result.metrics


def test_vtab_goes_on_and_takes_tasks_that_come_later(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, folder = tmp_path / "vtab", tmp_path / "grid"
    make_task(root, "patch_camelyon", 2, train=6, val=2, test=10)
    make_task(root, "kitti", 4, train=6, val=2, test=10)

    def run(**more: Any) -> Result:
        return transfer.vtab(model, root, folder, steps=5, batch_size=8, image_size=None, machine=MACHINE, **more)

    lost(run, 2, 3, monkeypatch)
    events = list[Event]()
    first = run(watch=events.append)
    assert [(event.run.split("/")[0], event.state) for event in events] == [
        ("patch_camelyon", "kept"),
        ("kitti", "resumes"),
        ("kitti", "ended"),
    ]
    assert (first.counts["kitti train"], first.counts["kitti test"]) == (32, 40)
    make_task(root, "svhn", 10, train=2, val=1, test=2)
    second = run()
    assert list(second.metrics) == ["svhn", "patch_camelyon", "kitti"]
    assert all(second.metrics[name] == first.metrics[name] for name in first.metrics)
    assert not list(folder.rglob("model"))
    assert result_from_dict(json.loads(json.dumps(result_to_dict(second))), where="here").metrics == second.metrics


def test_a_signal_ends_the_grid_in_order_and_it_goes_on_in_the_middle(
    model: str, bright: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = Stepper.__call__

    def signalled(self: Stepper, step: int, lr: float) -> bool:
        if step == 3:
            monkeypatch.setattr(Stop, "signal", property(lambda _: 15, lambda *_: None), raising=False)
        return make(self, step, lr)

    with monkeypatch.context() as patch:
        patch.setattr(Stepper, "__call__", signalled)
        with pytest.raises(GridStopped) as stopped:
            finetuned(model, bright, tmp_path / "grid", lrs=(0.05,), seeds=(0,))
    monkeypatch.undo()
    assert stopped.value.status == 143
    run = tmp_path / "grid" / "final" / "rate=0.05,seed=0"
    assert not (run / "result.json").exists()
    assert [path.name for path in (run / "checkpoints").iterdir()][-1].endswith("4")
    events = list[Event]()
    finetuned(model, bright, tmp_path / "grid", lrs=(0.05,), seeds=(0,), watch=events.append)
    assert [event.state for event in events] == ["resumes", "ended"]
    finetuned(model, bright, tmp_path / "undisturbed", lrs=(0.05,), seeds=(0,))
    assert _same_weights(tmp_path / "grid", tmp_path / "undisturbed") == 1

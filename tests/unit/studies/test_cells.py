"""A cell by itself: trained, reused, measured, and lost without a word too many."""

import dataclasses
import json
import pickle
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

from vitlab.core.config import to_dict
from vitlab.evaluation.results import result_from_dict
from vitlab.recipes.scales import scale_recipe
from vitlab.studies.cells import FAILED, Cell, Measure, attempt, build_module, run_cell, run_model
from vitlab.studies.context import Context
from vitlab.studies.executors import Here
from vitlab.training.schedules import Schedule
from vitlab.training.step import Stepper

SHORT = dataclasses.replace(scale_recipe("digits"), schedule=Schedule(total="2 steps"))
KNN = Measure(protocol="knn", options={"ks": [1, 3]})
CNN = "vitlab.studies.bias_networks:build:cnn-batch:8"


def cell_in(folder: Path, **changes: object) -> Cell:
    study = Context(study="trial", scale="digits", folder=folder, device="cpu")
    return dataclasses.replace(study.cell("short", SHORT), **changes)


def test_it_is_trained_once_and_measured_once(tmp_path: Path) -> None:
    cell = cell_in(tmp_path, measures=(KNN,))
    assert pickle.loads(pickle.dumps(cell)) == cell
    assert not cell.is_done
    first = run_cell(cell)
    assert first == json.loads(json.dumps(first))
    assert first["run"]["step"] == 2
    assert result_from_dict(first["measures"][KNN.key], where="").metrics["top-1"].count == 400
    assert cell.is_done
    written = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.json")}
    assert run_cell(cell) == first
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.json")} == written
    assert not dataclasses.replace(cell, measures=(KNN, Measure(protocol="fewshot"))).is_done
    assert not Path(cell.folder, "checkpoints").exists()
    assert run_model(cell).num_features == 32


def test_what_a_run_held_is_let_go_before_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its parts refer to each other, and on a GPU they hold gigabytes."""
    held, made = list[weakref.ref[Stepper]](), Stepper.__init__

    def noted(stepper: Stepper, *args: Any, **named: Any) -> None:
        held.append(weakref.ref(stepper))
        made(stepper, *args, **named)

    monkeypatch.setattr(Stepper, "__init__", noted)
    for _, outcome in Here().map([cell_in(tmp_path / name) for name in ("a", "b")]):
        assert outcome["run"]["step"] == 2
        assert [each() for each in held] == [None] * len(held)
    assert len(held) == 2


def test_what_ends_a_cell_is_a_sentence(tmp_path: Path) -> None:
    gone = {**to_dict(SHORT), "data": {**to_dict(SHORT.data), "source": "gone.npz"}}
    outcome = attempt(cell_in(tmp_path, recipe=gone))
    assert set(outcome) == {"error"}
    assert "gone.npz" in outcome["error"]
    assert "\n" not in outcome["error"]
    cell = cell_in(tmp_path, module="vitlab.studies.bias_networks:build:none:8")
    assert attempt(cell) == {"error": "KeyError: 'none'"}
    assert "KeyError" in Path(cell.folder, FAILED).read_text()


def test_a_network_of_no_family(tmp_path: Path) -> None:
    study = Context(study="trial", scale="digits", folder=tmp_path, device="cpu")
    recipe = dataclasses.replace(SHORT, model=dataclasses.replace(SHORT.model, source="", image_size=8, set=()))
    cell = study.cell("cnn", recipe, module=CNN)
    assert run_cell(cell)["run"]["step"] == 2
    model = run_model(cell)
    images = torch.randn(2, 3, 8, 8)
    trained, fresh = model(images), build_module(CNN, 0)(images)
    assert trained.shape == (2, 10)
    assert not torch.equal(model.encode(model.embed(images)).values.mT.reshape(fresh.shape), fresh)  # it was trained
    assert torch.equal(build_module(CNN, 0)(images), fresh)  # by its seed
    assert not torch.equal(build_module(CNN, 1)(images), fresh)


def test_a_diverged_run_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from vitlab.training import session
    from vitlab.training.hooks import DivergedError

    def diverging(*_: object, **__: object) -> None:
        Path(cell.folder).mkdir(parents=True)
        raise DivergedError("Loss or gradients were not finite.")

    cell = cell_in(tmp_path)
    monkeypatch.setattr(session, "train", diverging)
    assert attempt(cell) == {"run": None, "measures": {}}

"""A cell of a study: one run and what is measured of it, as plain data that another process or machine can be sent."""

import contextlib
import dataclasses
import hashlib
import importlib
import json
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import nn

from vitlab.core.config import to_dict
from vitlab.core.devices import choose_device
from vitlab.core.errors import Error
from vitlab.core.files import atomic_file
from vitlab.core.random import torch_seed
from vitlab.core.record import read_json, write_json
from vitlab.data.contract import DataSet
from vitlab.evaluation.request import How, Request, checked_options
from vitlab.evaluation.results import result_to_dict
from vitlab.models.contract import Model
from vitlab.models.create import empty_model
from vitlab.studies import PROTOCOLS
from vitlab.studies.evaluate import HOST
from vitlab.studies.grid import RESULT, Grid, Tally, trainer
from vitlab.studies.moving import replaced
from vitlab.training.assembly import WEIGHTS
from vitlab.training.model import build_model
from vitlab.training.plan import Given, make_plan, open_parts
from vitlab.training.recipe import Recipe, read_recipe
from vitlab.training.session import ARCHITECTURE
from vitlab.weights.load import load
from vitlab.weights.native import read_config

FAILED = "failed.txt"  # a cell's file: the traceback of what ended it


@dataclass(frozen=True, kw_only=True)
class Measure:
    """A protocol over a run's model once it is trained; `data` None: the run's own."""

    protocol: str
    options: Mapping[str, Any] = field(default_factory=dict)
    data: str | None = None

    @property
    def key(self) -> str:
        """What its result is kept under."""
        return f"{self.protocol}-{digest([dict(self.options), self.data])}"


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One run: all of it is text and numbers. `module` names the function that builds a network of no family."""

    name: str
    folder: str
    recipe: Mapping[str, Any]
    measures: tuple[Measure, ...] = ()
    module: str = ""  # as 'package.module:function', with arguments after further colons
    device: str | None = None

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to compute."""
        folder = Path(self.folder)
        return (folder / RESULT).exists() and all(_kept(folder, measure).exists() for measure in self.measures)


def run_cell(cell: Cell) -> dict[str, Any]:
    """Train, resume or reuse the cell's run, then measure it: {'run': its result.json, 'measures': results by key}.

    `run` is None where the run diverged. A signal raises `GridStopped`.
    """
    folder, recipe = Path(cell.folder), read_recipe(cell.recipe, where=cell.name)
    grid = Grid(folder.parent, trainer(device=cell.device, given=given_of(cell)), Tally(1))
    result = grid.run(folder.name, recipe, keep_model=True, may_diverge=True)
    if result is None:
        return {"run": None, "measures": {}}
    measured = {measure.key: _measured(cell, recipe, measure) for measure in cell.measures}
    return {"run": dict(result), "measures": measured}


def attempt(cell: Cell) -> dict[str, Any]:
    """The same, but what ends the cell is one sentence under 'error', so that the others are not lost."""
    try:
        return run_cell(cell)
    except Exception as error:  # noqa: BLE001  whatever it was, it is this cell's alone
        with contextlib.suppress(Error, OSError), atomic_file(Path(cell.folder, FAILED)) as partial:
            partial.write_text(traceback.format_exc(), encoding="utf-8")
        why = (str(error).strip().splitlines() or [""])[0]
        return {"error": why if isinstance(error, Error) else f"{type(error).__name__}: {why}"}


def given_of(cell: Cell) -> Given:
    """The network of a cell whose model is of no family, initialised by its seed."""
    if not cell.module:
        return Given()
    return Given(model=build_module(cell.module, int(cell.recipe["seed"])))


def build_module(name: str, seed: int) -> nn.Module:
    """What 'package.module:function:ARGUMENT...' makes, initialised by a seed."""
    module, function, *arguments = name.split(":")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(torch_seed(seed, "initialise"))
        return getattr(importlib.import_module(module), function)(*arguments)


def planned(cell: Cell, recipe: Recipe, dataset: DataSet) -> tuple[Model, int]:
    """A cell's model, fresh, and how many steps it is trained."""
    plan = make_plan(recipe, Path(cell.folder), dataset, given_of(cell))
    return build_model(plan), plan.schedule.total


def outlined(cell: Cell, recipe: Recipe, dataset: DataSet) -> tuple[Model, int]:
    """The same to be counted, of a run that is over by what it wrote down: weights that it began from may be gone."""
    made, result = Path(cell.folder, ARCHITECTURE), Path(cell.folder, RESULT)
    if not made.exists() or not result.exists():
        return planned(cell, recipe, dataset)
    return empty_model(read_config(read_json(made), made)), int(read_json(result)["step"])


def run_model(cell: Cell) -> Model:
    """The model that a cell's run made."""
    folder = Path(cell.folder, "model")
    if not cell.module:
        return load(folder)
    recipe = read_recipe(cell.recipe, where=cell.name)
    model, _ = planned(cell, recipe, open_parts(recipe))
    model.load_state_dict(load_file(folder / WEIGHTS))
    return model.eval()


def fingerprint(recipe: Recipe, module: str, folder: Path) -> str:
    """Stands for what a run computes, compiled or not; paths in the study's folder count as they are below it."""
    recipe = dataclasses.replace(recipe, compile=False)
    return digest([replaced(to_dict(recipe), str(folder), "."), module])


def digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:10]


def _kept(folder: Path, measure: Measure) -> Path:
    return folder / "measures" / f"{measure.key}.json"


def _measured(cell: Cell, recipe: Recipe, measure: Measure) -> dict[str, Any]:
    path = _kept(Path(cell.folder), measure)
    if not path.exists():
        protocol = PROTOCOLS.find(measure.protocol)
        request = Request(
            protocol=protocol.name,
            model=cell.folder,
            data=measure.data or recipe.data.source,
            options=checked_options(protocol, measure.options),
            how=How(name=cell.name, keep=False, device=choose_device(cell.device), workers=recipe.data.workers),
            host=HOST,
        )
        write_json(path, result_to_dict(protocol.run(request)))
    return read_json(path)

"""What a study works with: runs that are trained, resumed or reused below its folder, and what they will cost."""

import dataclasses
import fnmatch
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias, final

from vitlab.core.config import to_dict
from vitlab.core.devices import choose_device
from vitlab.core.errors import did_you_mean, near_names
from vitlab.core.progress import Progressing
from vitlab.data.contract import DataSet
from vitlab.data.open import names as set_names
from vitlab.evaluation.contract import Metric, Result
from vitlab.evaluation.cost import exaflops
from vitlab.evaluation.results import result_from_dict
from vitlab.models.contract import Model
from vitlab.models.counts import count_parameters
from vitlab.studies.cells import Cell, Measure, build_module, fingerprint, outlined, run_model
from vitlab.studies.contract import StudyError
from vitlab.studies.executors import Executor, Here
from vitlab.studies.findings import Sample
from vitlab.studies.forecast import Shape, flops_of, forecast
from vitlab.training.durations import parse
from vitlab.training.plan import Given, open_parts, with_given
from vitlab.training.recipe import Recipe, read_recipe

TEST = "test accuracy"
LONG = 900  # steps; shorter runs hardly win back what compiling takes
VAL = "val score"  # of a recipe that keeps the last weights; else 'best val score'

Say: TypeAlias = Callable[[str], None]


class Forecasted(Exception):  # noqa: N818  no error: what was asked for
    """What the first runs of a study would cost, where nothing else was asked for."""


@final
@dataclass(frozen=True, kw_only=True)
class Trained:
    """A cell that has a result."""

    cell: Cell
    result: Mapping[str, Any]  # the run's result.json
    measures: Mapping[str, Any]

    @property
    def folder(self) -> Path:
        return Path(self.cell.folder)

    @property
    def recipe(self) -> Recipe:
        return read_recipe(self.cell.recipe, where=self.cell.name)

    def score(self, name: str = TEST) -> float:
        if self.result.get(name) is None:  # or it was not finite
            raise StudyError(f"The run {self.cell.name} has no '{name}' ({', '.join(self.result)}).")
        return float(self.result[name])

    def measure(self, measure: Measure) -> Result:
        return result_from_dict(self.measures[measure.key], where=self.cell.name)

    def metric(self, measure: Measure, name: str) -> Metric:
        return self.measure(measure).metrics[name]

    def model(self) -> Model:
        """The run's model with its weights."""
        return run_model(self.cell)


@final
@dataclass(kw_only=True)
class Context:
    """A study under way in one folder. `say` is told sentences, `progress` how many runs of how many are over."""

    study: str
    scale: str
    folder: Path
    num_seeds: int = 3
    data: str | None = None  # in place of the scale's own source
    only: str | None = None  # of the rows of a grid those whose names match
    device: str | None = None
    compile: bool = False  # runs of LONG steps or more
    executor: Executor = field(default_factory=Here)
    say: Say | None = None
    progress: Progressing | None = None
    failed: dict[str, str] = field(default_factory=dict)
    trained: dict[str, Trained] = field(default_factory=dict)  # by the name of each cell
    dry: bool = False  # say what the first runs would cost, and end
    _opened: dict[str, DataSet] = field(default_factory=dict)
    _counted: dict[str, tuple[float, int]] = field(default_factory=dict)

    @property
    def seeds(self) -> range:
        return range(self.num_seeds)

    def cell(self, name: str, recipe: Recipe, *, measures: Sequence[Measure] = (), module: str = "") -> Cell:
        """One run, by the recipe as the run will keep it: on the study's data, with nothing that changes labels.

        `module` names a function without arguments, 'package.module:function', that builds a network of no family.
        """
        recipe = self.on_data(recipe)
        without = recipe.augmentation.without(self.opened(recipe).changes_labels)
        amount, unit = parse(recipe.schedule.total)
        compiled = recipe.compile or (self.compile and (unit != "step" or amount >= LONG))
        recipe = dataclasses.replace(recipe, name=f"study-{self.study}", augmentation=without, compile=compiled)
        if module:
            recipe = with_given(recipe, Given(model=build_module(module, recipe.seed)))
        mark = fingerprint(recipe, module, self.folder)
        runs = self.folder / "runs"
        known = sorted(runs.glob(f"*-{mark}")) if runs.is_dir() else []
        slug = re.sub(r"[^A-Za-z0-9.=]+", "-", name).strip("-.")[:60]
        return Cell(
            name=name,
            folder=str(known[0] if known else runs / f"{slug}-{mark}"),
            recipe=to_dict(recipe),
            measures=tuple(measures),
            module=module,
            device=self.device,
        )

    def on_data(self, recipe: Recipe) -> Recipe:
        """The recipe on the study's data, unless the study itself chose a path, and not a set's name."""
        source = recipe.data.source
        if self.data is None or (source not in set_names() and Path(source).exists()):
            return recipe
        return dataclasses.replace(recipe, data=dataclasses.replace(recipe.data, source=self.data))

    def opened(self, recipe: Recipe) -> DataSet:
        """The data of a recipe, opened once."""
        key = repr(recipe.data)
        if key not in self._opened:
            self._opened[key] = open_parts(recipe)
        return self._opened[key]

    def map(self, cells: Sequence[Cell], *, what: str = "", later: Sequence[Recipe] = ()) -> dict[str, Trained]:
        """Those of the cells that have a result, by name; what they cost is said first, and what failed is said.

        Cells that compute the same are computed once. `later` are the runs that the study will ask for after these,
        with fresh weights in the place of those that they will start from: what they cost is said too.
        """
        listed = _with_recipes(cells)
        unique = {cell.folder: (cell, recipe) for cell, recipe in reversed(listed)}
        ordered = [unique.pop(cell.folder) for cell, _ in listed if cell.folder in unique]
        if self.dry or self.say is not None:
            sentence = self._forecast(ordered, what or self.study, later)
            if self.dry:
                raise Forecasted(sentence)
            self._say(sentence)
        outcomes: dict[str, Mapping[str, Any]] = {}
        for cell, outcome in self.executor.map([cell for cell, _ in ordered]):
            outcomes[cell.folder] = outcome
            why = outcome.get("error") or (None if outcome.get("run") else "the run diverged")
            if why is not None:
                self.failed[cell.name] = why
                self._say(f"{cell.name} failed: {why}")
            if self.progress is not None:
                self.progress(len(outcomes), len(ordered))
        found = {
            cell.name: Trained(cell=cell, result=outcome["run"], measures=outcome["measures"])
            for cell, _ in listed
            if (outcome := outcomes[cell.folder]).get("run")
        }
        self.trained |= found
        return found

    def _forecast(self, cells: Sequence[tuple[Cell, Recipe]], what: str, later: Sequence[Recipe]) -> str:
        after = _with_recipes([self.cell(f"later {place}", recipe) for place, recipe in enumerate(later)])
        device, paces = choose_device(self.device), dict[Shape, float]()
        due, then = (
            forecast(((cell, recipe, self.opened(recipe)) for cell, recipe in part), device, paces)
            for part in (cells, after)
        )
        return due.sentence(what, then if after else None)

    def train(self, recipe: Recipe, name: str, *, measures: Sequence[Measure] = ()) -> Path:
        """The folder of a finished run of the recipe; one that fails is an error."""
        found = self.map([self.cell(name, recipe, measures=measures)], what=name)
        if name not in found:
            raise StudyError(f"The run {name} failed, and the others need it: {self.failed[name]}.")
        return found[name].folder

    def over_seeds(
        self,
        rows: Mapping[str, Recipe],
        *,
        measures: Sequence[Measure] = (),
        modules: Mapping[str, str] | None = None,
        whole: bool = False,
        what: str = "",
        later: Sequence[Recipe] = (),
    ) -> dict[str, list[Trained]]:
        """Each row of a grid with every seed; rows without any result are not there.

        Nor are those that `--only` leaves out, unless the `whole` grid is needed by what comes after it.
        """
        wanted = list(rows) if whole else self.wanted(list(rows))
        names = {row: [f"{row}, seed {seed}" for seed in self.seeds] for row in wanted}
        cells = [
            self.cell(
                name,
                dataclasses.replace(rows[row], seed=seed),
                measures=measures,
                module=(modules or {}).get(row, ""),
            )
            for row, own in names.items()
            for seed, name in zip(self.seeds, own, strict=True)
        ]
        found = self.map(cells, what=what, later=later)
        kept = {row: [found[name] for name in own if name in found] for row, own in names.items()}
        return {row: runs for row, runs in kept.items() if runs}

    def follow(
        self, runs: Mapping[str, Sequence[Trained]], make: Callable[[Trained], Recipe], *, then: str, what: str = ""
    ) -> dict[str, list[Trained]]:
        """After each run another one, by a recipe that is made of it: as a fine-tuning of its model."""
        cells = {
            run.cell.name: (row, self.cell(f"{run.cell.name}, {then}", make(run)))
            for row, own in runs.items()
            for run in own
        }
        found = self.map([cell for _, cell in cells.values()], what=what)
        followed: dict[str, list[Trained]] = {}
        for row, cell in cells.values():
            if cell.name in found:
                followed.setdefault(row, []).append(found[cell.name])
        return followed

    def wanted(self, rows: Sequence[str]) -> list[str]:
        """The rows that `--only` matches, or all."""
        if self.only is None:
            return list(rows)
        matching = [row for row in rows if fnmatch.fnmatchcase(row, self.only)]
        if not matching:
            hint = did_you_mean(near_names(self.only, rows)) or f" They are {', '.join(rows)}."
            raise StudyError(f"The study {self.study} has no cell '{self.only}'.{hint}")
        return matching

    def flops(self, trained: Trained) -> float:
        """Of one image through a run's model."""
        return self._counts(trained)[0]

    def parameters(self, trained: Trained) -> int:
        return self._counts(trained)[1]

    def exaflops(self, trained: Trained) -> float:
        """What a run's training computed."""
        return exaflops(self.flops(trained), float(trained.result["images_seen"]))

    def _counts(self, trained: Trained) -> tuple[float, int]:
        recipe = trained.recipe
        key = repr(recipe.model) + trained.cell.module
        if key not in self._counted:
            model, _ = outlined(trained.cell, recipe, self.opened(recipe))
            self._counted[key] = flops_of(model), count_parameters(model)
        return self._counted[key]

    def spent(self) -> dict[str, float]:
        """Of all runs so far, each counted once: their number, seconds of steps, and exaFLOPs."""
        runs = {trained.cell.folder: trained for trained in self.trained.values()}
        return {
            "runs": len(runs),
            "seconds": sum(float(trained.result["seconds"]) for trained in runs.values()),
            "exaflops": sum(self.exaflops(trained) for trained in runs.values()),
        }

    def _say(self, sentence: str) -> None:
        if self.say is not None:
            self.say(sentence)


def _with_recipes(cells: Sequence[Cell]) -> list[tuple[Cell, Recipe]]:
    return [(cell, read_recipe(cell.recipe, where=cell.name)) for cell in cells]


def sample(runs: Sequence[Trained], name: str = TEST) -> Sample:
    """A score of the same row over its seeds."""
    return Sample(tuple(run.score(name) for run in runs))


def samples(rows: Mapping[str, Sequence[Trained]], name: str = TEST) -> dict[str, Sample]:
    return {row: sample(runs, name) for row, runs in rows.items()}

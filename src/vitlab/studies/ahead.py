"""The runs of the transfer protocols made elsewhere, all that do not wait for each other at once.

What a protocol then finds in its folders are ended runs: it chooses and sums up as ever.
"""

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from vitlab.core.config import to_dict
from vitlab.core.devices import choose_device
from vitlab.studies.cells import Cell
from vitlab.studies.executors import Executor
from vitlab.studies.grid import DIVERGED, GridError, Progress, Tally, open_grid, trainer
from vitlab.studies.lr_search import Machine, Transfer, Weights, best_lr, choosing_runs, final_runs
from vitlab.training.recipe import Recipe


def make_ahead(
    tasks: Mapping[Path, Transfer],
    weights: Weights,
    machine: Machine,
    executor: Executor,
    progress: Progress | None = None,
) -> None:
    """Every run of some tasks, each task in a folder: first what chooses their rates, then what counts."""
    total, over = sum(task.num_runs for task in tasks.values()), 0

    def made(runs: Mapping[Path, Recipe]) -> dict[Path, Mapping[str, Any] | None]:
        nonlocal over
        device = None if machine.device == choose_device() else machine.device  # there may be other ones there
        cells = [
            Cell(name=_name(folder), folder=str(folder.absolute()), recipe=to_dict(recipe), device=device)
            for folder, recipe in runs.items()
        ]
        found: dict[str, Mapping[str, Any] | None] = {}
        failed: dict[str, str] = {}
        for cell, outcome in executor.map(cells):
            over += 1
            if progress is not None:
                progress(over, total)
            if "error" in outcome:
                failed[cell.name] = outcome["error"]
            else:
                found[cell.folder] = outcome["run"]
        if failed:
            name, why = next(iter(failed.items()))
            more = f", and {len(failed) - 1} more" if len(failed) > 1 else ""
            raise GridError(f"The run {name} failed{more}: {why.rstrip('.')}. The same command resumes.")
        return {folder: found[str(folder.absolute())] for folder in runs}

    with ExitStack() as grids:
        for folder, task in tasks.items():
            plan = task.plan(weights, machine)
            grids.enter_context(open_grid(folder, plan, train=trainer(), tally=Tally(0)))
        choosing = {folder: choosing_runs(task, weights, machine) for folder, task in tasks.items() if task.chooses}
        scored = made({folder / name: recipe for folder, runs in choosing.items() for name, recipe in runs.items()})
        final: dict[Path, Recipe] = {}
        for folder, task in tasks.items():
            lr = task.lrs[0]
            if task.chooses:
                results = {run.optimizer.lr: scored[folder / name] for name, run in choosing[folder].items()}
                scores = {rate: None if each is None else each["best_score"] for rate, each in results.items()}
                lr = best_lr(scores, where=task.name)
            final |= {folder / name: run for name, run in final_runs(task, weights, machine, lr).items()}
        for folder, result in made(final).items():
            if result is None:
                (folder / DIVERGED).unlink()
                raise GridError(f"The run {_name(folder)} diverged: give lower rates (--lrs).")


def _name(folder: Path) -> str:
    """'pets/final/rate=0.01,seed=0'."""
    return "/".join(folder.parts[-3:])

"""One set's part of a protocol: a learning rate chosen on training images, then a run per seed on all of them."""

import dataclasses
import functools
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from vitlab.core.config import to_dict
from vitlab.data.augmentation import Augmentation
from vitlab.evaluation.contract import EvaluationError, Metric, Unit
from vitlab.models.fingerprint import model_fingerprint
from vitlab.recipes.finetuning import finetune_recipe
from vitlab.studies.grid import Grid, Tally, Train, open_grid
from vitlab.training.recipe import Recipe
from vitlab.weights.load import load


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What the runs run on, and what fits there; of what they compute it changes the rounding alone."""

    device: str | None = None
    workers: int | None = None  # processes that decode; None: one per core
    accumulate: int = 1  # parts that a batch is computed in
    precision: Literal["auto", "float32", "bf16"] = "auto"
    show: bool = False  # each run's own progress on standard error

    @property
    def on_gpu(self) -> bool:
        return torch.cuda.is_available() if self.device is None else self.device.startswith("cuda")


@dataclass(frozen=True, kw_only=True)
class Weights:
    """The trained model that all runs start from."""

    source: str
    fingerprint: str


@dataclass(frozen=True, kw_only=True)
class Transfer:
    """How a model is transferred to one set: what chooses the rate, what is trained on in the end, and how."""

    name: str
    choose_from: str  # the set without its test part
    held_out: float  # the fraction of its train that chooses; 0 where it has a val part
    chosen_on: str  # the same in words
    everything: str  # the set with all that is not test as train
    data_fingerprint: str
    counts: Mapping[str, int]  # images
    steps: int
    warmup: int
    batch_size: int
    lrs: tuple[float, ...]
    seeds: tuple[int, ...]
    image_size: int | None
    augmentation: Augmentation

    def __post_init__(self) -> None:
        for what, values in (("lrs", self.lrs), ("seeds", self.seeds)):
            if not values or len(set(values)) < len(values):
                raise EvaluationError(f"Give at least one of the {what}, and each once, not {list(values)}.")
        if not min(self.lrs) > 0:
            raise EvaluationError(f"A learning rate must be above 0, not {min(self.lrs)}.")
        if self.steps < 1 or self.batch_size < 1:
            raise EvaluationError(f"Steps and batch size must be at least 1, not {self.steps} and {self.batch_size}.")

    @property
    def chooses(self) -> bool:
        """Whether there is a choice of rates."""
        return len(self.lrs) > 1

    @property
    def num_runs(self) -> int:
        return len(self.seeds) + (len(self.lrs) if self.chooses else 0)

    def plan(self, weights: Weights, machine: Machine) -> dict[str, Any]:
        """All that decides what the runs compute, as grid.json keeps it."""
        return {
            "model": weights.source,
            "model_fingerprint": weights.fingerprint,
            **{name: value for name, value in to_dict(self).items() if name not in ("counts", "chosen_on")},
            "precision": machine.precision,
            "accumulate": machine.accumulate,
        }

    def recipe(self, weights: Weights, machine: Machine, *, lr: float, seed: int, choosing: bool) -> Recipe:
        """One run. Only its end is scored, so that nothing but the rate is chosen."""
        recipe = finetune_recipe(
            self.choose_from if choosing else self.everything,
            weights.source,
            steps=self.steps,
            lr=lr,
            warmup=self.warmup,
            held_out=self.held_out if choosing else 0.0,
            image_size=self.image_size,
            batch_size=self.batch_size,
            name=f"{self.name}-{'choose' if choosing else 'final'}",
        )
        return dataclasses.replace(
            recipe,
            data=dataclasses.replace(recipe.data, workers=machine.workers, division="hash"),  # test is apart already
            augmentation=self.augmentation,
            accumulate=machine.accumulate,
            precision=machine.precision,
            seed=seed,
            evaluate_every="0 steps",
            keep="last",
        )


@dataclass(frozen=True, kw_only=True)
class Transferred:
    """What the runs on one set gave."""

    lr: float
    val_scores: Mapping[float, float | None]  # by rate; None for a run that diverged; empty without a choice
    accuracies: tuple[float, ...]  # on test, by seed
    losses: tuple[float, ...]
    seconds: float
    images_seen: int
    recipe: Recipe  # of the first seed


def weights_of(source: str) -> Weights:
    """The model of a source, loaded once to see that it can be, and what it is."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # what the file lacks is filled in the same each time
        return Weights(source=source, fingerprint=model_fingerprint(load(source)))


def transfer(
    task: Transfer,
    weights: Weights,
    folder: Path,
    machine: Machine,
    *,
    train: Train,
    tally: Tally,
    keep_models: bool,
) -> Transferred:
    """The grid of rates where there is a choice, then one run per seed; the test part is in the last runs alone."""
    results: list[Mapping[str, Any]] = []
    with open_grid(folder, task.plan(weights, machine), train=train, tally=tally) as grid:
        scores = _scores(task, weights, machine, grid, results) if task.chooses else {}
        lr = best_lr(scores, where=task.name) if scores else task.lrs[0]
        runs = final_runs(task, weights, machine, lr)
        final: list[Mapping[str, Any]] = []
        for name, recipe in runs.items():
            result = grid.run(name, recipe, keep_model=keep_models)
            assert result is not None
            final.append(result)
    results += final
    return Transferred(
        lr=lr,
        val_scores=scores,
        accuracies=tuple(result["test accuracy"] for result in final),
        losses=tuple(result["test loss"] for result in final),
        seconds=sum(result["seconds"] for result in results),
        images_seen=sum(result["images_seen"] for result in results),
        recipe=next(iter(runs.values())),
    )


def _scores(
    task: Transfer, weights: Weights, machine: Machine, grid: Grid, results: list[Mapping[str, Any]]
) -> dict[float, float | None]:
    """The accuracy on the held-out images at the end of a run with each rate, with the first seed."""
    scores: dict[float, float | None] = {}
    for name, recipe in choosing_runs(task, weights, machine).items():
        result = grid.run(name, recipe, may_diverge=True)
        scores[recipe.optimizer.lr] = None if result is None else result["best_score"]
        if result is not None:
            results.append(result)
    return scores


def choosing_runs(task: Transfer, weights: Weights, machine: Machine) -> dict[str, Recipe]:
    """A run with each rate, by its folder."""
    recipe = functools.partial(task.recipe, weights, machine, seed=task.seeds[0], choosing=True)
    return {f"choose/rate={lr!r}": recipe(lr=lr) for lr in sorted(task.lrs)}


def final_runs(task: Transfer, weights: Weights, machine: Machine, lr: float) -> dict[str, Recipe]:
    """A run with each seed, by its folder."""
    recipe = functools.partial(task.recipe, weights, machine, lr=lr, choosing=False)
    return {f"final/rate={lr!r},seed={seed}": recipe(seed=seed) for seed in task.seeds}


def best_lr(scores: Mapping[float, float | None], *, where: str) -> float:
    """The rate with the best score; of equals the lowest."""
    ended = {lr: score for lr, score in scores.items() if score is not None}
    if not ended:
        raise EvaluationError(
            f"{where}: the runs of all rates diverged ({', '.join(map(str, scores))}): give lower ones."
        )
    return min(ended, key=lambda lr: (-ended[lr], lr))


def summary(values: Sequence[float], *, unit: Unit = "fraction") -> Metric:
    """The mean over runs, and where there are several their sample standard deviation (n - 1)."""
    several = len(values) > 1
    return Metric(
        value=statistics.fmean(values),
        count=len(values),
        spread=statistics.stdev(values) if several else None,
        spread_of=f"{len(values)} seeds, sample standard deviation" if several else "",
        unit=unit,
    )

"""The paper's transfer protocols: fine-tuning with a chosen rate and three seeds, and VTAB-1k."""

import dataclasses
import logging
import re
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vitlab.core.config import to_dict
from vitlab.core.errors import UnknownNameError, near_matches
from vitlab.core.record import environment
from vitlab.data.augmentation import Augmentation
from vitlab.data.jpeg import decoder_name
from vitlab.data.open import hold_out, open_data
from vitlab.data.sources.arranged import arrange, arranged_name
from vitlab.data.sources.published.imagenet import REPORTED_ON_VAL
from vitlab.data.sources.published.vtab import GROUPS, TASKS, VtabTask, find_tasks, task_called
from vitlab.evaluation.contract import EvaluationError, Metric, Result
from vitlab.evaluation.cost import model_cost
from vitlab.evaluation.request import Request
from vitlab.recipes.finetuning import ROWS, Row, budget
from vitlab.studies.ahead import make_ahead
from vitlab.studies.executors import Executor, find_executor
from vitlab.studies.grid import Progress, Tally, Train, Watch, trainer
from vitlab.studies.lr_search import Machine, Transfer, Transferred, summary, transfer, weights_of
from vitlab.weights.load import load

log = logging.getLogger("vitlab")

BATCH_SIZE, IMAGE_SIZE, SEEDS = 512, 384, (0, 1, 2)  # table 4
LRS = ROWS["cifar10"].lrs  # the grid of all its sets but ImageNet and VTAB, for batches of 512


def finetune(
    model: str,
    data: str,
    folder: Path,
    *,
    steps: int | None = None,
    lrs: Sequence[float] | None = None,
    seeds: Sequence[int] = SEEDS,
    batch_size: int | None = None,
    image_size: int | None = IMAGE_SIZE,
    machine: Machine | None = None,
    keep_models: bool = True,
    progress: Progress | None = None,
    watch: Watch | None = None,
    train: Train | None = None,
    executor: Executor | None = None,
) -> Result:
    """The test accuracy of a model fine-tuned as the paper does; what is None is table 4's, or follows the set's size.

    Each rate is tried on a part of train and scored on the rest of it (1, 2 or 10%) or on the set's own val part; with
    the best, one run per seed is made on all but test, and scored on test at its end. `folder` holds the runs: the same
    call resumes what was begun there. `image_size` None is the model's own; `train` makes a run, or an `executor` all
    of them beforehand, and `watch` is told what becomes of each.
    """
    machine = machine or Machine()
    task = plan_finetune(
        data,
        steps=steps,
        lrs=lrs,
        seeds=seeds,
        batch_size=batch_size,
        image_size=image_size,
        on_gpu=machine.on_gpu,
    )
    weights = weights_of(model)
    if executor is not None:
        make_ahead({folder: task}, weights, machine, executor, progress)
    done = transfer(
        task,
        weights,
        folder,
        machine,
        train=train or trainer(device=machine.device, show=machine.show),
        tally=Tally(task.num_runs, None if executor else progress, watch),
        keep_models=keep_models,
    )
    return Result(
        protocol="finetune",
        model=model,
        data=task.name,
        metrics={"accuracy": summary(done.accuracies), "loss": summary(done.losses, unit="number")},
        counts=task.counts,
        seeds=task.seeds,
        settings=_settings(task) | {"lr": done.lr, "recipe": to_dict(done.recipe)},
        selected={"lr": _selected(task, done)} if task.chooses else {},
        details={"folder": str(folder), "test accuracies": _by_seed(task, done)},
        cost={"seconds": done.seconds, "images_seen": done.images_seen, "runs": task.num_runs},
        seconds=done.seconds,
        environment=environment(decoder_name()),
    )


def plan_finetune(
    data: str,
    *,
    steps: int | None,
    lrs: Sequence[float] | None,
    seeds: Sequence[int],
    batch_size: int | None,
    image_size: int | None,
    on_gpu: bool,
) -> Transfer:
    """What the protocol does with a set: as table 4 has it for the sets there, else by the number of images.

    A set of the table that has a val part beside (Flowers) is taken as the paper takes it, without that part.
    """
    dataset = open_data(data, val_fraction=0)
    if dataset.multi_label:
        raise EvaluationError(
            f"{dataset.name} has several labels per image, and this protocol is for one: use `vitlab finetune`."
        )
    test = "val" if dataset.name in REPORTED_ON_VAL and "test" not in dataset.splits else "test"
    for part in ("train", test):
        if part not in dataset.splits:
            raise EvaluationError(
                f"{dataset.name} has no {part} part ({', '.join(dataset.splits)} only): the protocol trains on train"
                " and reports on test, so give the data both, as folders or in a column 'split'."
            )
    own_val = test == "test" and "val" in dataset.splits and dataset.name not in ROWS
    training = ("train", "val") if own_val else ("train",)
    num_images = sum(len(dataset.splits[part]) for part in training)
    row, batch_size = _spending(dataset.name, num_images, batch_size, on_gpu=on_gpu)
    steps = row.steps if steps is None else steps
    choose = {part: (part,) for part in training}
    chooser = arrange(dataset, choose)
    chooser = chooser if own_val else hold_out(chooser, row.held_out)
    counts = {f"{part} while choosing": len(split) for part, split in chooser.splits.items()}
    if "val" not in chooser.splits:
        raise EvaluationError(f"{dataset.name} has too few training images to hold some out for the choice of a rate.")
    return Transfer(
        name=dataset.name,
        choose_from=arranged_name(data, **choose),
        held_out=0.0 if own_val else row.held_out,
        chosen_on="the val part" if own_val else f"{row.held_out:.0%} of train, held out",
        everything=arranged_name(data, train=training, test=(test,)),
        data_fingerprint=dataset.fingerprint,
        counts={"train": num_images, "test": len(dataset.splits[test])} | counts,
        steps=steps,
        warmup=min(row.warmup, steps // 5),
        batch_size=batch_size,
        lrs=row.lrs if lrs is None else tuple(lrs),
        seeds=tuple(seeds),
        image_size=image_size,
        augmentation=Augmentation(crop="paper", flip=0.5).without(dataset.changes_labels),
    )


def _spending(name: str, num_images: int, batch_size: int | None, *, on_gpu: bool) -> tuple[Row, int]:
    """The row of table 4 and its batch; for another set one like it, with rates for its batch as in `budget`."""
    if name in ROWS and name != "vtab":
        return ROWS[name], BATCH_SIZE if batch_size is None else batch_size
    spent = budget(num_images, on_gpu=on_gpu)
    batch_size = spent.batch_size if batch_size is None else batch_size
    lrs = tuple(float(f"{lr * (max(batch_size, 1) / BATCH_SIZE) ** 0.5:.4g}") for lr in LRS)
    held_out = 0.1 if num_images < 20_000 else 0.02 if num_images < 500_000 else 0.01  # as the table's rows have it
    return Row(spent.steps, lrs, held_out, spent.warmup), batch_size


def vtab(
    model: str,
    root: Path,
    folder: Path,
    *,
    tasks: Sequence[str] | None = None,
    steps: int = ROWS["vtab"].steps,
    lrs: Sequence[float] = ROWS["vtab"].lrs,
    seeds: Sequence[int] = (0,),
    batch_size: int = BATCH_SIZE,
    image_size: int | None = IMAGE_SIZE,
    machine: Machine | None = None,
    keep_models: bool = False,
    progress: Progress | None = None,
    watch: Watch | None = None,
    train: Train | None = None,
    executor: Executor | None = None,
) -> Result:
    """VTAB-1k: mean test accuracy over 19 tasks of a thousand training images each, also by group and by task.

    With several rates, a task's is chosen on its 200 after training on its 800; the runs that count train on the
    thousand. Without all 19 there is no mean, and none of a group that lacks a task: `details['missing']` names them.
    Each task is a grid of its own below `folder`: tasks may be added later, and made side by side by other processes.
    """
    machine = machine or Machine()
    found = find_tasks(root)
    chosen = list(found) if tasks is None else _named(tasks, found, root)
    missing = [name for name in TASKS if name not in found]
    if missing:
        log.warning("VTAB: no mean, for %d of the 19 tasks are not in %s: %s.", len(missing), root, ", ".join(missing))
    plans = {  # every task is opened before one is trained
        name: plan_task(
            TASKS[name],
            found[name],
            steps=steps,
            lrs=lrs,
            seeds=seeds,
            batch_size=batch_size,
            image_size=image_size,
        )
        for name in chosen
    }
    tally = Tally(sum(task.num_runs for task in plans.values()), None if executor else progress, watch)
    weights, make = weights_of(model), train or trainer(device=machine.device, show=machine.show)
    if executor is not None:
        make_ahead({folder / name: task for name, task in plans.items()}, weights, machine, executor, progress)
    done = {
        name: transfer(task, weights, folder / name, machine, train=make, tally=tally, keep_models=keep_models)
        for name, task in plans.items()
    }
    first = next(iter(plans.values()))
    seconds = sum(outcome.seconds for outcome in done.values())
    return Result(
        protocol="vtab",
        model=model,
        data="vtab",
        metrics=aggregate({name: outcome.accuracies for name, outcome in done.items()}),
        counts={f"{name} {part}": count for name, task in plans.items() for part, count in task.counts.items()},
        seeds=first.seeds,
        settings=_settings(first) | {"recipes": {name: to_dict(outcome.recipe) for name, outcome in done.items()}},
        selected={f"lr of {name}": _selected(plans[name], done[name]) for name in done if first.chooses},
        details={
            "folder": str(folder),
            "missing": missing,
            "left out": [name for name in found if name not in chosen],
            "test accuracies": {name: _by_seed(plans[name], outcome) for name, outcome in done.items()},
        },
        cost={
            "seconds": seconds,
            "images_seen": sum(outcome.images_seen for outcome in done.values()),
            "runs": tally.total,
        },
        seconds=seconds,
        environment=environment(decoder_name()),
    )


def plan_task(
    task: VtabTask,
    path: Path,
    *,
    steps: int,
    lrs: Sequence[float],
    seeds: Sequence[int],
    batch_size: int,
    image_size: int | None,
) -> Transfer:
    """What VTAB's protocol does with a task: crops and flips where they leave its labels right, else whole pictures."""
    dataset = open_data(str(path), val_fraction=0)
    sizes = {part: len(split) for part, split in dataset.splits.items()}
    return Transfer(
        name=task.name,
        choose_from=arranged_name(str(path), train=("train",), val=("val",)),
        held_out=0.0,
        chosen_on="val200.txt",
        everything=arranged_name(str(path), train=("train", "val"), test=("test",)),
        data_fingerprint=dataset.fingerprint,
        counts={"train": sizes["train"] + sizes["val"], "test": sizes["test"]},
        steps=steps,
        warmup=min(ROWS["vtab"].warmup, steps // 5),
        batch_size=batch_size,
        lrs=tuple(lrs),
        seeds=tuple(seeds),
        image_size=image_size,
        augmentation=Augmentation(crop="paper", flip=0.5).without(task.changes_labels),
    )


def aggregate(accuracies: Mapping[str, Sequence[float]]) -> dict[str, Metric]:
    """The mean over all tasks, over each group and of each task; what lacks a task is left out.

    A mean's spread is that of the seeds: for each the mean over its tasks, and of these the standard deviation.
    """
    metrics: dict[str, Metric] = {}
    for name, tasks in {"mean": tuple(TASKS), **GROUPS}.items():
        if all(task in accuracies for task in tasks):
            by_seed = zip(*(accuracies[task] for task in tasks), strict=True)
            metrics[name] = summary([statistics.fmean(values) for values in by_seed])
    return metrics | {name: summary(values) for name, values in accuracies.items()}


def _named(names: Sequence[str], found: Mapping[str, Path], root: Path) -> list[str]:
    """The tasks of some names, in the order of the tasks."""
    chosen: set[str] = set()
    for name in names:
        if name in GROUPS:
            chosen |= {task for task in GROUPS[name] if task in found}
            continue
        task = task_called(name)
        if task is None:
            hint = near_matches(name, [*TASKS, *GROUPS]) or f" They are {', '.join(TASKS)}."
            raise UnknownNameError(f"VTAB has no task or group named '{name}'.{hint}")
        if task.name not in found:
            raise EvaluationError(f"The task {task.name} is not in {root}, which holds {', '.join(found)}.")
        chosen.add(task.name)
    if not chosen:
        raise EvaluationError(f"No task of {', '.join(names) or 'those asked for'} is in {root}.")
    return [name for name in TASKS if name in chosen]


def folder_of(request: Request) -> Path:
    """Where the runs are: the same for the same model and data, so that a second call resumes the first."""
    if request.options.folder is not None:
        return Path(request.options.folder)
    parts = (request.protocol, request.needed_data, request.source)
    return Path("runs", "-".join(re.sub(r"[^A-Za-z0-9.]+", "-", part).strip("-.") for part in parts))


def training_size(request: Request) -> int | None:
    """The resolution to train at; None: the model's own."""
    return None if request.options.own_size else request.how.image_size or IMAGE_SIZE


def machine_of(request: Request) -> Machine:
    """What the runs are computed with."""
    how, options = request.how, request.options
    return Machine(
        device=how.device,
        workers=how.workers,
        accumulate=options.accumulate,
        precision=how.precision,
        show=options.show,
    )


def executor_of(request: Request) -> Executor | None:
    """Where the runs are made beforehand; None where they are made here, one after the other."""
    name = request.options.executor
    return None if name == "here" else find_executor(name, log.warning)


def with_cost(request: Request, result: Result) -> Result:
    """What was trained at the resolution that it was trained at, beside what the runs took."""
    model = load(request.source, image_size=training_size(request))
    cost = {**result.cost, **model_cost(model), **request.run_cost()}
    return dataclasses.replace(result, model=request.name, cost=cost)


def _settings(task: Transfer) -> dict[str, Any]:
    return {
        "steps": task.steps,
        "warmup": task.warmup,
        "batch size": task.batch_size,
        "image size": task.image_size,
        "lrs": list(task.lrs),
    }


def _selected(task: Transfer, done: Transferred) -> dict[str, Any]:
    scores = {repr(lr): score for lr, score in done.val_scores.items()}
    return {"value": done.lr, "on": task.chosen_on, "scores": scores}


def _by_seed(task: Transfer, done: Transferred) -> dict[str, float]:
    return {str(seed): value for seed, value in zip(task.seeds, done.accuracies, strict=True)}

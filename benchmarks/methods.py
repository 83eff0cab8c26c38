"""Every way to learn with few labels or none, by one ViT in the same time: the tables of docs/results/methods.md.

    python benchmarks/methods.py --data cifar10 --source cifar10.npz --results methods.jsonl --budget 28
    python benchmarks/methods.py --data cifar10 --source cifar10.npz --model vit-lite7-4-32 --minutes 1
    python benchmarks/methods.py --data tiny-imagenet --methods supervised mae dino --seeds 0 1 2 --out runs/methods
    python benchmarks/methods.py --data cifar10 --source cifar10.npz --model vit-lite7-4-32 --seeds 0 1 2 --jobs 12
    python benchmarks/methods.py --data digits --minutes 0.1
    python benchmarks/methods.py --data cifar10 --results methods.jsonl --pace
    python benchmarks/methods.py --data cifar10 --results methods.jsonl --table

A cell has --minutes of steps in all, compilation and evaluations aside: supervised and semi-supervised methods spend
them on one run for each part of the labels, Noisy Student half of them on its teacher; those without labels spend three
quarters on one run without, which nearest neighbours and a linear classifier measure, and a quarter on fine-tuning it
for each part. `simclr-half` is SimCLR with half of the time for each, and what starts from its run has the other half.
How many steps that is, a short rehearsal tells, so that schedules end in time. Where several processes
are to share a GPU, each with some of --methods, --labels or --measures, --pace rehearses before any of them trains:
cells have the steps that they would have alone. Processes with --pace compile side by side, which keeps the GPU busy
too, since kernels are tried there: with --together N each waits until N have done so, then they take turns. The pace
of fine-tuning is that of `supervised`; a student is rehearsed with a teacher of a few steps. --jobs does all of it:
what has no pace yet is rehearsed, then so many processes at a time make the cells, in an order that they allow, and
write what they say to OUT/logs.

Fine-tuning is by the supervised recipe, with its optimizer or the one that MAE's authors fine-tune with. From scratch
that recipe's weight decay is scaled with the number of steps, so that all of them take off as much of the weights.
`supervised-quarter` is supervised in the time that fine-tuning has. `few-labels` is supervised with the augmentation,
averaging and batch of the semi-supervised ones. Its decay with few labels, FixMatch's threshold and whose answers are
its labels, the consistency of Meta Pseudo Labels' teacher after a start, and the optimizer of fine-tuning for each
method, are chosen by trials with seed 0, whose score on the held-out part of train decides.

Every cell is one command of `vitlab`, which is printed and kept beside its result. Results are lines of --results, by
default OUT/results.jsonl; cells that are there are not run again, and a run that was stopped is resumed: a study grows
over as many sessions as it takes. Where OUT is lost with its machine, keep the lines elsewhere: a model whose folder is
gone is trained again only if something is still to be made of it. With --budget no cell is begun that would end later.
"""

import argparse
import contextlib
import functools
import json
import os
import shlex
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias
from unittest import mock

import torch

from methods_jobs import Job
from methods_jobs import run as run_jobs
from rehearsal import REHEARSED, arrivals, rehearsing
from vitlab.cli import main as vitlab
from vitlab.core.record import read_json
from vitlab.objectives import OBJECTIVES
from vitlab.recipes import find_recipe, recipe_names
from vitlab.training.captured import CapturedStepper
from vitlab.training.durations import Pace
from vitlab.training.durations import steps as steps_of
from vitlab.training.session import recipe_of

Line: TypeAlias = dict[str, Any]

SHARE = 0.25  # of the time, for fine-tuning what was trained without labels
FEW, SOME = 0.01, 0.1  # parts of the labels with which trials are made
Tried: TypeAlias = dict[str, tuple[str, ...]]  # options in words, by their names
DECAYS: Tried = {f"decay {decay}": ("--optimizer.weight-decay", decay) for decay in ("0.05", "0.2", "0.8")}
FINETUNING: Tried = {
    "as from scratch": (),
    # 5e-4 for each 256 images, and less in lower layers: facebookresearch/mae FINETUNE.md, .65 for B and .75 for L
    "as MAE": ("--optimizer.name", "adamw", "--optimizer.lr", "1e-3", "--optimizer.layer-decay", "0.75"),
}
PSEUDO_LABELS: Tried = {
    "as its authors": ("--objective.teacher-ema", "0"),
    **{
        f"average {ema}, threshold {threshold}": ("--objective.teacher-ema", ema, "--objective.threshold", threshold)
        for ema, threshold in (("0", "0.7"), ("0.99", "0.95"), ("0.99", "0.7"), ("0.999", "0.7"))
    },
}
# weight and threshold of the teacher's consistency, in runs a hundredth as long as the authors'
CONSISTENCY: Tried = {
    "as its authors": (),
    **{
        f"weight {weight}, threshold {threshold}": (
            *("--objective.weight", weight, "--objective.threshold", threshold),
            *("--objective.ramp", "0.2", "--objective.wait", "0.1"),
        )
        for weight, threshold in (("1", "0.6"), ("1", "0.95"), ("2", "0.9"))
    },
}
SPARE = 2.0  # minutes that a cell may take besides its steps: compilation, evaluations
PART_OF = {"trial": "accuracy", "teacher": "accuracy"}  # what else a measure needs
TITLES = {"knn": "k-NN", "linear": "linear", "accuracy": "trained on the labels"}
MEASURES = ("pretraining", *TITLES)
BRIEF = 400  # steps of a teacher that is sure enough of some images to be asked
IMAGES = {"digits": 1_259, "cifar10": 49_015, "tiny-imagenet": 97_978}  # that are trained on
# one ViT for all: CIFAR-10's and Tiny-ImageNet's recipes agree on theirs
MODEL = {"digits": ("--model.set", "pool=mean", "class_token=false", "positions_std=0.5")}


@dataclass(frozen=True)
class Method:
    """A recipe's name but for the data's, its options, and what its run learns from."""

    recipe: str
    learns: Literal["labels", "both", "images"]
    options: tuple[str, ...] = ()
    start: str = ""  # the method without labels whose run it starts from
    teacher: str = ""  # the method that trains its teacher, in half of its time
    share: float = 1.0  # of the time; without labels the rest is for fine-tuning
    paced_by: str = ""  # the method whose step takes as long
    trials: float = 0.0  # the part of the labels with which options are tried; 0: none are
    tried: Tried = field(default_factory=dict)
    scaled: bool = False  # whether its weight decay follows the number of steps

    def named(self, data: str) -> str:
        return f"{self.recipe}-{data}" if self.recipe else data


def unlabelled(recipe: str, *options: str, share: float = 1 - SHARE, paced_by: str = "") -> Method:
    """A method without labels, whose fine-tuning is tried."""
    return Method(recipe, "images", options, share=share, paced_by=paced_by, trials=SOME, tried=FINETUNING)


HALF = "simclr-half"
METHODS = {
    "supervised": Method("", "labels", scaled=True),
    "supervised-quarter": Method("", "labels", share=SHARE, paced_by="supervised", scaled=True),
    "sam": Method("sam", "labels", scaled=True),
    "masked-patches": unlabelled("masked-patches"),
    "masked-patches-thumbnail": unlabelled("masked-patches", "--objective.target", "thumbnail"),
    "masked-patches-pixels": unlabelled("masked-patches", "--objective.target", "pixels"),
    "mae": unlabelled("mae"),
    "dino": unlabelled("dino"),
    "dino-ibot": unlabelled("dino", "--objective.patch-weight", "1"),
    "simclr": unlabelled("simclr"),
    "lejepa": unlabelled("lejepa"),
    "few-labels": Method("few-labels", "labels", trials=FEW, tried=DECAYS),
    "fixmatch": Method("fixmatch", "both", trials=FEW, tried=PSEUDO_LABELS),
    "noisy-student": Method("noisy-student", "both", teacher="few-labels"),
    "meta-pseudo-labels": Method("meta-pseudo-labels", "both"),
    # as Semi-ViT has it (arXiv 2208.05688): without labels first
    HALF: unlabelled("simclr", share=0.5, paced_by="simclr"),
    "simclr-fixmatch": Method("fixmatch", "both", start=HALF, share=0.5, paced_by="fixmatch"),
    "simclr-noisy-student": Method(
        "noisy-student", "both", start=HALF, teacher="supervised", share=0.5, paced_by="noisy-student"
    ),
    "simclr-meta-pseudo-labels": Method(
        "meta-pseudo-labels",
        "both",
        ("--objective.teacher-start", "student"),
        start=HALF,
        share=0.5,
        paced_by="meta-pseudo-labels",
        trials=FEW,
        tried=CONSISTENCY,
    ),
}


@dataclass(frozen=True)
class Study:
    """What is asked for, and the lines of results that are there."""

    data: str
    source: str
    minutes: float
    device: str
    out: Path
    results: Path
    model: str | None = None  # in the place of the recipes' own
    together: int = 1  # processes that rehearse at the same time

    def is_own(self, line: Line) -> bool:
        return {"data": self.data, "minutes": self.minutes, "model": self.model}.items() <= line.items()

    def lines(self) -> list[Line]:
        """All results; a line that a kill left half is none."""
        found: list[Line] = []
        for text in self.results.read_text().splitlines() if self.results.exists() else ():
            with contextlib.suppress(json.JSONDecodeError):
                found.append(json.loads(text))
        return found

    def find(self, **cell: Any) -> Line | None:
        return next((line for line in self.lines() if self.is_own(line) and cell.items() <= line.items()), None)

    def add(self, line: Line) -> None:
        """In one write of one line, synced."""
        text = json.dumps({"data": self.data, "minutes": self.minutes, "model": self.model, **line})
        handle = os.open(self.results, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            os.write(handle, f"{text}\n".encode())
            os.fsync(handle)
        finally:
            os.close(handle)

    def folder(self, *parts: object) -> Path:
        about = (f"{self.minutes:g}min", *([self.model] if self.model else ()), *parts)
        return self.out / self.data / "-".join(str(part) for part in about)

    def start(self, name: str, seed: int) -> Path | None:
        """The run that a method starts from."""
        by = METHODS[name].start
        return self.folder(by, seed) if by else None

    def trial(self, name: str, option: str) -> Line:
        return {"method": name, "seed": 0, "labels": METHODS[name].trials, "measure": "trial", "option": option}

    def best(self, name: str) -> Line | None:
        """Of a method's trials the best on the held-out part of train; the test part chooses nothing."""
        lines = [self.find(**self.trial(name, option)) for option in METHODS[name].tried]
        return max((line for line in lines if line is not None), key=lambda line: line["val"], default=None)

    def chosen(self, name: str) -> tuple[str, ...]:
        """The best option in words; none where none was tried, so that all is as the recipe has it."""
        best = self.best(name)
        return () if best is None else METHODS[name].tried[best["option"]]


@dataclass(frozen=True)
class Cell:
    """A line to be, what makes the rest of it, how long that takes, and whose run it leaves or needs."""

    line: Line
    make: Callable[[], Line]
    minutes: float = 0.0
    leaves: Path | None = None  # a run that later cells need
    needs: tuple[Path, ...] = ()


class FailedError(Exception):
    """A command that did not end well."""


def run(words: list[str]) -> None:
    """A command of vitlab in this process, so that what is compiled stays; without the report, which nobody reads."""
    print(f"\n$ vitlab {shlex.join(words)}", flush=True)
    with mock.patch("vitlab.api.train.report"):
        status = vitlab(words)
    if status:
        raise FailedError(f"status {status}: vitlab {shlex.join(words)}")


def train(study: Study, words: list[str], folder: Path, steps: int, log: int) -> Line:
    """A run of so many steps, new, resumed or done already; what it cost and its scores."""
    every = ["--evaluate-every", "100%", "--checkpoint-every", "50%", "--log-every", f"{log} steps"]
    whole = [*words, "--schedule.total", f"{steps} steps", *every, "--device", study.device, "--out", str(folder)]
    if (folder / "recipe.json").exists() and not (folder / "result.json").exists():
        run(["train", "--resume", str(folder), "--device", study.device])
    elif not (folder / "result.json").exists():
        run(whole)
    result = read_json(folder / "result.json")
    found = {"command": f"vitlab {shlex.join(whole)}", "steps": result["step"], "seconds": result["seconds"]}
    return found | {"accuracy": result.get("test accuracy"), "val": result.get("val score")}


def paced(study: Study, name: str, words: list[str]) -> Line:
    """The time of a step by a rehearsal, images per second, and whether the step is one CUDA graph."""
    name = METHODS[name].paced_by or name
    if (known := study.find(measure="pace", run=name)) is not None:
        return known
    folder = study.folder("rehearsal", name, os.getpid())  # another process may rehearse the same
    shutil.rmtree(folder, ignore_errors=True)  # what an earlier one left
    with rehearsing(study.results.with_suffix(".lock"), study.together) as found:
        train(study, words, folder, REHEARSED, REHEARSED)
    recipe = recipe_of(folder)
    options = OBJECTIVES.find(recipe.objective.name).options(**recipe.objective.options)
    images = recipe.batch_size * (1 + getattr(options, "ratio", 0))  # of which some have no label
    line = {
        "measure": "pace",
        "run": name,
        "seconds_per_step": found.seconds_per_step,
        "images_per_second": images / found.seconds_per_step,
        "captured": found.kinds == {CapturedStepper},
        "device": torch.cuda.get_device_name() if study.device == "cuda" else study.device,
    }
    study.add(line)
    shutil.rmtree(folder)
    return line


def _none(steps: int) -> list[str]:
    del steps
    return []


def timed(
    study: Study, name: str, words: list[str], folder: Path, minutes: float, options: Callable[[int], list[str]] = _none
) -> Line:
    """A run of so many minutes of steps; `options` are more words, for a number of steps."""
    pace = paced(study, name, words)
    steps = max(round(minutes * 60 / pace["seconds_per_step"]), 1)
    if (folder / "recipe.json").exists():  # it was begun with a number of its own
        total = str(read_json(folder / "recipe.json")["schedule"]["total"])
        steps = int(total.removesuffix(" steps"))
    return train(study, [*words, *options(steps)], folder, steps, max(steps // 20, 1))


def scaled_decay(data: str, steps: int) -> list[str]:
    """The weight decay of the recipe for a set, in a run of another length."""
    recipe = find_recipe(data)
    whole = steps_of(recipe.schedule.total, Pace(recipe.batch_size, IMAGES[data]))
    return ["--optimizer.weight-decay", f"{recipe.optimizer.weight_decay * whole / steps:.3g}"]


def scaling(study: Study, method: Method) -> Callable[[int], list[str]]:
    """What a method's run has more, for a number of steps."""
    return functools.partial(scaled_decay, study.data) if method.scaled else _none


def pace_all(study: Study, names: list[str]) -> list[str]:
    """The pace of every method that has one of its own."""
    failed = list[str]()
    for name in names:
        method = METHODS[name]
        if method.paced_by:
            continue
        part = None if method.learns == "images" else SOME
        words = [*base(study, method.named(study.data), 0, part), *method.options]
        try:
            if method.teacher:
                words += ["--objective.teacher", str(brief_teacher(study, method.teacher, SOME))]
            paced(study, name, words)
        except FailedError as error:  # the others may do
            failed.append(f"the pace of {name}: {error}")
    return failed


def brief_teacher(study: Study, name: str, part: float) -> Path:
    """A teacher whose student may be rehearsed: of so few steps that compiling them would take longer."""
    folder = study.folder("rehearsal", name, "teacher", os.getpid())
    words = [*base(study, METHODS[name].named(study.data), 0, part), "--no-compile"]
    train(study, words, folder, BRIEF, BRIEF)
    return folder


def base(study: Study, recipe: str, seed: int, part: float | None = None, start: Path | None = None) -> list[str]:
    """A recipe, with labels for a part of each class; the other images stay to be learned from without."""
    words = ["train", recipe, "--data.source", study.source, "--seed", str(seed)]
    if start is not None:
        words += ["--model.source", str(start), "--model.pretrained", "--model.set"]
    else:
        words += [*MODEL.get(study.data, ()), *(["--model.source", study.model] if study.model else [])]
    return words if part is None else [*words, *labelled(part, seed)]


def labelled(part: float, seed: int) -> list[str]:
    """Labels for a part of each class, others with each seed."""
    return ["--data.labelled", f"{part:g}", *(["--data.subset-seed", str(seed)] if seed and part < 1 else [])]


def cells(study: Study, name: str, seed: int, labels: list[float]) -> Iterator[Cell]:
    """A method's cells; one may need those before it."""
    method = METHODS[name]
    if method.learns == "images":
        yield from _without_labels(study, name, seed, labels)
        return
    if method.start:
        yield from _without_labels(study, method.start, seed, [])
    for part in labels:
        if part < 1 or method.learns == "labels":  # else no image is without a label
            yield from (_taught if method.teacher else _with_labels)(study, name, seed, part)


def _tried(
    study: Study, name: str, cell: Line, run: Callable[..., Line], minutes: float, needs: tuple[Path, ...] = ()
) -> Iterator[Cell]:
    """A cell with the best option, after the trials where it is of their part; with seed 0 it is one of them."""
    at_trial = cell["labels"] == METHODS[name].trials
    for option, words in METHODS[name].tried.items() if at_trial else ():
        yield Cell(study.trial(name, option), functools.partial(run, 0, option, words), minutes, needs=needs)

    def made() -> Line:
        best = study.best(name) if at_trial else None
        if best is None or cell["seed"]:
            return run(cell["seed"], "best", study.chosen(name))
        return {key: best[key] for key in best if key not in cell}

    yield Cell(cell, made, 0.0 if at_trial and not cell["seed"] else minutes, needs=needs)


def _there(*runs: Path | None) -> tuple[Path, ...]:
    return tuple(run for run in runs if run is not None)


def _with_labels(study: Study, name: str, seed: int, part: float) -> Iterator[Cell]:
    """One run."""
    method, cell = METHODS[name], {"method": name, "seed": seed, "labels": part, "measure": "accuracy"}
    minutes = study.minutes * method.share

    def run(seed: int, option: str = "", options: tuple[str, ...] = ()) -> Line:
        words = [*base(study, method.named(study.data), seed, part, study.start(name, seed)), *method.options, *options]
        folder = study.folder(name, seed, f"{part:g}", *option.split())
        return timed(study, name, words, folder, minutes, scaling(study, method))

    needs = _there(study.start(name, seed))
    if part == method.trials:
        yield from _tried(study, name, cell, run, minutes, needs)
    else:
        yield Cell(cell, functools.partial(run, seed), minutes, needs=needs)


def _taught(study: Study, name: str, seed: int, part: float) -> Iterator[Cell]:
    """A teacher by another method, with the option that was chosen for it, then its student; half of the time each.

    Both have the method's start, if there is one; the teacher's decay is then its recipe's own.
    """
    method, by = METHODS[name], METHODS[METHODS[name].teacher]
    half, folder = study.minutes * method.share / 2, study.folder(name, seed, f"{part:g}", "teacher")
    start = study.start(name, seed)
    cell: Line = {"method": name, "seed": seed, "labels": part, "measure": "accuracy"}

    def teacher() -> Line:
        words = [*base(study, by.named(study.data), seed, part, start), *by.options]
        own = study.chosen(method.teacher) if part == by.trials else ()
        return timed(study, method.teacher, [*words, *own], folder, half, _none if start else scaling(study, by))

    yield Cell(cell | {"measure": "teacher"}, teacher, half, leaves=folder, needs=_there(start))
    words = [*base(study, method.named(study.data), seed, part, start), *method.options]
    words += ["--objective.teacher", str(folder)]
    own = study.folder(name, seed, f"{part:g}")
    student = functools.partial(timed, study, name, words, own, half, scaling(study, method))
    yield Cell(cell, student, half, needs=_there(folder, start))


def _without_labels(study: Study, name: str, seed: int, labels: list[float]) -> Iterator[Cell]:
    """A run without labels, what its features know, and fine-tuned ones; first of all those that try options."""
    method, trained = METHODS[name], study.folder(name, seed)
    long, short = study.minutes * method.share, study.minutes * (1 - method.share)
    words = [*base(study, method.named(study.data), seed), *method.options]
    make = functools.partial(timed, study, name, words, trained, long)
    yield Cell({"method": name, "seed": seed, "measure": "pretraining"}, make, long, leaves=trained)
    for part in sorted(labels, key=lambda part: part != method.trials):
        cell: Line = {"method": name, "seed": seed, "labels": part}
        for protocol in ("knn", "linear"):
            make = functools.partial(evaluated, study, protocol, trained, part, seed)
            yield Cell(cell | {"measure": protocol}, make, needs=(trained,))

        def run(seed: int, option: str, options: tuple[str, ...], part: float = part) -> Line:
            fine = [*base(study, study.data, seed, part, study.folder(name, seed)), *options]
            folder = study.folder(name, seed, f"{part:g}", "finetuned", *option.split())
            return timed(study, "supervised", fine, folder, short)

        yield from _tried(study, name, cell | {"measure": "accuracy"}, run, short, needs=(trained,))


def missing(study: Study, found: list[Cell]) -> list[Cell]:
    """The cells without a line, and those that left a run which is gone and which one of these needs."""
    without = [study.find(**cell.line) is None for cell in found]
    needed = {folder for cell, is_new in zip(found, without, strict=True) if is_new for folder in cell.needs}
    gone = {folder for folder in needed if not (folder / "model").exists()}
    return [cell for cell, is_new in zip(found, without, strict=True) if is_new or cell.leaves in gone]


def fill(
    study: Study,
    todo: list[tuple[int, str]],
    labels: list[float],
    budget: float,
    measures: Sequence[str] = MEASURES,
    option: str | None = None,
) -> list[str]:
    """Make the cells that are missing of seeds and methods; what failed, and which were not begun."""
    failed, begun = list[str](), time.monotonic()
    for seed, name in todo:
        for cell in missing(study, list(cells(study, name, seed, labels))):
            if PART_OF.get(cell.line["measure"], cell.line["measure"]) not in measures:
                continue
            if option is not None and cell.line.get("option") != option:
                continue
            try:
                if (time.monotonic() - begun) / 60 + cell.minutes + SPARE > budget:
                    raise FailedError("there was no time left")
                if not all((folder / "model").exists() for folder in cell.needs):
                    raise FailedError("the run that it needs is not there")
                study.add({**cell.line, **cell.make()})
            except FailedError as error:  # the others may do
                failed.append(f"{cell.line}: {error}")
    return failed


def evaluated(study: Study, protocol: str, trained: Path, part: float, seed: int) -> Line:
    """A protocol's accuracy on frozen features of part of the labelled images, others with each seed."""
    out = trained / f"{protocol}-{part:g}.json"
    words = ["evaluate", protocol, "--model", str(trained), "--data", study.source, "--fraction", f"{part:g}"]
    words += ["--subset-seed", str(seed)] if seed and part < 1 else []
    words += ["--device", study.device, "--out", str(out)]
    begun = time.perf_counter()
    run(words)
    first, seconds = next(iter(read_json(out)["metrics"].values())), round(time.perf_counter() - begun, 1)
    return {"command": f"vitlab {shlex.join(words)}", "accuracy": first["value"], "seconds": seconds}


def table(lines: list[Line], labels: list[float]) -> Iterator[str]:
    """Accuracies in %, the mean and the standard deviation of several seeds; below, the commands."""
    columns = [(measure, part) for measure in TITLES for part in labels]
    heads = [f"{TITLES[measure]}, {part:.0%}" for measure, part in columns]
    yield f"| method | {' | '.join(heads)} | images per second |"
    yield "|-" * (len(heads) + 2) + "|"
    paces = {line["run"]: _pace(line) for line in lines if line["measure"] == "pace"}
    for name in METHODS:
        own = [line for line in lines if line.get("method") == name and line.get("accuracy") is not None]
        values = [[line["accuracy"] for line in own if (line["measure"], line.get("labels")) == at] for at in columns]
        if any(values):
            pace = f"as {METHODS[name].paced_by}" if METHODS[name].paced_by else paces.get(name, "")
            yield f"| {name} | {' | '.join(map(_said, values))} | {pace} |"
    yield ""
    yield from (f"    {line['command']}" for line in lines if "command" in line)


def _said(values: list[float]) -> str:
    if not values:
        return ""
    spread = f" ± {100 * statistics.stdev(values):.2f} ({len(values)})" if len(values) > 1 else ""
    return f"{100 * statistics.mean(values):.2f}{spread}"


def _pace(line: Line) -> str:
    return f"{line['images_per_second']:,.0f}{'' if line['captured'] else ', not captured'}"


def jobs_of(names: list[str], seeds: list[int], labels: list[float], words: list[str]) -> list[Job]:
    """The processes that make all cells: a run without labels and its trials, then what needs these; by seed."""
    found: dict[str, Job] = {}

    def add(
        name: str, seed: int, parts: list[float], suffix: str, after: Sequence[str], *measures: str, option: str = ""
    ) -> str:
        cells = ["--methods", name, "--seeds", str(seed), "--labels", *(f"{part:g}" for part in parts)]
        chosen = [*(["--measures", *measures] if measures else []), *(["--option", option] if option else [])]
        own, there = f"{name}-{seed}{suffix}", tuple(other for other in after if other in found)
        found[own] = Job(own, (*words, *cells, *chosen), there)
        return own

    def tried(name: str) -> list[float]:
        return [METHODS[name].trials] if METHODS[name].trials in labels else labels[:1]

    without = [name for name in names if METHODS[name].learns == "images"]
    for seed in seeds:
        first = {
            name: add(name, seed, tried(name), "", [f"{name}-0"], "pretraining", "accuracy") for name in without
        }  # with seed 0 the options are chosen
        for name in [name for name in names if name not in without]:
            for part in [part for part in labels if part < 1 or METHODS[name].learns == "labels"]:
                tuned = [by for by in (name, METHODS[name].teacher) if by and METHODS[by].trials == part]
                after = [f"{by}-0-{part:g}" for by in tuned]
                after += [f"{METHODS[name].start}-{seed}"]
                for option in METHODS[name].tried if part == METHODS[name].trials and not seed else ():
                    suffix = "-".join(["", f"{part:g}", *option.replace(",", "").split()])
                    after.append(add(name, seed, [part], suffix, [], option=option))
                add(name, seed, [part], f"-{part:g}", after)
        for name, own in first.items():
            if others := [part for part in labels if part not in tried(name)]:
                add(name, seed, others, "-others", [own], "accuracy")
            add(name, seed, labels, "-frozen", [own], "knn", "linear")
    return list(found.values())


def side_by_side(study: Study, names: list[str], given: argparse.Namespace) -> list[str]:
    """All that is asked for by processes of this script."""
    words = [sys.executable, str(Path(__file__).resolve()), "--data", study.data, "--source", study.source]
    words += ["--minutes", f"{study.minutes:g}", "--device", study.device, "--out", str(study.out)]
    words += ["--results", str(study.results), *(["--model", study.model] if study.model else [])]
    logs = study.out / "logs"
    whose = dict.fromkeys(["supervised", *(METHODS[name].paced_by or name for name in names)])
    to_pace = [name for name in whose if study.find(measure="pace", run=name) is None]
    together = str(len(to_pace))
    paces = [Job(f"pace-{name}", (*words, "--pace", "--methods", name, "--together", together)) for name in to_pace]
    shutil.rmtree(arrivals(study.results.with_suffix(".lock")), ignore_errors=True)  # of a pace that was stopped
    if failed := run_jobs(paces, len(paces), logs):
        return failed  # a cell without would rehearse beside the others
    return run_jobs(jobs_of(names, given.seeds, given.labels, words), given.jobs, logs)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", choices=["cifar10", "tiny-imagenet", "digits"], default="cifar10")
    parser.add_argument("--source", help="where the data are; by default the name")
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    parser.add_argument("--labels", nargs="+", type=float, default=[0.01, 0.1, 1.0], help="parts of the labels")
    parser.add_argument("--measures", nargs="+", choices=MEASURES, default=MEASURES, help="of each method")
    parser.add_argument("--option", help="make only this trial of the methods")
    parser.add_argument("--model", help="a row of the zoo in the place of the recipes' own ViT")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--minutes", type=float, default=4.0, help="of steps, for a cell in all")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, default=Path("runs/methods"), help="where the runs are")
    parser.add_argument("--results", type=Path, help="the lines of results; by default OUT/results.jsonl")
    parser.add_argument("--budget", type=float, default=float("inf"), help="minutes after which no cell may end")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--pace", action="store_true", help="measure the time of every method's step, and no more")
    parser.add_argument("--together", type=int, default=1, help="with --pace: processes that measure one method each")
    parser.add_argument("--table", action="store_true", help="print the table of what is there, and run nothing")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    results = given.results or given.out / "results.jsonl"
    source, together = given.source or given.data, given.together
    study = Study(given.data, source, given.minutes, given.device, given.out, results, given.model, together)
    names = [name for name in given.methods if METHODS[name].named(given.data) in recipe_names()]
    todo = [] if given.table or given.pace else [(seed, name) for seed in given.seeds for name in names]
    if given.pace:
        failed = pace_all(study, names)
    elif given.jobs > 1 and not given.table:
        failed = side_by_side(study, names, given)
    else:
        failed = fill(study, todo, given.labels, given.budget, given.measures, given.option)
    lines = [line for line in study.lines() if study.is_own(line)]
    print("\n".join(["", *table(lines, given.labels)]))
    print(*failed, sep="\n", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())

"""Every way to learn with few labels or none, by one ViT in the same time: the tables of docs/results/methods.md.

    python benchmarks/methods.py --data cifar10 --source data/cifar-10-batches-py --out runs/methods
    python benchmarks/methods.py --data tiny-imagenet --methods supervised mae dino --seeds 0 1 2 --out runs/methods
    python benchmarks/methods.py --data digits --minutes 0.1 --out runs/methods
    python benchmarks/methods.py --data cifar10 --out runs/methods --table

A cell has --minutes of steps in all, compilation and evaluations aside: supervised and semi-supervised methods spend
them on one run for each part of the labels, Noisy Student half of them on its teacher; those without labels spend three
quarters on one run without, which nearest neighbours and a linear classifier measure, and a quarter on fine-tuning it
for each part. How many steps that is, a short rehearsal tells, so that schedules end in time. Fine-tuning is by the
supervised recipe: its augmentation, averaging and decay. `few-labels` is supervised with the augmentation, averaging
and batch of the semi-supervised ones.

Every cell is one command of `vitlab`, which is printed and kept beside its result. Results are lines of
OUT/results.jsonl; cells that are there are not run again, and a run that was stopped is resumed: a study grows over as
many sessions as it takes.
"""

import argparse
import json
import os
import shlex
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias
from unittest import mock

import torch

from vitlab.cli import main as vitlab
from vitlab.core.record import read_json
from vitlab.recipes import recipe_names
from vitlab.training.captured import CapturedStepper

Line: TypeAlias = dict[str, Any]

SHARE = 0.25  # of the time, for fine-tuning what was trained without labels
REHEARSED = 60  # steps of a rehearsal, of which the last third is timed
MEASURES = ("knn", "linear", "accuracy")
TITLES = {"knn": "k-NN", "linear": "linear", "accuracy": "trained on the labels"}
# one ViT for all: CIFAR-10's and Tiny-ImageNet's recipes agree on theirs
MODEL = {"digits": ("--model.set", "pool=mean", "class_token=false", "positions_std=0.5")}


@dataclass(frozen=True)
class Method:
    """A recipe's name but for the data's, its options, and what its run learns from."""

    recipe: str
    learns: Literal["labels", "both", "images"]
    options: tuple[str, ...] = ()
    not_on: tuple[str, ...] = ()  # data
    teacher: str = ""  # the method that trains its teacher, in half of the time

    def named(self, data: str) -> str:
        return f"{self.recipe}-{data}" if self.recipe else data


METHODS = {
    "supervised": Method("", "labels"),
    "masked-patches": Method("masked-patches", "images"),
    "masked-patches-thumbnail": Method(
        "masked-patches", "images", ("--objective.target", "thumbnail"), not_on=("digits",)
    ),
    "masked-patches-pixels": Method("masked-patches", "images", ("--objective.target", "pixels")),
    "mae": Method("mae", "images"),
    "dino": Method("dino", "images"),
    "dino-ibot": Method("dino", "images", ("--objective.patch-weight", "1")),
    "simclr": Method("simclr", "images"),
    "lejepa": Method("lejepa", "images"),
    "few-labels": Method("few-labels", "labels"),
    "fixmatch": Method("fixmatch", "both"),
    "noisy-student": Method("noisy-student", "both", teacher="few-labels"),
    "meta-pseudo-labels": Method("meta-pseudo-labels", "both"),
}


@dataclass(frozen=True)
class Study:
    """What is asked for, and the lines of results that are there."""

    data: str
    source: str
    minutes: float
    device: str
    out: Path

    @property
    def results(self) -> Path:
        return self.out / "results.jsonl"

    def lines(self) -> list[Line]:
        """All results; a line that a kill left half is none."""
        found: list[Line] = []
        for text in self.results.read_text().splitlines() if self.results.exists() else ():
            try:
                found.append(json.loads(text))
            except json.JSONDecodeError:
                continue
        return found

    def find(self, **cell: Any) -> Line | None:
        wanted = {"data": self.data, "minutes": self.minutes, **cell}
        return next((line for line in self.lines() if wanted.items() <= line.items()), None)

    def add(self, line: Line) -> None:
        """In one write of one line, synced."""
        text = json.dumps({"data": self.data, "minutes": self.minutes, **line})
        handle = os.open(self.results, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            os.write(handle, f"{text}\n".encode())
            os.fsync(handle)
        finally:
            os.close(handle)

    def folder(self, *parts: object) -> Path:
        return self.out / self.data / "-".join(str(part) for part in (f"{self.minutes:g}min", *parts))


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
    elif not folder.exists():
        run(whole)
    result = read_json(folder / "result.json")
    found = {"command": f"vitlab {shlex.join(whole)}", "steps": result["step"], "seconds": result["seconds"]}
    return found | {"accuracy": result.get("test accuracy")}


def paced(study: Study, name: str, words: list[str]) -> Line:
    """The time of a step by a rehearsal, images per second, and whether the step is one CUDA graph."""
    if (known := study.find(measure="pace", run=name)) is not None:
        return known
    folder = study.folder("rehearsal", name)
    shutil.rmtree(folder, ignore_errors=True)  # what an earlier one left
    captured: list[bool] = []
    prepare = CapturedStepper.prepare

    def noting(stepper: CapturedStepper) -> None:
        captured.append(True)
        prepare(stepper)

    with mock.patch.object(CapturedStepper, "prepare", noting):
        train(study, words, folder, REHEARSED, REHEARSED // 3)
    logged = [json.loads(text) for text in (folder / "metrics.jsonl").read_text().splitlines()]
    last = [line for line in logged if "seconds per step" in line][-1]
    line = {
        "measure": "pace",
        "run": name,
        "seconds_per_step": last["seconds per step"],
        "images_per_second": last["images per second"],
        "captured": bool(captured),
        "device": torch.cuda.get_device_name() if study.device == "cuda" else study.device,
    }
    study.add(line)
    shutil.rmtree(folder)
    return line


def timed(study: Study, name: str, words: list[str], folder: Path, minutes: float) -> Line:
    """A run of so many minutes of steps."""
    pace = paced(study, name, words)
    steps = max(round(minutes * 60 / pace["seconds_per_step"]), 1)
    if (folder / "recipe.json").exists():  # it was begun with a number of its own
        total = str(read_json(folder / "recipe.json")["schedule"]["total"])
        steps = int(total.removesuffix(" steps"))
    return train(study, words, folder, steps, max(steps // 20, 1))


def base(study: Study, recipe: str, seed: int) -> list[str]:
    return ["train", recipe, "--data.source", study.source, "--seed", str(seed), *MODEL.get(study.data, ())]


def _few(part: float) -> list[str]:
    """Labels for that part of each class; the other images stay to be learned from without."""
    return ["--data.labelled", f"{part:g}"]


def cells(study: Study, name: str, seed: int, labels: list[float]) -> Iterator[tuple[Line, Callable[[], Line]]]:
    """What a method's cells are called, and what makes each; one needs those before it."""
    method = METHODS[name]
    recipe = method.named(study.data)
    if method.learns != "images":
        for part in labels:
            if part == 1 and method.learns == "both":
                continue  # no image is without a label
            words = [*base(study, recipe, seed), *method.options, *_few(part)]
            folder = study.folder(name, seed, f"{part:g}")
            cell: Line = {"method": name, "seed": seed, "labels": part, "measure": "accuracy"}
            if not method.teacher:
                yield cell, lambda words=words, folder=folder: timed(study, name, words, folder, study.minutes)
                continue
            teacher, by = study.folder(name, seed, f"{part:g}", "teacher"), METHODS[method.teacher]
            taught = [*base(study, by.named(study.data), seed), *by.options, *_few(part)]
            yield (
                cell | {"measure": "teacher"},
                lambda taught=taught, teacher=teacher: timed(study, method.teacher, taught, teacher, study.minutes / 2),
            )
            words += ["--objective.teacher", str(teacher)]
            yield cell, lambda words=words, folder=folder: timed(study, name, words, folder, study.minutes / 2)
        return
    trained, words = study.folder(name, seed), [*base(study, recipe, seed), *method.options]
    yield (
        {"method": name, "seed": seed, "measure": "pretraining"},
        lambda: timed(study, name, words, trained, study.minutes * (1 - SHARE)),
    )
    for part in labels:
        for protocol in ("knn", "linear"):
            yield (
                {"method": name, "seed": seed, "labels": part, "measure": protocol},
                lambda protocol=protocol, part=part: evaluated(study, protocol, trained, part),
            )
        supervised = ["train", study.data, "--data.source", study.source, "--seed", str(seed)]
        fine = [*supervised, "--model.source", str(trained), "--model.pretrained", "--model.set"]
        fine += _few(part)
        folder = study.folder(name, seed, f"{part:g}", "finetuned")
        yield (
            {"method": name, "seed": seed, "labels": part, "measure": "accuracy"},
            lambda fine=fine, folder=folder: timed(study, "finetuning", fine, folder, study.minutes * SHARE),
        )


def evaluated(study: Study, protocol: str, trained: Path, part: float) -> Line:
    """A protocol's accuracy on frozen features of part of the labelled images."""
    out = trained / f"{protocol}-{part:g}.json"
    words = ["evaluate", protocol, "--model", str(trained), "--data", study.source, "--fraction", f"{part:g}"]
    words += ["--device", study.device, "--out", str(out)]
    begun = time.perf_counter()
    run(words)
    metrics = read_json(out)["metrics"]
    first = next(iter(metrics.values()))
    return {
        "command": f"vitlab {shlex.join(words)}",
        "accuracy": first["value"],
        "seconds": round(time.perf_counter() - begun, 1),
    }


def table(lines: list[Line], labels: list[float]) -> Iterator[str]:
    """Accuracies in %, the mean and the standard deviation of several seeds; below, the commands."""
    columns = [(measure, part) for measure in MEASURES for part in labels]
    heads = [f"{TITLES[measure]}, {part:.0%}" for measure, part in columns]
    yield f"| method | {' | '.join(heads)} | images per second |"
    yield "|-" * (len(heads) + 2) + "|"
    paces = {line["run"]: line for line in lines if line["measure"] == "pace"}
    for name in METHODS:
        own = [line for line in lines if line.get("method") == name and line.get("accuracy") is not None]
        if not own:
            continue
        values = [[line["accuracy"] for line in own if _at(line) == column] for column in columns]
        yield f"| {name} | {' | '.join(map(_said, values))} | {_pace(paces.get(name))} |"
    yield ""
    for line in lines:
        if "command" in line:
            yield f"    {line['command']}"


def _at(line: Line) -> tuple[str, float | None]:
    return line["measure"], line.get("labels")


def _said(values: list[float]) -> str:
    if not values:
        return ""
    spread = f" ± {100 * statistics.stdev(values):.2f} ({len(values)})" if len(values) > 1 else ""
    return f"{100 * statistics.mean(values):.2f}{spread}"


def _pace(line: Line | None) -> str:
    if line is None:
        return ""
    return f"{line['images_per_second']:,.0f}{'' if line['captured'] else ', not captured'}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", choices=["cifar10", "tiny-imagenet", "digits"], default="cifar10")
    parser.add_argument("--source", help="where the data are; by default the name")
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    parser.add_argument("--labels", nargs="+", type=float, default=[0.01, 0.1, 1.0], help="parts of the labels")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--minutes", type=float, default=4.0, help="of steps, for a cell in all")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, default=Path("runs/methods"))
    parser.add_argument("--table", action="store_true", help="print the table of what is there, and run nothing")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    study = Study(given.data, given.source or given.data, given.minutes, given.device, given.out)
    failed: list[str] = []
    for seed in () if given.table else given.seeds:
        for name in given.methods:
            if given.data in METHODS[name].not_on or METHODS[name].named(given.data) not in recipe_names():
                print(f"{name} has no recipe for {given.data}.", file=sys.stderr)
                continue
            try:
                for cell, make in cells(study, name, seed, given.labels):
                    if study.find(**cell) is None:
                        study.add({**cell, **make()})
            except FailedError as error:  # the others may do
                failed.append(f"{name}: {error}")
    lines = [line for line in study.lines() if (line["data"], line["minutes"]) == (study.data, study.minutes)]
    print("\n".join(["", *table(lines, given.labels)]))
    for sentence in failed:
        print(f"failed: {sentence}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())

"""The protocols that measure without training, each from a subject and a data set to a result."""

import dataclasses
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch

from vitlab.core.config import to_dict
from vitlab.core.errors import unknown_name
from vitlab.core.record import environment
from vitlab.data.contract import DataSet, Split
from vitlab.data.jpeg import decoder_name
from vitlab.evaluation import fewshot, knn, linear
from vitlab.evaluation.accuracy import Accuracy
from vitlab.evaluation.average_precision import MultiLabelAccuracy
from vitlab.evaluation.contract import EvaluationError, Result, Subject
from vitlab.evaluation.examples import Outcome
from vitlab.evaluation.features import Features, Progress, Reading, extract, outputs
from vitlab.evaluation.options import (
    OPTIONS,
    AccuracyOptions,
    FewshotOptions,
    KnnOptions,
    LinearOptions,
    RealOptions,
)
from vitlab.evaluation.real import RealAccuracy, RealLabels
from vitlab.evaluation.subject import for_classes
from vitlab.evaluation.testtime import TestTime, averaged


@dataclass(frozen=True, kw_only=True)
class Task:
    """What is measured on what: `split` is the part that the figures are about."""

    subject: Subject
    dataset: DataSet
    split: str
    reading: Reading
    progress: Progress | None = None

    @property
    def measured(self) -> Split:
        return self.dataset.splits[self.split]

    def features(self, split: str) -> Features:
        data = f"{self.dataset.fingerprint} {split}"
        return extract(self.subject, self.dataset.splits[split], data, self.reading, self.progress)


Protocol: TypeAlias = Callable[[Task, Any], Outcome]


def measure(
    protocol: str,
    subject: Subject,
    dataset: DataSet,
    *,
    split: str | None = None,
    options: Any = None,
    views: TestTime | None = None,
    reading: Reading | None = None,
    progress: Progress | None = None,
) -> Result:
    """A protocol's result, with all that made it; `options` are the protocol's own of `vitlab.evaluation.options`."""
    if protocol not in PROTOCOLS:
        raise unknown_name("protocol", protocol, PROTOCOLS, f" The protocols are {', '.join(PROTOCOLS)}.")
    chosen = OPTIONS[protocol]() if options is None else options
    assert isinstance(chosen, OPTIONS[protocol])
    start = time.perf_counter()
    views, reading = views or TestTime(), reading or Reading()
    name = choose_split(dataset, split)
    seen = averaged(subject, views, multi_label=dataset.multi_label)
    task = Task(subject=seen, dataset=dataset, split=name, reading=reading, progress=progress)
    outcome = PROTOCOLS[protocol](task, chosen)
    return Result(
        protocol=protocol,
        model=subject.name,
        data=dataset.name,
        metrics=outcome.metrics,
        counts={name if key == "test" else key: count for key, count in outcome.counts.items()},
        seeds=outcome.seeds,
        settings={
            "split": name,
            "resolution": list(subject.preprocess.size),
            "preprocess": to_dict(subject.preprocess),
            "views": dataclasses.asdict(views),
            "batch_size": reading.batch_size,
            "processes": reading.share.world,
            "device": subject.device.type,
            "weights": subject.fingerprint,
            "data": dataset.fingerprint,
            **to_dict(chosen),
            **outcome.settings,
        },
        selected=outcome.selected,
        details=outcome.details,
        seconds=time.perf_counter() - start,
        environment=environment(decoder_name()),
    )


def choose_split(dataset: DataSet, split: str | None) -> str:
    """The split that was asked for, or else test, or else val."""
    if split is None:
        split = next((name for name in ("test", "val") if name in dataset.splits), None)
        if split is None:
            raise EvaluationError(f"{dataset.name} has neither a test nor a val part: name a split (--split train).")
    if split not in dataset.splits:
        there = ", ".join(dataset.splits)
        raise EvaluationError(f"{dataset.name} has no split '{split}': it has {there}.")
    return split


def _accuracy(task: Task, options: AccuracyOptions) -> Outcome:
    del options
    subject, matched = for_classes(task.subject, task.dataset.classes)
    assert subject.logits is not None
    _check_labels(task)
    counter = (MultiLabelAccuracy if task.dataset.multi_label else Accuracy)(task.dataset.num_classes)
    for batch in outputs(subject.logits, subject, task.measured, task.reading, task.progress):
        if isinstance(counter, Accuracy):
            counter.add(batch.values, torch.from_numpy(batch.labels))
        else:
            counter.add(batch.values.numpy(), batch.labels)
    outcome = counter.outcome(task.dataset.classes)
    counts = {task.split if key == "images" else key: count for key, count in outcome.counts.items()}
    return dataclasses.replace(
        outcome,
        counts=_with_damaged(counts, len(task.measured) - counts[task.split]),
        settings={**outcome.settings, "classes_matched": matched},
    )


def _real(task: Task, options: RealOptions) -> Outcome:
    if task.subject.logits is None:
        raise EvaluationError(f"{task.subject.name} has no classifier: ReaL needs one with ImageNet's classes.")
    counter, images = RealAccuracy(RealLabels.read(Path(options.labels))), task.measured.images
    for batch in outputs(task.subject.logits, task.subject, task.measured, task.reading, task.progress):
        counter.add(batch.values, [images.where(index) for index in batch.indices.tolist()])
    return counter.outcome()


def _fewshot(task: Task, options: FewshotOptions) -> Outcome:
    train, test = _train_and_test(task)
    outcome = fewshot.fewshot(
        train.values,
        train.labels,
        test.values,
        test.labels,
        shots=options.shots,
        seeds=options.seeds,
        l2=fewshot.SWEEP if options.sweep else options.l2,
        num_classes=task.dataset.num_classes,
        device=task.subject.device,
    )
    return _noted(outcome, train, test)


def _linear(task: Task, options: LinearOptions) -> Outcome:
    train, test = _train_and_test(task)
    val = task.features("val") if task.split != "val" and "val" in task.dataset.splits else None
    outcome = linear.linear(
        train.values,
        train.labels,
        test.values,
        test.labels,
        val_x=None if val is None else val.values,
        val_y=None if val is None else val.labels,
        l2s=options.l2s,
        probe=linear.Probe(solver=options.solver, epochs=options.epochs, seed=options.seed),
        holdout=options.holdout,
        num_classes=task.dataset.num_classes,
        classes=task.dataset.classes,
        device=task.subject.device,
    )
    return _noted(outcome, train, test, *(() if val is None else (val,)))


def _knn(task: Task, options: KnnOptions) -> Outcome:
    train, test = _train_and_test(task)
    outcome = knn.knn(
        train.values,
        train.labels,
        test.values,
        test.labels,
        ks=options.ks or None,
        weights=options.weights,
        temperature=options.temperature,
        holdout=options.holdout,
        num_classes=task.dataset.num_classes,
        device=task.subject.device,
    )
    return _noted(outcome, train, test)


PROTOCOLS: dict[str, Protocol] = {
    "accuracy": _accuracy,
    "real": _real,
    "fewshot": _fewshot,
    "linear": _linear,
    "knn": _knn,
}


def _train_and_test(task: Task) -> tuple[Features, Features]:
    """The features to learn from and those to measure on."""
    if task.dataset.multi_label:
        raise EvaluationError(f"{task.dataset.name} has several labels an image: measure it with accuracy (mAP).")
    if "train" not in task.dataset.splits:
        raise EvaluationError(f"{task.dataset.name} has no train part to learn from: it has {task.split} only.")
    if task.split == "train":
        raise EvaluationError("What is learned from train cannot be measured on train: choose another split.")
    _check_labels(task)
    return task.features("train"), task.features(task.split)


def _check_labels(task: Task) -> None:
    """Labels that no class has are refused before anything is computed."""
    for name, split in task.dataset.splits.items():
        if split.labels.ndim == 1 and len(split):
            for label in (int(split.labels.min()), int(split.labels.max())):
                if not 0 <= label < task.dataset.num_classes:
                    raise EvaluationError(
                        f"{task.dataset.name} has the label {label} in {name}, but {task.dataset.num_classes} classes,"
                        f" numbered 0 to {task.dataset.num_classes - 1}: correct the labels."
                    )


def _noted(outcome: Outcome, *parts: Features) -> Outcome:
    return dataclasses.replace(outcome, counts=_with_damaged(outcome.counts, sum(len(part.damaged) for part in parts)))


def _with_damaged(counts: Mapping[str, int], damaged: int) -> dict[str, int]:
    return {**counts, **({"unreadable": damaged} if damaged else {})}

"""The protocols that measure without training, each from a subject and a data set to a result."""

import dataclasses
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
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
from vitlab.evaluation.real import NUM_CLASSES, RealAccuracy, RealLabels
from vitlab.evaluation.subject import FEATURES, for_classes
from vitlab.evaluation.testtime import TestTime, averaged
from vitlab.weights.imagenet import imagenet_classes

log = logging.getLogger("vitlab")


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
            "notes": list(dataset.notes),
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
    otherwise = "" if task.dataset.multi_label else FEATURES  # which are not measured by several labels
    subject, matched = for_classes(task.subject, task.dataset.classes, otherwise=otherwise)
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
    labels, images = RealLabels.read(Path(options.labels)), task.measured.images
    labels.check(images)
    if len(images) < len(labels.labels):
        log.warning(
            "ReaL over a part: %s of %s validation images are there.", f"{len(images):,}", f"{len(labels.labels):,}"
        )
    subject, matched = task.subject, "by number"
    if subject.labels is not None and len(subject.labels) >= NUM_CLASSES:  # perhaps in another order, or among others
        subject, matched = for_classes(subject, [wordnet for wordnet, _ in imagenet_classes()])
    assert subject.logits is not None
    counter = RealAccuracy(labels)
    for batch in outputs(subject.logits, subject, task.measured, task.reading, task.progress):
        counter.add(batch.values, [images.where(index) for index in batch.indices.tolist()])
    outcome = counter.outcome()
    return dataclasses.replace(
        outcome,
        counts=_with_damaged(outcome.counts, len(images) - outcome.counts["images"]),
        settings={**outcome.settings, "classes_matched": matched},
    )


def _fewshot(task: Task, options: FewshotOptions) -> Outcome:
    _check_parts(task)
    shots = _possible_shots(task, options.shots)
    train, test = _train_and_test(task)
    outcome = fewshot.fewshot(
        train.values,
        train.labels,
        test.values,
        test.labels,
        shots=shots,
        seeds=options.seeds,
        l2=fewshot.SWEEP if options.sweep else options.l2,
        num_classes=task.dataset.num_classes,
        device=task.subject.device,
        progress=task.progress,
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
        progress=task.progress,
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
        progress=task.progress,
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
    _check_parts(task)
    return task.features("train"), task.features(task.split)


def _check_parts(task: Task) -> None:
    """What cannot be learned from is refused before anything is computed."""
    if task.dataset.multi_label:
        raise EvaluationError(f"{task.dataset.name} has several labels an image: measure it with accuracy (mAP).")
    if "train" not in task.dataset.splits:
        raise EvaluationError(f"{task.dataset.name} has no train part to learn from: it has {task.split} only.")
    if task.split == "train":
        raise EvaluationError("What is learned from train cannot be measured on train: choose another split.")
    _check_labels(task)
    train, test = (task.dataset.splits[name].counts(task.dataset.num_classes) for name in ("train", task.split))
    unseen = np.flatnonzero((test > 0) & (train == 0)).tolist()
    if unseen:
        more = f" and {len(unseen) - 1} more" if len(unseen) > 1 else ""
        raise EvaluationError(
            f"{task.dataset.name}: {task.split} has images of the class '{task.dataset.classes[unseen[0]]}'{more}, but"
            " train has none to learn it from: add some, or fine-tune on all of it (`vitlab evaluate finetune`)."
        )


def _possible_shots(task: Task, asked: tuple[int, ...]) -> tuple[int, ...]:
    """The shots that were asked for, or those of the usual ones that every class has images for."""
    counts = task.dataset.splits["train"].counts(task.dataset.num_classes)
    scarce = int(counts.argmin())
    fewest, name = int(counts[scarce]), task.dataset.classes[scarce]
    wanted = asked or fewshot.SHOTS
    possible = tuple(k for k in wanted if k <= fewest)
    if not possible or (asked and possible != asked):
        raise EvaluationError(
            f"The class '{name}' has {fewest} training image{'s' * (fewest != 1)}, fewer than the {max(asked)} shots"
            " that were asked for: ask for fewer."
            if asked and fewest
            else f"The class '{name}' has no training image, so that no shots can be drawn of it."
        )
    if possible != wanted:
        left_out = " and ".join(str(k) for k in wanted if k not in possible)
        log.warning("%s shots are left out: the class '%s' has %d training images.", left_out, name, fewest)
    return possible


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

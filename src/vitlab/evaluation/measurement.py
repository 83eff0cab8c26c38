"""A subject and a data set, opened: what a protocol's function reads, and what it refuses before it computes."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

import numpy as np

from vitlab.data.contract import DataSet, Split
from vitlab.data.sources.holdout import fraction_of_train
from vitlab.evaluation.contract import EvaluationError, Outcome, Subject
from vitlab.evaluation.features import Features, Progress, Reading, extract


@final
@dataclass(frozen=True, kw_only=True)
class Measurement:
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

    def train_and_test(self, fraction: float = 1.0, subset_seed: int = 0) -> tuple[Features, Features]:
        """The features to learn from, of a part of each class, and those to measure on."""
        self.check_parts()
        if not 0 < fraction <= 1:
            raise EvaluationError(f"The fraction of train must be above 0 and at most 1, not {fraction}.")
        if fraction < 1:
            part = dataclasses.replace(self, dataset=fraction_of_train(self.dataset, fraction, subset_seed))
            return part.features("train"), self.features(self.split)
        return self.features("train"), self.features(self.split)

    def check_parts(self) -> None:
        """What cannot be learned from is refused before anything is computed."""
        dataset = self.dataset
        if dataset.multi_label:
            raise EvaluationError(f"{dataset.name} has several labels per image: measure it with accuracy (mAP).")
        if "train" not in dataset.splits:
            raise EvaluationError(f"{dataset.name} has no train part to learn from: it has {self.split} only.")
        if self.split == "train":
            raise EvaluationError("What is learned from train cannot be measured on train: choose another split.")
        self.check_labels("train", self.split)
        train, test = (dataset.splits[name].counts(dataset.num_classes) for name in ("train", self.split))
        unseen = np.flatnonzero((test > 0) & (train == 0)).tolist()
        if unseen:
            more = f" and {len(unseen) - 1} more" if len(unseen) > 1 else ""
            raise EvaluationError(
                f"{dataset.name}: {self.split} has images of the class '{dataset.classes[unseen[0]]}'{more}, but"
                " train has none to learn it from: add some, or fine-tune on all of it (`vitlab evaluate finetune`)."
            )

    def check_labels(self, *needed: str) -> None:
        """Labels that no class has, or of a kind that has no classes, are refused before anything is computed."""
        name, num_classes = self.dataset.name, self.dataset.num_classes
        for part in needed:
            kind = self.dataset.splits[part].label.kind  # an error where there are none
            if kind not in ("class", "several"):
                raise EvaluationError(
                    f"{name} has a {kind} label per image in {part}, and this measures classes: `vitlab evaluate score`"
                    " measures what a model's own task does."
                )
        for part, split in self.dataset.splits.items():
            if "label" in split.targets and split.label.kind == "class" and len(split):
                for label in (int(split.labels.min()), int(split.labels.max())):
                    if not 0 <= label < num_classes:
                        raise EvaluationError(
                            f"{name} has the label {label} in {part}, but {num_classes} classes,"
                            f" numbered 0 to {num_classes - 1}: correct the labels."
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


def noted(outcome: Outcome, *parts: Features) -> Outcome:
    """The outcome with the number of images that could not be read."""
    return dataclasses.replace(outcome, counts=with_damaged(outcome.counts, sum(len(part.damaged) for part in parts)))


def with_damaged(counts: Mapping[str, int], damaged: int) -> dict[str, int]:
    return {**counts, **({"unreadable": damaged} if damaged else {})}

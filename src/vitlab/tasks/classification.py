"""Which class per image is of, or which of several labels it has."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, final

import numpy as np
import torch
from torch import Tensor

from vitlab.core.errors import ConfigError, DataError, Error
from vitlab.data.contract import DataSet, Split
from vitlab.models.contract import Model
from vitlab.objectives.cross_entropy import CrossEntropy, Loss
from vitlab.tasks import classification_remarks, classification_report
from vitlab.tasks.classification_results import ClassExaminer, OneLabel, SeveralLabels
from vitlab.tasks.contract import Answer, ReportContext, Scored, Scorer, Scores, Section, Task, TaskKind
from vitlab.tasks.results import Example
from vitlab.tasks.sections import Opening, Remark


@dataclass(frozen=True)
class ClassificationOptions:
    """Everything follows from the data's labels."""


@final
class Classification(Task):
    """One class per image (softmax), or several labels (sigmoid), as the labels' kind says."""

    tells_classes = True
    shares = frozenset({"score", "accuracy"})
    protocol = "accuracy"
    terms = classification_report.TERMS

    def __init__(self, options: ClassificationOptions | None = None) -> None:
        del options

    def check(self, dataset: DataSet) -> None:
        train = dataset.splits.get("train")
        if train is None or len(train) == 0:
            raise Error(f"{dataset.name} has no training images.")
        if "label" not in train.targets:
            raise DataError(
                f"{dataset.name} has no labels, and a classifier learns from labels: put the images into one folder"
                " per class, as in cat/1.jpg."
            )
        if not train.has_classes:
            raise DataError(f"{dataset.name} has numbers as labels, and a classifier learns classes: choose its task.")
        if dataset.num_classes < 2:
            raise Error(f"{dataset.name} has one class only ('{dataset.classes[0]}'): a classifier needs two or more.")
        val = dataset.splits.get("val")
        if not (dataset.multi_label or dataset.fixed_classes):
            counts = train.counts(dataset.num_classes) + (0 if val is None else val.counts(dataset.num_classes))
            few = [name for name, count in zip(dataset.classes, counts, strict=True) if count < 2]
            if few:
                raise Error(
                    f"{dataset.name}: the class '{few[0]}' has fewer than two images, too few to learn from and to"
                    " check: add some, or leave the class out."
                )

    def fields(self, dataset: DataSet) -> dict[str, Any]:
        return {"num_classes": dataset.num_classes}

    def fit(self, model: Model, dataset: DataSet) -> None:
        model.labels, model.multi_label = dataset.classes, dataset.multi_label

    def criterion(self, loss: Loss, dataset: DataSet, train: Split) -> CrossEntropy:
        """Class weights are the inverse of the training counts, 1 on average."""
        weights, num_classes = None, dataset.num_classes
        if loss.class_weights:
            counts = np.maximum(train.counts(num_classes), 1)
            weights = torch.tensor(counts.sum() / (num_classes * counts), dtype=torch.float32)
        return CrossEntropy(
            loss_kind(loss, dataset),
            label_smoothing=loss.label_smoothing,
            class_weights=weights,
            class_mean=loss.class_mean,
            binarize=loss.binarize,
            several=dataset.multi_label,
        )

    def scorer(self, loss: Loss, dataset: DataSet) -> "ClassificationScorer":
        kind = loss_kind(loss, dataset)
        criterion = CrossEntropy(kind, class_mean=loss.class_mean, several=dataset.multi_label)
        return ClassificationScorer(criterion)

    def words(self, scores: Mapping[str, float]) -> str:
        return f"accuracy {scores['accuracy']:.2%}" if "accuracy" in scores else ""

    def answers(self, model: Model, outputs: Tensor, top: int) -> list[Answer]:
        if outputs.ndim != 2:
            raise Error(
                "This model answers for every pixel, and classification is of whole images: leave out the task."
            )
        values, indices = model.probabilities(outputs).sort(dim=-1, descending=True, stable=True)
        return [
            Answer(
                classes=tuple(
                    Scored(model.labels[index] if model.labels else f"class {index}", index, value)
                    for value, index in zip(row_values, row_indices, strict=True)
                )
            )
            for row_values, row_indices in zip(values[:, :top].tolist(), indices[:, :top].tolist(), strict=True)
        ]

    def examiner(self, loss: Loss, dataset: DataSet) -> ClassExaminer:
        return (SeveralLabels if dataset.multi_label else OneLabel)(self.scorer(loss, dataset), dataset)

    def opening(self, context: ReportContext) -> Opening:
        return classification_report.opening(context)

    def curve_title(self, name: str, context: ReportContext) -> str:
        if name != "accuracy":
            return super().curve_title(name, context)
        return f"{'Labels right' if classification_report.counts_labels(context) else 'Accuracy'}: higher is better"

    def caption(self, example: Example, context: ReportContext) -> str:
        return classification_report.caption(example, context)

    def remarks(self, context: ReportContext) -> list[Remark]:
        return classification_remarks.remarks(context)

    def sections(self, context: ReportContext) -> list[Section]:
        return classification_report.sections(context)


@final
class ClassificationScorer(Scorer):
    """Accuracy, which selects, and the mean loss; of several labels the share of classes that are right."""

    def __init__(self, criterion: CrossEntropy) -> None:
        self.criterion = criterion

    def sums(self, outputs: Tensor, target: Tensor, counts: Tensor) -> Tensor:
        logits, found = outputs.float(), torch.zeros(3, dtype=torch.float64, device=outputs.device)
        found[0] += self.criterion.losses(logits, target)[counts].sum()
        found[1] += self.criterion.right(logits, target)[counts].sum()
        found[2] += counts.sum()
        return found

    def scores(self, sums: Tensor) -> Scores:
        loss, right, count = sums.tolist()
        accuracy = right / count
        return {"score": accuracy, "accuracy": accuracy, "loss": loss / count, "count": count}


def loss_kind(loss: Loss, dataset: DataSet) -> Literal["softmax", "sigmoid"]:
    """The loss that was chosen, or the one for as many labels as the images have."""
    if loss.kind == "auto":
        return "sigmoid" if dataset.multi_label else "softmax"
    if dataset.multi_label and loss.kind == "softmax":
        raise ConfigError("loss.kind softmax is for one label per image, and these have several: leave it out.")
    return loss.kind


TASK = TaskKind(
    name="classification",
    summary="which class an image is of, or which of several labels it has",
    build=Classification,
    options=ClassificationOptions,
)

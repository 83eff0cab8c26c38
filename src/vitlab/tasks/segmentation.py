"""Which class each pixel of an image is of: semantic segmentation by a linear head on the patch tokens."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from vitlab.core.errors import ConfigError, DataError, Error
from vitlab.data.contract import IGNORED, DataSet, Masks, Split
from vitlab.models.contract import Model
from vitlab.objectives.contract import Criterion
from vitlab.objectives.cross_entropy import Loss
from vitlab.tasks.contract import Answer, ReportContext, Scorer, Scores, Section, Task, TaskKind, need_target
from vitlab.tasks.sections import Table, Text


@dataclass(frozen=True)
class SegmentationOptions:
    """Everything follows from the masks."""


@final
class Segmentation(Task):
    """A class per pixel, by the softmax, at the size that the model sees; ignored pixels count for nothing."""

    target = "mask"
    shares = frozenset({"score", "mIoU", "pixel accuracy"})

    def __init__(self, options: SegmentationOptions | None = None) -> None:
        del options

    def check(self, dataset: DataSet) -> None:
        need_target(self, "segmentation", dataset)
        if len(classes_of(dataset)) < 2:
            raise DataError(f"{dataset.name}: its masks have one class only, and segmentation needs at least two.")

    def fields(self, dataset: DataSet) -> dict[str, Any]:
        return {"num_classes": len(classes_of(dataset)), "head": "patches"}

    def fit(self, model: Model, dataset: DataSet) -> None:
        model.labels, model.multi_label = classes_of(dataset), False

    def criterion(self, loss: Loss, dataset: DataSet, train: Split) -> "PixelCrossEntropy":
        del dataset, train
        if loss.kind == "sigmoid" or loss.class_weights or loss.class_mean or loss.binarize:
            raise ConfigError("Segmentation learns by the softmax over pixels: of loss.* only label_smoothing applies.")
        return PixelCrossEntropy(loss.label_smoothing)

    def scorer(self, loss: Loss, dataset: DataSet) -> "SegmentationScorer":
        del loss
        return SegmentationScorer(len(classes_of(dataset)))

    def words(self, scores: Mapping[str, float]) -> str:
        names = [("mIoU", "mIoU"), ("pixel accuracy", "pixel accuracy")]
        return ", ".join(f"{word} {scores[name]:.2%}" for name, word in names if name in scores)

    def answers(self, model: Model, outputs: Tensor, top: int) -> list[Answer]:
        del top
        if outputs.ndim != 4:
            raise Error(
                "This model gives one answer per image, and segmentation needs one per pixel: leave out the task."
            )
        masks = outputs.argmax(dim=1).to(torch.uint8).cpu().numpy()
        names = model.labels or tuple(f"class {i}" for i in range(outputs.shape[1]))
        return [Answer(mask=mask, labels=names) for mask in masks]

    def sections(self, context: ReportContext) -> list[Section]:
        tested = context.tested
        if tested is None:
            return []
        scores, answers = super().sections(context)
        k = len(tested.labels)
        confusion = tested.sums[: k * k].view(k, k)
        pixels, overlap = confusion.sum(dim=1) / confusion.sum().clamp(min=1), iou(confusion)
        rows = tuple(
            (name, f"{share:.1%}", "nowhere" if math.isnan(value) else f"{value:.1%}")
            for name, share, value in zip(tested.labels, pixels.tolist(), overlap.tolist(), strict=True)
        )
        words = (
            "IoU, intersection over union: of the pixels that are of a class or were taken for it, the share that is"
            " both. mIoU is the mean over the classes, in which those that are nowhere do not count."
        )
        table = Table(head=("class", "of the pixels", "IoU"), rows=rows)
        return [scores, Section("Class by class", (Text(words), table)), answers]


@final
class PixelCrossEntropy(Criterion):
    """The mean over an image's pixels that have a class; an image without any has no loss."""

    def __init__(self, label_smoothing: float = 0.0) -> None:
        super().__init__()
        if not 0 <= label_smoothing < 1:
            raise ConfigError(f"label_smoothing must be at least 0 and below 1, not {label_smoothing}.")
        self.label_smoothing = label_smoothing

    def losses(self, outputs: Float[Tensor, "b k h w"], target: Int[Tensor, "b h w"]) -> Float[Tensor, "b"]:
        each = F.cross_entropy(
            outputs, target, ignore_index=IGNORED, label_smoothing=self.label_smoothing, reduction="none"
        )
        return each.sum(dim=(1, 2)) / (target != IGNORED).sum(dim=(1, 2)).clamp(min=1)

    def measures(
        self, outputs: Float[Tensor, "b k h w"], target: Int[Tensor, "b h w"]
    ) -> dict[str, Float[Tensor, "b"]]:
        right, counted = outputs.argmax(dim=1) == target, target != IGNORED
        return {"pixel accuracy": right.sum(dim=(1, 2)) / counted.sum(dim=(1, 2)).clamp(min=1)}


@final
class SegmentationScorer(Scorer):
    """From the confusion of all pixels: the mean over classes of intersection over union, which selects.

    Classes that neither occur nor are predicted are left out of the mean.
    """

    def __init__(self, num_classes: int) -> None:
        self.num_classes, self.criterion = num_classes, PixelCrossEntropy()

    def sums(self, outputs: Tensor, target: Tensor, counts: Tensor) -> Tensor:
        outputs, target, k = outputs.float()[counts], target[counts], self.num_classes
        known = target != IGNORED
        pairs = target[known] * k + outputs.argmax(dim=1)[known]
        confusion = torch.bincount(pairs, minlength=k * k).double()
        loss = self.criterion.losses(outputs, target).double().sum()
        return torch.cat([confusion, loss[None], counts.sum()[None].double()])

    def scores(self, sums: Tensor) -> Scores:
        k = self.num_classes
        confusion, (loss, count) = sums[: k * k].view(k, k), sums[k * k :].tolist()
        found = iou(confusion)
        there = ~found.isnan()
        mean = found[there].mean().item()
        right = (confusion.diagonal().sum() / confusion.sum().clamp(min=1)).item()
        return {"score": mean, "mIoU": mean, "pixel accuracy": right, "loss": loss / count, "count": count}


def iou(confusion: Float[Tensor, "k k"]) -> Float[Tensor, "k"]:
    """Intersection over union of each class, from pixels by (class, predicted); NaN where there is neither."""
    both = confusion.diagonal()
    return both / (confusion.sum(dim=0) + confusion.sum(dim=1) - both)


def classes_of(dataset: DataSet) -> tuple[str, ...]:
    """The names of the masks' classes."""
    for split in dataset.splits.values():
        mask = split.targets.get("mask")
        if isinstance(mask, Masks):
            return mask.classes
    raise DataError(f"{dataset.name} has no masks.")


TASK = TaskKind(
    name="segmentation",
    summary="which class each pixel is of",
    build=Segmentation,
    options=SegmentationOptions,
)

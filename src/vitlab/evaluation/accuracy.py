"""Classification accuracy and its relatives, summed as images come: constant memory, the same on any processes."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, final

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from vitlab.evaluation.calibration import Calibration
from vitlab.evaluation.contract import EvaluationError, Metric, Outcome
from vitlab.evaluation.labeled_features import Z95, share, wilson

TOP = 5
WHOLE_CONFUSION = 200  # classes up to which the whole matrix is written, and not its largest entries alone
LARGEST_CONFUSION = 2000  # classes up to which it is counted: the matrix is K x K
LARGEST_ENTRIES = 100


def ranks(logits: Float[Tensor, "b k"], labels: Int[Tensor, "b"]) -> Int[Tensor, "b"]:
    """How many classes come before the label; of equal logits the lower class number comes first."""
    own = logits.gather(1, labels[:, None])
    before = torch.arange(logits.shape[1], device=logits.device) < labels[:, None]
    return ((logits > own) | ((logits == own) & before)).sum(dim=1)


def _balanced_spread(right: Int[Tensor, "k"], counts: Int[Tensor, "k"]) -> float:
    """Each class's share has a variance of its own, and they are independent.

    A class of few images is all right or all wrong by chance, and would seem to have none: as in Wilson's interval,
    each share is drawn to that of all images, as by four more of them, and that one to a half.
    """
    more = Z95**2
    together = (right.sum().double() + more / 2) / (counts.sum() + more)
    shares = (right + more * together) / (counts + more)
    return Z95 * float((shares * (1 - shares) / counts).sum().sqrt()) / len(counts)


def _mean_spread(total: float, squares: float, num: int) -> float | None:
    """Of a mean, by the sums of its values and of their squares."""
    return Z95 * math.sqrt(max(squares - total**2 / num, 0) / (num - 1) / num) if num > 1 else None


@final
class Accuracy:
    """Sums over images in int64 and float64; `merge`, or a sum of `tensors()` in place, joins processes."""

    def __init__(self, num_classes: int, *, bins: int = 15) -> None:
        assert num_classes >= 1
        self.num_classes = num_classes
        self.top = min(TOP, num_classes)
        self.right = torch.zeros(num_classes, dtype=torch.int64)  # by true class
        self.right_top = torch.zeros(num_classes, dtype=torch.int64)
        self.counts = torch.zeros(num_classes, dtype=torch.int64)
        self.loss = torch.zeros(1, dtype=torch.float64)
        self.loss_squares = torch.zeros(1, dtype=torch.float64)
        self.calibration = Calibration(bins)
        size = num_classes if num_classes <= LARGEST_CONFUSION else 0
        self.confusion = torch.zeros(size, size, dtype=torch.int64)  # [truth, predicted]

    def add(self, logits: Float[Tensor, "b k"], labels: Int[Tensor, "b"]) -> None:
        """A batch of distinct images; the logits may be on any device."""
        labels = labels.long().to(logits.device)
        if logits.ndim != 2 or logits.shape != (len(labels), self.num_classes):
            raise EvaluationError(
                f"Logits must be [{len(labels)}, {self.num_classes}] here, not {list(logits.shape)}: the model and the"
                " data have different classes."
            )
        if not logits.isfinite().all():
            raise EvaluationError("The model's outputs are not finite: its weights or its preprocessing are broken.")
        wrong = labels[(labels < 0) | (labels >= self.num_classes)]
        if len(wrong):
            raise EvaluationError(
                f"An image has the label {int(wrong[0])}, but there are {self.num_classes} classes, 0 to"
                f" {self.num_classes - 1}."
            )
        rank, predicted = ranks(logits, labels).cpu(), logits.argmax(dim=1).cpu()
        log_probabilities = F.log_softmax(logits.double(), dim=1)
        losses = -log_probabilities.gather(1, labels[:, None])
        self.loss += losses.sum().cpu()
        self.loss_squares += losses.square().sum().cpu()
        self.calibration.add(log_probabilities.amax(dim=1).exp(), rank == 0)
        labels = labels.cpu()
        self.counts += self._count(labels)
        self.right += self._count(labels[rank == 0])
        self.right_top += self._count(labels[rank < self.top])
        if self.confusion.numel():
            pairs = torch.bincount(labels * self.num_classes + predicted, minlength=self.num_classes**2)
            self.confusion += pairs.view_as(self.confusion)

    def tensors(self) -> dict[str, Tensor]:
        """Everything that was summed: summing each over the processes, in place, joins them."""
        return {
            "right": self.right,
            "right top": self.right_top,
            "counts": self.counts,
            "loss": self.loss,
            "loss squares": self.loss_squares,
            "confusion": self.confusion,
        } | self.calibration.tensors()

    def merge(self, other: "Accuracy") -> None:
        """Adds what another process has seen."""
        assert other.num_classes == self.num_classes
        theirs = other.tensors()
        for name, value in self.tensors().items():
            value += theirs[name]

    def outcome(self, classes: Sequence[str] | None = None) -> Outcome:
        """Metrics and details; a class without any image has no accuracy, and is named."""
        num, right = int(self.counts.sum()), int(self.right.sum())
        if not num:
            raise EvaluationError("The split is empty: there is nothing to measure.")
        names = list(classes) if classes is not None else [str(k) for k in range(self.num_classes)]
        if len(names) != self.num_classes:
            raise EvaluationError(f"There are {len(names)} class names for {self.num_classes} classes.")
        present = self.counts > 0
        recalls = self.right[present].double() / self.counts[present]
        per_class = self.right.double() / self.counts  # NaN where there is no image
        metrics = {"top-1": share(right, num)}
        if self.num_classes > self.top:  # else all classes are among them
            metrics[f"top-{self.top}"] = share(int(self.right_top.sum()), num)
        metrics["balanced accuracy"] = Metric(
            value=float(recalls.mean()),
            count=num,
            spread=_balanced_spread(self.right[present], self.counts[present]),
            spread_of="half of the 95% interval",
        )
        metrics["calibration error"] = Metric(
            value=self.calibration.error(),
            count=num,
            spread=self.calibration.spread(),
            spread_of="half of the 95% interval, by bootstrap",
        )
        metrics["log loss"] = Metric(
            value=float(self.loss) / num,
            count=num,
            spread=_mean_spread(float(self.loss), float(self.loss_squares), num),
            spread_of="half of the 95% interval" if num > 1 else "",
            unit="number",
        )
        return Outcome(
            metrics=metrics,
            counts={"images": num, "classes": self.num_classes, "classes with images": int(present.sum())},
            details={
                "interval": {"top-1": list(wilson(right, num)), "level": 0.95, "method": "Wilson"},
                "classes": names,
                "per class": [float(value) if there else None for value, there in zip(per_class, present, strict=True)],
                "per class counts": self.counts.tolist(),
                "absent classes": [name for name, there in zip(names, present, strict=True) if not there],
                "reliability": self.calibration.bins(),
                **self._confusion(names),
            },
        )

    def _count(self, labels: Tensor) -> Tensor:
        return torch.bincount(labels, minlength=self.num_classes)

    def _confusion(self, names: Sequence[str]) -> Mapping[str, Any]:
        if not self.confusion.numel():
            return {}
        if self.num_classes <= WHOLE_CONFUSION:
            return {"confusion": self.confusion.tolist()}  # rows: truth
        wrong = self.confusion.clone().fill_diagonal_(0).flatten()
        order = torch.sort(wrong, descending=True, stable=True).indices[:LARGEST_ENTRIES].tolist()
        return {
            "most confused": [
                {
                    "truth": names[i // self.num_classes],
                    "predicted": names[i % self.num_classes],
                    "count": int(wrong[i]),
                }
                for i in order
                if wrong[i]
            ]
        }

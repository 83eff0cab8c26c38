"""Softmax or sigmoid cross-entropy to soft targets, an image or a pixel at a time."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, final

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from vitlab.core.config import check_fields
from vitlab.core.errors import ConfigError
from vitlab.objectives.contract import Criterion


@dataclass(frozen=True, kw_only=True)
class Loss:
    """Cross-entropy over classes that exclude each other (softmax) or do not (sigmoid)."""

    RENAMED: ClassVar[Mapping[str, str]] = {"whole": "binarize"}

    kind: Literal["auto", "softmax", "sigmoid"] = "auto"  # auto: sigmoid if images have several labels, else softmax
    class_mean: bool = False  # sigmoid: the mean over classes, as in timm and DeiT III, instead of the sum
    binarize: bool = False  # sigmoid: targets are 1 for both classes of a mixed image, as in DeiT III
    label_smoothing: float = 0.0  # the share of each target that is spread evenly over all classes
    class_weights: bool = False  # weigh classes by the inverse of their counts
    head_bias: float = 0.0  # the initial bias of the head; -10 with the sigmoid in the official code

    def __post_init__(self) -> None:
        check_fields(self, "loss.")


@final
class CrossEntropy(Criterion):
    """Cross-entropy over classes that exclude each other (softmax), or over classes that do not (sigmoid).

    The sigmoid's is the sum over classes, as the official code has it, or with `class_mean` the mean, as timm has it;
    with `binarize` every class that a mixed image has a share of is a target of 1.
    `several` is for images that have several labels: it decides what counts as right.
    Smoothing moves `label_smoothing` of each target to the uniform distribution; for the sigmoid, towards one half.
    `class_weights` [K] multiply each class's share of the loss. What is left is a mean over images, so that parts of a
    batch add up to the whole; weights that are 1 on average over the training images keep its size.
    """

    class_weights: Tensor | None

    def __init__(
        self,
        kind: Literal["softmax", "sigmoid"] = "softmax",
        *,
        label_smoothing: float = 0.0,
        class_weights: Float[Tensor, "k"] | None = None,
        class_mean: bool = False,
        binarize: bool = False,
        several: bool = False,
    ) -> None:
        super().__init__()
        if not 0 <= label_smoothing < 1:
            raise ConfigError(f"label_smoothing must be at least 0 and below 1, not {label_smoothing}.")
        self.kind, self.label_smoothing = kind, label_smoothing
        self.class_mean, self.binarize, self.several = class_mean, binarize, several
        self.register_buffer("class_weights", class_weights, persistent=False)

    def losses(self, outputs: Float[Tensor, "b k"], target: Float[Tensor, "b k"]) -> Float[Tensor, "b"]:
        smoothing = self.label_smoothing
        if self.kind == "sigmoid":
            sought = (target > 0).to(target.dtype) if self.binarize else target
            smoothed = sought * (1 - smoothing) + smoothing / 2
            weight = self.class_weights
            each = F.binary_cross_entropy_with_logits(outputs, smoothed, weight=weight, reduction="none")
            return each.mean(dim=1) if self.class_mean else each.sum(dim=1)
        smoothed = target * (1 - smoothing) + smoothing / outputs.shape[-1]
        shares = smoothed if self.class_weights is None else smoothed * self.class_weights
        return -(shares * F.log_softmax(outputs, dim=-1)).sum(dim=1)

    def measures(self, outputs: Float[Tensor, "b k"], target: Float[Tensor, "b k"]) -> dict[str, Float[Tensor, "b"]]:
        return {"accuracy": self.right(outputs, target)}

    def right(self, outputs: Float[Tensor, "b k"], target: Float[Tensor, "b k"]) -> Float[Tensor, "b"]:
        """1 where the largest logit is at the largest target; of several labels the share of classes that are right."""
        if self.several:
            return ((outputs > 0) == (target > 0.5)).float().mean(dim=1)
        return (outputs.argmax(dim=-1) == target.argmax(dim=-1)).float()

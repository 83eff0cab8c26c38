"""Classification: softmax or sigmoid cross-entropy to soft targets."""

from typing import Any, Literal, final

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from vitlab.core.errors import ConfigError
from vitlab.objectives.contract import Batch, Forward, Metrics, Objective, auxiliary_losses


@final
class Supervised(Objective):
    """Cross-entropy over classes that exclude each other (softmax), or over classes that do not (sigmoid).

    The sigmoid's is the sum over classes, as the official code has it, or with `class_mean` the mean, as timm has it;
    with `whole` every class that a mixed image has a share of is a target of 1.
    `multi_label` is for images that have several labels: it decides what counts as right.
    Smoothing moves `label_smoothing` of each target to the uniform distribution; for the sigmoid, towards one half.
    `class_weights` [K] multiply each class's share of the loss. What is left is a mean over images, so that parts of a
    batch add up to the whole; weights that are 1 on average over the training images keep its size.
    """

    capturable = True
    class_weights: Tensor | None

    def __init__(
        self,
        kind: Literal["softmax", "sigmoid"] = "softmax",
        *,
        label_smoothing: float = 0.0,
        class_weights: Float[Tensor, "k"] | None = None,
        class_mean: bool = False,
        whole: bool = False,
        multi_label: bool = False,
    ) -> None:
        super().__init__()
        if not 0 <= label_smoothing < 1:
            raise ConfigError(f"label_smoothing must be at least 0 and below 1, not {label_smoothing}.")
        self.kind, self.label_smoothing = kind, label_smoothing
        self.class_mean, self.whole, self.multi_label = class_mean, whole, multi_label
        self.register_buffer("class_weights", class_weights, persistent=False)
        self._means = self.means  # or the compiled one

    def loss(self, model: Forward, batch: Batch, step: int) -> tuple[Float[Tensor, ""], Metrics]:
        del step
        loss, accuracy = self._means(model(batch.images), batch.targets)
        own = auxiliary_losses(model)
        metrics = {"accuracy": accuracy.detach(), **{name: value.detach() for name, value in own.items()}}
        return sum(own.values(), loss), metrics

    def compile_own(self, options: dict[str, Any]) -> None:
        self._means = torch.compile(self.means, options=options)

    def means(
        self, logits: Float[Tensor, "b k"], targets: Float[Tensor, "b k"]
    ) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
        """Of the images' losses, and of what is right."""
        logits = logits.float()
        return self.losses(logits, targets).mean(), self.right(logits, targets).mean()

    def losses(self, logits: Float[Tensor, "b k"], targets: Float[Tensor, "b k"]) -> Float[Tensor, "b"]:
        """Each image's loss."""
        smoothing = self.label_smoothing
        if self.kind == "sigmoid":
            sought = (targets > 0).to(targets.dtype) if self.whole else targets
            smoothed = sought * (1 - smoothing) + smoothing / 2
            weight = self.class_weights
            each = F.binary_cross_entropy_with_logits(logits, smoothed, weight=weight, reduction="none")
            return each.mean(dim=1) if self.class_mean else each.sum(dim=1)
        smoothed = targets * (1 - smoothing) + smoothing / logits.shape[-1]
        shares = smoothed if self.class_weights is None else smoothed * self.class_weights
        return -(shares * F.log_softmax(logits, dim=-1)).sum(dim=1)

    def right(self, logits: Float[Tensor, "b k"], targets: Float[Tensor, "b k"]) -> Float[Tensor, "b"]:
        """1 where the largest logit is at the largest target; of several labels the share of classes that are right."""
        if self.multi_label:
            return ((logits > 0) == (targets > 0.5)).float().mean(dim=1)
        return (logits.argmax(dim=-1) == targets.argmax(dim=-1)).float()


def one_hot(labels: Tensor, num_classes: int) -> Float[Tensor, "b k"]:
    """Class numbers as rows of a unit matrix; rows that are targets already stay."""
    if labels.ndim == 2:
        return labels.float()
    return torch.zeros(len(labels), num_classes, device=labels.device).scatter_(1, labels[:, None], 1.0)

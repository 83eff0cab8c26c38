"""Distillation as DeiT does it (arXiv 2012.12877): a teacher answers the same augmented images."""

from collections.abc import Callable, Sequence
from typing import Any, Literal, final

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from vitlab.core.errors import ConfigError
from vitlab.core.preprocess import Preprocess
from vitlab.models.contract import Model
from vitlab.models.vit import DistilledHead
from vitlab.objectives.contract import Batch, Forward, Metrics, Objective, auxiliary_losses
from vitlab.objectives.supervised import Supervised


@final
class Distillation(Objective):
    """(1 - alpha) L(label head, y) + alpha L(distillation head, teacher), a student with one head using it for both.

    L to the labels is `base`. To the teacher, hard: cross-entropy with its most probable class; soft: tau^2 KL between
    the two distributions at temperature tau, the mean over images (the authors' code divides by the classes too).
    """

    scale: Tensor
    shift: Tensor
    order: Tensor | None

    def __init__(
        self,
        base: Supervised,
        teacher: Model,
        *,
        seen: Preprocess,
        kind: Literal["hard", "soft"] = "hard",
        alpha: float = 0.5,
        tau: float = 3.0,
        order: Sequence[int] | None = None,
    ) -> None:
        """`seen` is the student's preprocessing; `order` says where each of the data's classes is in the teacher's."""
        super().__init__()
        if base.kind != "softmax":
            raise ConfigError("A teacher's answer is one class an image: distillation needs loss.kind='softmax'.")
        if not 0 <= alpha <= 1:
            raise ConfigError(f"The teacher's share alpha must be between 0 and 1, not {alpha}.")
        if tau <= 0:
            raise ConfigError(f"The temperature tau must be positive, not {tau}.")
        self.base, self.kind, self.alpha, self.tau = base, kind, alpha, tau
        self._teacher = (teacher.eval().requires_grad_(False),)  # in a tuple: neither trained nor saved with the run
        mean, std = torch.tensor(seen.mean), torch.tensor(seen.std)
        its_mean, its_std = torch.tensor(teacher.preprocess.mean), torch.tensor(teacher.preprocess.std)
        self.register_buffer("scale", (std / its_std)[:, None, None], persistent=False)
        self.register_buffer("shift", ((mean - its_mean) / its_std)[:, None, None], persistent=False)
        self.register_buffer("order", None if order is None else torch.tensor(order), persistent=False)

    @property
    def teacher(self) -> Model:
        return self._teacher[0]

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        self.teacher._apply(fn)  # a module that is not registered does not follow to the device by itself
        return super()._apply(fn, recurse)

    @torch.no_grad()
    def told(self, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b k"]:
        """The teacher's logits: its own normalisation of the same pixels, at its own size, its classes in our order."""
        size = self.teacher.preprocess.size
        if tuple(images.shape[-2:]) != size:
            images = F.interpolate(images, size, mode="bilinear", antialias=True)
        logits = self.teacher(images * self.scale + self.shift).float()
        return logits if self.order is None else logits[:, self.order]

    def loss(self, model: Forward, batch: Batch, step: int) -> tuple[Float[Tensor, ""], Metrics]:
        told, answers = self.told(batch.images), model(batch.images).float()
        num_classes = batch.targets.shape[-1]
        label, distilled = answers[:, :num_classes], answers[:, -num_classes:]  # the same where there is one head
        from_labels, _ = self.base.loss(lambda _: label, batch, step)
        from_teacher = self.apart(distilled, told)
        own = auxiliary_losses(model)
        loss = (1 - self.alpha) * from_labels + self.alpha * from_teacher
        metrics = {
            "accuracy": self.base.right(label + distilled, batch.targets).mean(),
            "agreement": (distilled.argmax(dim=-1) == told.argmax(dim=-1)).float().mean(),
            "teacher loss": from_teacher.detach(),
            **{name: value.detach() for name, value in own.items()},
        }
        return sum(own.values(), loss), metrics

    def apart(self, logits: Float[Tensor, "b k"], told: Float[Tensor, "b k"]) -> Float[Tensor, ""]:
        """How far the student's answers are from the teacher's."""
        if self.kind == "hard":
            return F.cross_entropy(logits, told.argmax(dim=-1))
        ours, theirs = F.log_softmax(logits / self.tau, dim=-1), F.log_softmax(told / self.tau, dim=-1)
        return self.tau**2 * F.kl_div(ours, theirs, reduction="batchmean", log_target=True)


def separate_heads(student: Model) -> None:
    """Let a student with a distillation token give both of its answers in training, each for its own loss."""
    if isinstance(student.head, DistilledHead):
        student.head.apart = True

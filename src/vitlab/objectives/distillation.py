"""Distillation as DeiT does it (arXiv 2012.12877): a teacher answers the same augmented images."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, final

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from vitlab.core.config import check_fields
from vitlab.core.errors import ConfigError
from vitlab.core.imagenet import places_of
from vitlab.core.preprocess import Preprocess
from vitlab.data.batch import Batch
from vitlab.data.contract import DataSet
from vitlab.models.contract import Model
from vitlab.models.heads import DistilledHead
from vitlab.models.wrapped import Wrapped
from vitlab.objectives.contract import Metrics, Objective, ObjectiveKind, Setting
from vitlab.objectives.cross_entropy import CrossEntropy
from vitlab.weights.load import load

log = logging.getLogger("vitlab")


@dataclass(frozen=True, kw_only=True)
class DistillationOptions:
    """A trained model to learn from, besides the labels."""

    teacher: str | None = None  # the teacher: a run, a file, a checkpoint's name, or whatever else `load` takes
    kind: Literal["hard", "soft"] = "hard"  # learn the teacher's most probable class (hard) or its probabilities (soft)
    alpha: float = 0.5  # the teacher's share of the loss
    tau: float = 3.0  # soft: the temperature

    def __post_init__(self) -> None:
        check_fields(self, "objective.")


@final
class Distillation(Objective):
    """(1 - alpha) L(label head, y) + alpha L(distillation head, teacher), a student with one head using it for both.

    L to the labels is `base`. To the teacher, hard: cross-entropy with its most probable class; soft: tau^2 KL between
    the two distributions at temperature tau, the mean over images (the authors' code divides by the classes too).
    """

    only_calls: ClassVar[bool] = True

    scale: Tensor
    shift: Tensor
    order: Tensor | None

    def __init__(
        self,
        base: CrossEntropy,
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
            raise ConfigError("A teacher's answer is one class per image: distillation needs loss.kind='softmax'.")
        if not 0 <= alpha <= 1:
            raise ConfigError(f"The teacher's share alpha must be between 0 and 1, not {alpha}.")
        if tau <= 0:
            raise ConfigError(f"The temperature tau must be positive, not {tau}.")
        self.base, self.kind, self.alpha, self.tau = base, kind, alpha, tau
        if isinstance(teacher, Wrapped):
            self.capturable = False  # another library's module may do anything
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
    def taught(self, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b k"]:
        """The teacher's logits: its own normalisation of the same pixels, at its own size, its classes in our order."""
        size = self.teacher.preprocess.size
        if tuple(images.shape[-2:]) != size:
            images = F.interpolate(images, size, mode="bilinear", antialias=True)
        logits = self.teacher(images * self.scale + self.shift).float()
        return logits if self.order is None else logits[:, self.order]

    def loss(self, model: Model, batch: Batch, progress: Float[Tensor, ""]) -> tuple[Float[Tensor, ""], Metrics]:
        del progress
        images, targets = batch.images, batch.targets["label"]
        taught, (label, distilled) = self.taught(images), _answers(model, images)
        from_labels = self.base.losses(label, targets).mean()
        from_teacher = self.distance(distilled, taught)
        metrics = {
            "accuracy": self.base.right(label + distilled, targets).mean(),
            "agreement": (distilled.argmax(dim=-1) == taught.argmax(dim=-1)).float().mean(),
            "teacher loss": from_teacher.detach(),
        }
        return (1 - self.alpha) * from_labels + self.alpha * from_teacher, metrics

    def distance(self, logits: Float[Tensor, "b k"], taught: Float[Tensor, "b k"]) -> Float[Tensor, ""]:
        """How far the student's answers are from the teacher's."""
        if self.kind == "hard":
            return F.cross_entropy(logits, taught.argmax(dim=-1))
        ours, theirs = F.log_softmax(logits / self.tau, dim=-1), F.log_softmax(taught / self.tau, dim=-1)
        return self.tau**2 * F.kl_div(ours, theirs, reduction="batchmean", log_target=True)


def _answers(model: Model, images: Tensor) -> tuple[Float[Tensor, "b k"], Float[Tensor, "b k"]]:
    """The student's answers for the labels and for the teacher: those of two heads, or one for both."""
    if isinstance(model.head, DistilledHead):
        label, distilled = model.head.both(model.pooled(images))
        return label.float(), distilled.float()
    logits = model(images).float()
    return logits, logits


def build(options: DistillationOptions, setting: Setting) -> Distillation:
    if options.teacher is None:
        raise ConfigError("Distillation needs a teacher: name a trained model (--objective.teacher SOURCE).")
    base = setting.criterion()
    if not isinstance(base, CrossEntropy):
        raise ConfigError("Distillation is for classification: this task has no classes to learn from a teacher.")
    teacher = load(options.teacher)
    return Distillation(
        base,
        teacher,
        seen=setting.model.preprocess,
        kind=options.kind,
        alpha=options.alpha,
        tau=options.tau,
        order=class_order(options.teacher, teacher, setting.dataset),
    )


def class_order(source: str, teacher: Model, dataset: DataSet) -> list[int] | None:
    """Where the data's classes are among the teacher's, by name or WordNet id.

    None where they are in the same order, or are taken to be: it names none, or others, which is said.
    """
    if teacher.config.num_classes != dataset.num_classes:
        raise ConfigError(
            f"The teacher ({source}) knows {teacher.config.num_classes} classes and {dataset.name} has"
            f" {dataset.num_classes}: fine-tune it on that data first."
        )
    if teacher.labels is None:
        return None
    places = places_of(teacher.labels, dataset.classes)
    if places is None:
        log.warning(
            "The class names of the teacher %s are not those of %s ('%s', the data's '%s'): matched by number.",
            source, dataset.name, teacher.labels[0], dataset.classes[0],
        )  # fmt: skip
        return None
    return None if places == sorted(places) else places


OBJECTIVE = ObjectiveKind(
    name="distillation",
    summary="learn from labels and a teacher's predictions, as DeiT does",
    objective=Distillation,
    options=DistillationOptions,
    build=build,
    source="Training data-efficient image transformers & distillation through attention, arXiv 2012.12877",
)

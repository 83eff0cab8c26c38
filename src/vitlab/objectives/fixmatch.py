"""FixMatch (arXiv 2001.07685): confident answers to a weak view are the labels of a strong view of the same image."""

import copy
from dataclasses import dataclass
from typing import ClassVar, final

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vitlab.core.bounds import NonNegativeFloat, PositiveFloat, PositiveInt, Probability
from vitlab.core.errors import ConfigError
from vitlab.data.batch import Batch
from vitlab.data.contract import UNLABELLED, Split
from vitlab.data.streams import StreamPlan
from vitlab.models.contract import Model
from vitlab.objectives.averaging import move_average
from vitlab.objectives.contract import Metrics, Objective, ObjectiveKind, Setting
from vitlab.objectives.cross_entropy import CrossEntropy
from vitlab.objectives.unlabelled import Strong, labelled_stream, unlabelled_of, unlabelled_stream, weak_view


@dataclass(frozen=True, kw_only=True)
class FixmatchOptions(Strong):
    """Confident predictions on a weak view are labels for a strong view."""

    threshold: NonNegativeFloat = 0.95  # the probability from which a prediction is a label; above 1: never
    ratio: PositiveInt = 7  # unlabelled images per labelled one of the batch (mu)
    weight: NonNegativeFloat = 1.0  # the weight of the unlabelled images' loss
    temperature: PositiveFloat = 1.0  # of the softmax for the threshold; below 1 makes predictions more confident
    teacher_ema: Probability = 0.0
    """Above 0, labels come from an exponential moving average of the model with this decay, without dropout (arXiv
    2208.05688); 0: from the model itself."""


@final
class Fixmatch(Objective):
    """L of labelled images + weight times the mean over all others of 1[max p(weak) >= threshold] H(strong).

    p = softmax(logits / temperature), H is the cross-entropy with the most probable class of the weak view, L the
    task's loss. No gradient passes through the labels, so that weak views pass through the model by themselves and
    without one, in training mode. In the authors' code all images pass together: the same, but for batch norms.
    """

    only_calls: ClassVar[bool] = True
    needs_unlabelled: ClassVar[bool] = True

    def __init__(self, options: FixmatchOptions, criterion: CrossEntropy, unlabelled: Split, model: Model) -> None:
        super().__init__()
        if criterion.kind != "softmax":
            raise ConfigError("A pseudo-label is one class per image: FixMatch needs loss.kind='softmax'.")
        self.options, self.criterion, self.unlabelled = options, criterion, unlabelled
        self.ema_model = copy.deepcopy(model).eval().requires_grad_(False) if options.teacher_ema else None

    def streams(self, main: StreamPlan) -> tuple[StreamPlan, ...]:
        weak = main.views[0].augmentation
        views = (weak_view(weak), self.options.strong(weak))
        return labelled_stream(main), unlabelled_stream(main, self.unlabelled, self.options.ratio, *views)

    def loss(self, model: Model, batch: Batch, progress: Float[Tensor, ""]) -> tuple[Float[Tensor, ""], Metrics]:
        del progress
        options, others = self.options, batch.streams[UNLABELLED]
        seen, changed = others.views
        with torch.no_grad():
            asked = model if self.ema_model is None else self.ema_model
            labels, sure = pseudo_labels(asked(seen).float(), options.threshold, options.temperature)
        outputs = model(torch.cat([batch.images, changed])).float()
        labelled, strong = outputs.split([len(batch), len(others)])
        supervised, metrics = self.criterion.means(labelled, batch.targets["label"])
        unlabelled = (F.cross_entropy(strong, labels, reduction="none") * sure).mean()
        metrics |= {"unlabelled loss": unlabelled.detach(), "above threshold": sure.float().mean()}
        return supervised + options.weight * unlabelled, metrics

    def after_step(self, model: Model, made: Tensor) -> None:
        if self.ema_model is not None:
            move_average([self.ema_model], [model], (1 - self.options.teacher_ema) * made)


@torch.no_grad()
def pseudo_labels(
    logits: Float[Tensor, "b k"], threshold: float, temperature: float = 1.0
) -> tuple[Int[Tensor, "b"], Bool[Tensor, "b"]]:
    """The most probable class of each image, and whether its probability reaches the threshold."""
    confidence, labels = (logits / temperature).softmax(dim=-1).max(dim=-1)
    return labels, confidence >= threshold


def build(options: FixmatchOptions, setting: Setting) -> Fixmatch:
    criterion = setting.criterion()
    if not isinstance(criterion, CrossEntropy):
        raise ConfigError("FixMatch is for classification: this task has no classes to take as labels.")
    return Fixmatch(options, criterion, unlabelled_of(setting), setting.model)


OBJECTIVE = ObjectiveKind(
    name="fixmatch",
    summary="learn from few labels, and from confident predictions on weak views of other images",
    objective=Fixmatch,
    options=FixmatchOptions,
    build=build,
    source="FixMatch: Simplifying Semi-Supervised Learning with Consistency and Confidence, arXiv 2001.07685",
)

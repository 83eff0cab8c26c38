"""A round of Noisy Student (arXiv 1911.04252): a teacher without noise labels images for a student with noise."""

from dataclasses import dataclass
from typing import ClassVar, Literal, final

import torch
from jaxtyping import Float
from torch import Tensor

from vitlab.core.bounds import PositiveFloat, PositiveInt, Probability
from vitlab.core.config import check_fields
from vitlab.core.errors import ConfigError
from vitlab.data.batch import Batch
from vitlab.data.contract import UNLABELLED, Split
from vitlab.data.streams import StreamPlan
from vitlab.models.contract import Model
from vitlab.objectives.contract import Metrics, Objective, ObjectiveKind, Setting
from vitlab.objectives.cross_entropy import CrossEntropy
from vitlab.objectives.distillation import class_order
from vitlab.objectives.pseudo_labels import Rule, labelled_by
from vitlab.objectives.unlabelled import labelled_stream, unlabelled_of, unlabelled_stream
from vitlab.weights.load import load


@dataclass(frozen=True, kw_only=True)
class NoisyStudentOptions:
    """A teacher's predictions on unlabelled images, computed once, are labels besides the true ones."""

    teacher: str | None = None  # the supervised run or the previous round, or whatever else `load` takes
    labels: Literal["soft", "hard"] = "soft"  # the teacher's probabilities, or its most probable class
    temperature: PositiveFloat = 1.0  # soft labels: the temperature of the teacher's probabilities
    threshold: Probability = 0.3  # the probability below which a prediction is never a label
    quota: PositiveInt | None = None
    """Images per class, the most confident first; None: all that reach the threshold, once each."""
    copies: Literal["several", "one"] = "several"  # copies of an image, if a class has fewer images than the quota
    ratio: PositiveInt = 3  # unlabelled images per labelled one of the batch, and the weight of their loss

    def __post_init__(self) -> None:
        check_fields(self, "objective.")


@final
class NoisyStudent(Objective):
    """L, the mean over labelled images, + ratio times the mean over the teacher's of - sum p log q.

    p is the teacher's answer and q the student's, which sees both kinds of images as the recipe augments them; its
    other noise is the model's dropout and stochastic depth. Hard labels are smoothed as the true ones are, soft ones
    are not.
    """

    only_calls: ClassVar[bool] = True
    needs_unlabelled: ClassVar[bool] = True

    def __init__(
        self,
        options: NoisyStudentOptions,
        criterion: CrossEntropy,
        teacher: Model,
        taught: Split,
    ) -> None:
        """`taught` are the images that the teacher labelled."""
        super().__init__()
        if criterion.kind != "softmax":
            raise ConfigError("A pseudo-label is one class per image: Noisy Student needs loss.kind='softmax'.")
        self.options, self.criterion, self.taught = options, criterion, taught
        smoothing = criterion.label_smoothing if options.labels == "hard" else 0.0
        self.from_teacher = CrossEntropy(label_smoothing=smoothing)
        self._teacher = (teacher,)  # in a tuple: neither trained, nor saved, nor moved: it has said what it knows

    @property
    def teacher(self) -> Model:
        return self._teacher[0]

    def streams(self, main: StreamPlan) -> tuple[StreamPlan, ...]:
        seen = main.views[0].augmentation
        others = unlabelled_stream(main, self.taught, self.options.ratio, seen, targets=("label",))
        return labelled_stream(main), others

    def loss(self, model: Model, batch: Batch, progress: Float[Tensor, ""]) -> tuple[Float[Tensor, ""], Metrics]:
        del progress
        others = batch.streams[UNLABELLED]
        outputs = model(torch.cat([batch.images, *others.views])).float()
        labelled, taught = outputs.split([len(batch), len(others)])
        supervised, metrics = self.criterion.means(labelled, batch.targets["label"])
        unlabelled, found = self.from_teacher.means(taught, others.targets["label"])
        metrics |= {"unlabelled loss": unlabelled.detach(), "agreement": found["accuracy"]}
        return supervised + self.options.ratio * unlabelled, metrics


def build(options: NoisyStudentOptions, setting: Setting) -> NoisyStudent:
    if options.teacher is None:
        raise ConfigError("Noisy Student needs a teacher: name a trained model (--objective.teacher SOURCE).")
    criterion = setting.criterion()
    if not isinstance(criterion, CrossEntropy):
        raise ConfigError("Noisy Student is for classification: this task has no classes to learn from a teacher.")
    device = next(setting.model.parameters()).device
    teacher = load(options.teacher).to(device).eval().requires_grad_(False)
    unlabelled = unlabelled_of(setting)
    rule = Rule(
        lowest=options.threshold,
        quota=options.quota,
        several=options.copies == "several",
        temperature=options.temperature,
        seed=int(torch.randint(2**32, ())),  # torch's generator is seeded by the recipe here
    )
    kept = labelled_by(
        teacher,
        setting.dataset,
        unlabelled,
        rule,
        device=device,
        order=class_order(options.teacher, teacher, setting.dataset),
        folder=setting.folder,
    )
    taught = kept.split(unlabelled, soft=options.labels == "soft")
    return NoisyStudent(options, criterion, teacher.cpu(), taught)


OBJECTIVE = ObjectiveKind(
    name="noisy-student",
    summary="learn from few labels and a teacher's predictions on other images, with added noise",
    objective=NoisyStudent,
    options=NoisyStudentOptions,
    build=build,
    source="Self-training with Noisy Student improves ImageNet classification, arXiv 1911.04252",
)

"""Meta Pseudo Labels (arXiv 2003.10580): a teacher labels images for a student, and learns from how that helped it.

The defaults are those of the authors' code (google-research/meta_pseudo_labels), whose feedback has no gradient;
`labels` = sampled with `sign` = theory are the paper's equations. docs/meta_pseudo_labels.md says more.
"""

import copy
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vitlab.core.bounds import NonNegativeFloat, PositiveFloat, PositiveInt, Probability
from vitlab.core.errors import ConfigError
from vitlab.core.random import uniform
from vitlab.data.batch import Batch, Stream
from vitlab.data.contract import UNLABELLED, Split
from vitlab.data.streams import StreamPlan
from vitlab.models.contract import Model, evaluating
from vitlab.objectives.contract import Metrics, Objective, ObjectiveKind, Phase, Setting, model_group
from vitlab.objectives.cross_entropy import CrossEntropy
from vitlab.objectives.unlabelled import (
    LABELLED,
    Strong,
    labelled_stream,
    unlabelled_of,
    unlabelled_stream,
    weak_view,
)
from vitlab.objectives.whole_batch import num_processes, total


@dataclass(frozen=True, kw_only=True)
class MetaPseudoLabelsOptions(Strong):
    """A teacher of the model's architecture; the model is the student. Shares are of the run: 0.01 of 300,000 steps.

    loss.label_smoothing applies to the teacher's labels and to the student's pseudo-labels.
    """

    ratio: PositiveInt = 7  # unlabelled images per labelled one
    labels: Literal["soft", "hard", "sampled"] = "soft"
    """What the student learns: the teacher's probabilities, its most probable class, or a class drawn from them."""
    sign: Literal["authors", "theory"] = "authors"
    """The feedback's sign: how much the student's loss rose, as in the authors' code, or how much it fell."""
    baseline_rate: Probability = 0.01  # update rate of the feedback's running mean, which is subtracted; 0: no mean
    wait: Probability = 0.01  # the share of the run, from its start, in which the student does not learn
    weight: NonNegativeFloat = 8.0  # the weight of the teacher's consistency between a weak and a strong view (UDA)
    ramp: Probability = 1 / 60  # the share of the run in which that weight rises from 0
    temperature: PositiveFloat = 0.7  # for the weak view's probabilities; below 1 sharpens them
    threshold: Probability = 0.6  # images whose largest probability is below this do not count
    teacher_lr: PositiveFloat = 1.0  # the teacher's lr as a multiple of the student's
    teacher_start: Literal["fresh", "student"] = "fresh"
    """The teacher's initial weights: fresh ones, or the student's, for example if those are trained."""


@final
class MetaPseudoLabels(Objective):
    """The student S minimises CE(q, S(strong)), q from the teacher's T(strong); then the teacher has its turn.

    With L the student's loss on labelled images, S' the student after its step and h = L(S') - L(S) less its running
    mean, it minimises CE(y, T(labelled)) + w CE(p, T(strong)) 1[max p >= threshold] + h CE(q, T(strong)), where
    p = softmax(T(weak) / temperature).

    With q drawn from T and h's sign turned, n E[h grad CE(q, T)] is the gradient of L(S') with respect to the teacher
    up to the second order of the student's lr, for n unlabelled images. With q = softmax(T(strong)), grad CE(q, T) = 0.

    L is measured in evaluation mode and full precision: dropout and rounding are larger than a step's change. What
    the teacher says of images, q and p, it says in evaluation mode too.
    """

    only_calls: ClassVar[bool] = False  # the student's loss is measured in float32 also where a step is in bf16
    needs_unlabelled: ClassVar[bool] = True
    whole_batch: ClassVar[bool] = True  # h is one number for all images of a step

    before: Tensor
    measured_at: Tensor
    change: Tensor
    baseline: Tensor

    def __init__(
        self, options: MetaPseudoLabelsOptions, criterion: CrossEntropy, model: Model, unlabelled: Split, target: str
    ) -> None:
        super().__init__()
        if criterion.kind != "softmax":
            raise ConfigError("A pseudo-label is one class per image: this objective needs loss.kind='softmax'.")
        if options.teacher_start == "fresh" and not all(p.requires_grad for p in model.parameters()):
            raise ConfigError(
                "A fresh teacher of which a part is frozen, as model.lora and model.train_only have it, would label"
                " images by random weights: set objective.teacher_start to student, or train all of the model."
            )
        self.options, self.criterion, self.unlabelled, self.target = options, criterion, unlabelled, target
        self.seed = int(torch.randint(2**32, ()))  # torch's generator is seeded by the recipe here
        self.player = copy.deepcopy(model)  # in training, but for batch norms that are held still
        if options.teacher_start == "fresh":
            self.player.to("cpu").initialize()  # the same on every device
        self.pseudo: Tensor | None = None  # what the student was taught in this step
        self.register_buffer("before", torch.zeros(()), persistent=False)  # the student's labelled loss before its step
        # the progress of the step that it is of; SAM's second pass is over other weights
        self.register_buffer("measured_at", torch.full((), -1.0), persistent=False)
        self.register_buffer("change", torch.zeros(()), persistent=False)  # h of this step
        self.register_buffer("baseline", torch.zeros(()))

    def streams(self, main: StreamPlan) -> tuple[StreamPlan, ...]:
        weak, options = main.views[0].augmentation, self.options
        views = (weak_view(weak), options.strong(weak))
        return labelled_stream(main), unlabelled_stream(main, self.unlabelled, options.ratio, *views)

    def phases(self, model: Model) -> tuple[Phase, ...]:
        del model
        return (
            Phase("student", self.loss, lambda name: name.startswith("model.")),
            Phase("teacher", self.teach, lambda name: name.startswith("objective.")),
        )

    def param_groups(self) -> list[dict[str, Any]]:
        """The teacher's, as the student's are."""
        return [model_group(self.player, self.options.teacher_lr)]

    def loss(self, model: Model, batch: Batch, progress: Float[Tensor, ""]) -> tuple[Float[Tensor, ""], Metrics]:
        """The student's: the teacher's labels of strong views."""
        labelled, unlabelled = _streams(batch)
        measured, right = self._measured(model, labelled)
        self.before.copy_(torch.where(progress == self.measured_at, self.before, measured))
        self.measured_at.copy_(progress)
        with torch.no_grad(), evaluating(self.player):
            self.pseudo = self.drawn(_wide(self.player(unlabelled.views[1])), unlabelled.places)
        answers = _wide(model(unlabelled.views[1]))
        loss = cross_entropy(answers, self._smoothed(self.pseudo)).mean()
        loss = torch.where(progress >= self.options.wait, loss, loss.detach())
        agreement = (answers.argmax(dim=-1) == self.pseudo.argmax(dim=-1)).float().mean()
        return loss, {"accuracy": right, "agreement": agreement}

    def teach(self, model: Model, batch: Batch, progress: Float[Tensor, ""]) -> tuple[Float[Tensor, ""], Metrics]:
        """The teacher's, after the student's step."""
        options, (labelled, unlabelled) = self.options, _streams(batch)
        after, _ = self._measured(model, labelled)
        self.change.copy_((after - self.before) * (-1 if options.sign == "theory" else 1))
        self.measured_at.fill_(-1)
        with torch.no_grad(), evaluating(self.player):
            wanted = (_wide(self.player(unlabelled.views[0])) / options.temperature).softmax(dim=-1)
            sure = (wanted.amax(dim=-1) >= options.threshold).float()
        images = labelled.views[0]
        outputs = _wide(self.player(torch.cat([images, unlabelled.views[1]])))
        answers, strong = outputs[: len(images)], outputs[len(images) :]
        from_labels, metrics = self.criterion.means(answers, labelled.targets[self.target])
        consistency = (cross_entropy(strong, wanted) * sure).mean()
        taught = strong.detach().softmax(dim=-1) if options.labels == "soft" or self.pseudo is None else self.pseudo
        # the authors move the mean before it is taken off
        feedback = (self.change - self.baseline) * (1 - options.baseline_rate)
        rising = (progress / options.ramp).clamp(max=1) if options.ramp else torch.ones_like(progress)
        loss = (
            from_labels
            + options.weight * rising * consistency
            + feedback.detach() * cross_entropy(strong, taught).mean()
        )
        own = self.player.auxiliary()
        metrics |= {"consistency": consistency.detach(), "sure": sure.mean(), "feedback": feedback.clone()}
        return sum(own.values(), loss), metrics

    def drawn(self, logits: Float[Tensor, "n k"], places: Int[Tensor, "n"]) -> Float[Tensor, "n k"]:
        """What the student is to learn of images by the teacher's logits, counted from their places."""
        shares = logits.softmax(dim=-1)
        if self.options.labels == "soft":
            return shares
        if self.options.labels == "hard":
            chosen = shares.argmax(dim=-1)
        else:
            draws = uniform(self.seed, places)
            chosen = (shares.cumsum(dim=-1) <= draws[:, None]).sum(dim=-1).clamp(max=shares.shape[-1] - 1)
        return (chosen[:, None] == torch.arange(shares.shape[-1], device=chosen.device)).to(shares.dtype)

    @torch.no_grad()
    def _measured(self, model: Model, labelled: Stream) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
        """The student's loss on the labelled images of all processes, and on how many of these it is right."""
        images, target = labelled.views[0], labelled.targets[self.target]
        with evaluating(model), torch.autocast(images.device.type, enabled=False):
            outputs = _wide(model(images))
        loss = total(cross_entropy(outputs, target).mean()) / num_processes()
        return loss, self.criterion.right(outputs, target).mean()

    def _smoothed(self, target: Float[Tensor, "n k"]) -> Float[Tensor, "n k"]:
        smoothing = self.criterion.label_smoothing
        return target * (1 - smoothing) + smoothing / target.shape[-1]

    @torch.no_grad()
    def after_step(self, model: Model, made: Tensor) -> None:
        del model
        moved = self.baseline + self.options.baseline_rate * (self.change - self.baseline)
        self.baseline.copy_(torch.where(made, moved, self.baseline))


def cross_entropy(outputs: Float[Tensor, "n k"], target: Float[Tensor, "n k"]) -> Float[Tensor, "n"]:
    """Of each image, to probabilities."""
    return -(target * outputs.log_softmax(dim=-1)).sum(dim=-1)


def _wide(values: Tensor) -> Tensor:
    """In single precision at least."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


def _streams(batch: Batch) -> tuple[Stream, Stream]:
    return batch.streams[LABELLED], batch.streams[UNLABELLED]


def build(options: MetaPseudoLabelsOptions, setting: Setting) -> MetaPseudoLabels:
    criterion = setting.criterion()
    if not isinstance(criterion, CrossEntropy):
        raise ConfigError("Meta Pseudo Labels are for classification: this task has no classes to label images by.")
    return MetaPseudoLabels(options, criterion, setting.model, unlabelled_of(setting), setting.target)


OBJECTIVE = ObjectiveKind(
    name="meta-pseudo-labels",
    summary="a teacher labels images for the model, and learns from how much its labels helped",
    objective=MetaPseudoLabels,
    options=MetaPseudoLabelsOptions,
    build=build,
    source="Meta Pseudo Labels, arXiv 2003.10580",
)

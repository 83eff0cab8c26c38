"""Semantic softmax (arXiv 2104.10972): classes of a hierarchy, told apart at each level among those of that level."""

from dataclasses import dataclass
from typing import ClassVar, final

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from vitlab.core.bounds import PositiveFloat
from vitlab.core.config import check_fields
from vitlab.core.errors import ConfigError
from vitlab.data.batch import Batch
from vitlab.data.hierarchy import Hierarchy, Inner, Level, read_hierarchy
from vitlab.models.contract import Model
from vitlab.objectives.contract import Metrics, Objective, ObjectiveKind, Setting
from vitlab.objectives.cross_entropy import CrossEntropy


@dataclass(frozen=True, kw_only=True)
class SemanticSoftmaxOptions:
    """A softmax for each level of a hierarchy of the classes; loss.label_smoothing is within each of them."""

    hierarchy: str | None = None  # a file with each class's parent (docs/semantic_softmax.md), or 'cifar100'
    inner: Inner = "all"
    """Which nodes that are not classes get an output: all, those with several nodes below (branching), or none."""
    max_factor: PositiveFloat = 20.0  # the largest weight of a level, for deep levels that few classes reach
    drop_deepest: bool = False  # leave out the deepest level, as the authors' code does
    extend_leaves: bool = False  # classes without nodes below are also on all deeper levels

    def __post_init__(self) -> None:
        check_fields(self, "objective.")


@final
class SemanticSoftmax(Objective):
    """The sum over levels of w * CE(softmax over the level's nodes, the image's ancestor there), the mean over images.

    A class counts at its own depth and at those of its ancestors; where an image has no ancestor at a level, that level
    adds 0 to the mean, which is over all images nevertheless. w is the number of nodes divided by the number of those
    at this depth or deeper, `max_factor` at most. A target of several classes (mixup) has the mean of their losses.

    Nodes that are classes have the model's own outputs; the others have a head here, which the run keeps and the model
    does not. The authors' loop over levels ends before the deepest (`range(max_depth)`), whose classes are then told
    from nothing; here it is there, unless `drop_deepest`. A level of one node has nothing to tell apart.
    """

    only_calls: ClassVar[bool] = True

    def __init__(
        self,
        hierarchy: Hierarchy,
        base: CrossEntropy,
        num_features: int,
        *,
        target: str = "label",
        max_factor: float = 20.0,
        drop_deepest: bool = False,
        extend_leaves: bool = False,
    ) -> None:
        super().__init__()
        if base.kind != "softmax" or base.class_weights is not None:
            raise ConfigError(
                "The semantic softmax is for one class per image and weighs levels, not classes: it needs loss.kind"
                " softmax, without loss.class_weights."
            )
        levels = hierarchy.levels(extend_leaves=extend_leaves)
        levels = [level for level in levels[: len(levels) - drop_deepest] if len(level.nodes) > 1]
        if not levels:
            raise ConfigError("This hierarchy has no level of two or more nodes to tell apart: give another file.")
        self.base, self.target, self.num_classes = base, target, hierarchy.num_classes
        num_inner = len(hierarchy.nodes) - hierarchy.num_classes
        self.inner = nn.Linear(num_features, num_inner) if num_inner else None
        self.levels = nn.ModuleList(
            _Softmax(level, min(len(hierarchy.nodes) / level.num_below, max_factor)) for level in levels
        )

    def logits(self, model: Model, features: Float[Tensor, "b d"]) -> Float[Tensor, "b n"]:
        """Of every node, the classes first."""
        own = model.head(features)
        return (own if self.inner is None else torch.cat([own, self.inner(features)], dim=1)).float()

    def loss(self, model: Model, batch: Batch, progress: Float[Tensor, ""]) -> tuple[Float[Tensor, ""], Metrics]:
        del progress
        logits, target = self.logits(model, model.pooled(batch.images)), batch.targets[self.target]
        loss = torch.stack([level(logits, target, self.base.label_smoothing) for level in self._levels]).sum(dim=0)
        right, there = self.right(logits, target)
        metrics = {
            "accuracy": self.base.right(logits[:, : self.num_classes], target).mean(),
            "semantic accuracy": right.sum() / there.sum().clamp(min=1),
        }
        return loss.mean(), {name: value.detach() for name, value in metrics.items()}

    @property
    def _levels(self) -> list["_Softmax"]:
        return [level for level in self.levels if isinstance(level, _Softmax)]

    def right(
        self, logits: Float[Tensor, "b n"], target: Float[Tensor, "b k"]
    ) -> tuple[Float[Tensor, "b levels"], Float[Tensor, "b levels"]]:
        """1 where the largest logit of a level is that of the image's ancestor, and 1 where it has one there."""
        found = [level.right(logits, target.argmax(dim=1)) for level in self._levels]
        right, there = (torch.stack(each, dim=1).float() for each in zip(*found, strict=True))
        return right, there


@final
class _Softmax(nn.Module):
    """The cross-entropy of one level."""

    nodes: Tensor
    classes: Tensor
    places: Tensor
    of_class: Tensor

    def __init__(self, level: Level, factor: float) -> None:
        super().__init__()
        of_class = torch.tensor(level.of_class)
        classes = (of_class >= 0).nonzero().flatten()
        self.factor = factor
        self.register_buffer("nodes", torch.tensor(level.nodes), persistent=False)
        self.register_buffer("classes", classes, persistent=False)  # those that have an ancestor here
        self.register_buffer("places", of_class[classes], persistent=False)
        self.register_buffer("of_class", of_class, persistent=False)

    def forward(
        self, logits: Float[Tensor, "b n"], target: Float[Tensor, "b k"], smoothing: float
    ) -> Float[Tensor, "b"]:
        """Each image's loss times the level's factor; 0 where none of its classes has an ancestor here."""
        likely = F.log_softmax(logits[:, self.nodes], dim=1)
        shares = target[:, self.classes]
        sought = (shares * likely[:, self.places]).sum(dim=1)
        evenly = shares.sum(dim=1) * likely.mean(dim=1)
        return -self.factor * ((1 - smoothing) * sought + smoothing * evenly)

    def right(self, logits: Float[Tensor, "b n"], label: Tensor) -> tuple[Tensor, Tensor]:
        place = self.of_class[label]
        return logits[:, self.nodes].argmax(dim=1) == place, place >= 0


def build(options: SemanticSoftmaxOptions, setting: Setting) -> SemanticSoftmax:
    if options.hierarchy is None:
        raise ConfigError("The semantic softmax needs a hierarchy: name its file (--objective.hierarchy FILE).")
    base = setting.criterion()
    if not isinstance(base, CrossEntropy):
        raise ConfigError("The semantic softmax is for classification: this task has no classes with others above.")
    return SemanticSoftmax(
        read_hierarchy(options.hierarchy, setting.dataset.classes, inner=options.inner),
        base,
        setting.model.num_features,
        target=setting.target,
        max_factor=options.max_factor,
        drop_deepest=options.drop_deepest,
        extend_leaves=options.extend_leaves,
    )


OBJECTIVE = ObjectiveKind(
    name="semantic-softmax",
    summary="learn the classes of a hierarchy, with one softmax per level",
    objective=SemanticSoftmax,
    options=SemanticSoftmaxOptions,
    build=build,
    source="ImageNet-21K Pretraining for the Masses, arXiv 2104.10972",
)

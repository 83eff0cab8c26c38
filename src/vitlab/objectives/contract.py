"""What an objective gives the loop: a scalar to minimise, metrics, and whatever heads and other players it needs."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TypeAlias, final

from jaxtyping import Float
from torch import Tensor, nn

from vitlab.data.batch import Batch
from vitlab.data.contract import DataSet
from vitlab.data.streams import StreamPlan
from vitlab.models.contract import Model
from vitlab.objectives.shown import Shown

Metrics: TypeAlias = dict[str, Tensor]
Loss: TypeAlias = Callable[[Model, Batch, Tensor], tuple[Tensor, Metrics]]


class Criterion(nn.Module, ABC):
    """A loss for each image from a model's outputs and a target; a task chooses it, `Supervised` takes its mean."""

    @abstractmethod
    def losses(self, outputs: Tensor, target: Tensor) -> Float[Tensor, "b"]:
        """Each image's loss."""

    def measures(self, outputs: Tensor, target: Tensor) -> dict[str, Float[Tensor, "b"]]:
        """What else to log of each image, by name."""
        del outputs, target
        return {}

    def means(self, outputs: Tensor, target: Tensor) -> tuple[Float[Tensor, ""], Metrics]:
        """The mean loss and the means of the measures."""
        outputs = outputs.float()
        loss = self.losses(outputs, target).mean()
        return loss, {name: value.mean().detach() for name, value in self.measures(outputs, target).items()}


@final
@dataclass(frozen=True)
class Phase:
    """A turn within a step: what it minimises, and which parameters it trains, by their names in the learner.

    `optimizer` changes fields of the recipe's optimizer for it. A parameter is trained in one phase at most; one that
    none trains is frozen. With `again`, the name of an earlier phase, it is another turn of that one, with its
    parameters and its optimizer.
    """

    name: str
    loss: Loss
    trains: Callable[[str], bool] = lambda _: True  # of 'model.head.weight', 'objective.decoder.0.bias'
    optimizer: Mapping[str, Any] = field(default_factory=dict)
    again: str | None = None


class Objective(nn.Module, ABC):
    """Owns its extra heads and other players as submodules; they are trained with the model and saved with the run.

    `progress`, the part of the run that is done, is a scalar tensor at a fixed place, so that a captured step sees it
    move. What is drawn at random is counted from the batch's `places`, or comes from torch's generator, which is
    seeded by the step.
    """

    capturable: bool = True  # whether its step is the same work every time, decided on the device alone
    only_calls: ClassVar[bool] = False  # whether its loss calls the model, in the step's precision, and no more
    whole_batch: ClassVar[bool] = False  # whether its loss is over a whole batch, so that parts do not add up to it
    needs_unlabelled: ClassVar[bool] = False  # whether it reads the data's unlabelled images beside the labelled ones
    scores_task: ClassVar[bool] = True  # whether the model answers the task, so that the task's score selects

    @abstractmethod
    def loss(self, model: Model, batch: Batch, progress: Float[Tensor, ""]) -> tuple[Float[Tensor, ""], Metrics]:
        """The scalar to minimise, the mean over the batch, and what to log.

        Where the task's score does not select, the held-out part's mean of this does. A teacher's answers are told of
        by `collapse.teacher_entropy`, so that it is noticed when they become all the same.
        """

    def phases(self, model: Model) -> tuple[Phase, ...]:
        """The turns of a step; by default one that trains all that may be trained."""
        del model
        return (Phase("train", self.loss),)

    def streams(self, main: StreamPlan) -> tuple[StreamPlan, ...]:
        """What a batch holds; `main` is the training part in one view as the recipe augments it.

        It has the task's target where the model answers the task, else none.
        """
        return (main,)

    @property
    def teacher(self) -> Model | None:
        """A trained model that it learns from, known by its weights' fingerprint and not saved with the run."""
        return None

    def param_groups(self) -> list[dict[str, Any]]:
        """Its own parameters in groups, as torch's optimizers take them; by default with the model's lr and decay.

        A group's `lr_scale` is a factor of the model's lr, its `weight_decay` takes the place of the model's. With
        `inner` they are matrices of layers, which Muon trains. Another player of a model's kind is a `model_group`.
        """
        own = [parameter for parameter in self.parameters() if parameter.requires_grad]
        vectors = [parameter for parameter in own if parameter.ndim < 2]
        groups = [{"params": [p for p in own if p.ndim >= 2]}, {"params": vectors, "weight_decay": 0.0}]
        return [group for group in groups if group["params"]]

    def after_step(self, model: Model, made: Tensor) -> None:
        """Change centres, queues and averaged players, once per step; `made`, a scalar, is false for a skipped one.

        It may be captured in a graph: what it does must depend on `made` by arithmetic alone.
        """
        del model, made

    def product(self, model: Model) -> Model:
        """Which module becomes the run's `model/`."""
        return model

    def show(self, model: Model, batch: Batch) -> Shown | None:
        """Pictures of its predictions for a few held-out images, which the run's report shows; None: it has none."""
        del model, batch
        return None


def model_group(player: Model, lr_scale: float = 1.0) -> dict[str, Any]:
    """A group of `param_groups`: a player whose parameters have lrs and decay as those of the run's model have."""
    own = [parameter for parameter in player.parameters() if parameter.requires_grad]
    return {"params": own, "model": player, "lr_scale": lr_scale}


@final
@dataclass(frozen=True, kw_only=True)
class Setting:
    """What an objective is built for."""

    model: Model
    dataset: DataSet
    target: str  # the target that the task learns
    criterion: Callable[[], Criterion]  # the task's loss; an error where the data lacks what it needs
    folder: Path | None = None  # the run's, for what is computed once before it starts


@final
@dataclass(frozen=True, kw_only=True)
class ObjectiveKind:
    """What a file says of its objective."""

    name: str
    summary: str
    objective: type[Objective]
    options: type[Any]  # a dataclass with defaults, each of them a field that recipes can set
    build: Callable[[Any, Setting], Objective]
    source: str = ""  # the paper

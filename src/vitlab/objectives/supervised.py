"""Learning a target: the mean of the task's loss over the images."""

from dataclasses import dataclass
from typing import ClassVar, final

from jaxtyping import Float
from torch import Tensor

from vitlab.data.batch import Batch
from vitlab.models.contract import Model
from vitlab.objectives.contract import Criterion, Metrics, Objective, ObjectiveKind, Setting


@dataclass(frozen=True)
class SupervisedOptions:
    """Nothing but the task's own loss (loss.*)."""


@final
class Supervised(Objective):
    """The task's loss of the model's outputs."""

    only_calls: ClassVar[bool] = True

    def __init__(self, criterion: Criterion, target: str = "label") -> None:
        super().__init__()
        self.criterion, self.target = criterion, target

    def loss(self, model: Model, batch: Batch, progress: Float[Tensor, ""]) -> tuple[Float[Tensor, ""], Metrics]:
        del progress
        return self.criterion.means(model(batch.images), batch.targets[self.target])


def build(options: SupervisedOptions, setting: Setting) -> Supervised:
    del options
    return Supervised(setting.criterion(), setting.target)


OBJECTIVE = ObjectiveKind(
    name="supervised",
    summary="learn the target of each image",
    objective=Supervised,
    options=SupervisedOptions,
    build=build,
)

"""SimCLR (arXiv 2002.05709): of all views in a batch, find the other one of the same image."""

from dataclasses import dataclass, replace
from typing import ClassVar, final

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from vitlab.core.bounds import PositiveFloat, PositiveInt
from vitlab.core.config import check_fields
from vitlab.core.errors import ConfigError
from vitlab.data.batch import Batch
from vitlab.data.streams import StreamPlan
from vitlab.models.contract import Model
from vitlab.objectives.contract import Metrics, Objective, ObjectiveKind, Setting
from vitlab.objectives.views import by_size, feature_std
from vitlab.objectives.whole_batch import Projector, gathered


@dataclass(frozen=True, kw_only=True)
class SimclrOptions:
    """Tell the other view of an image from the views of all other images of the batch."""

    temperature: PositiveFloat = 0.2  # of similarities; the lower, the more the nearest negatives count
    hidden: PositiveInt = 2048  # the width of the projector's inner layer
    out_dim: PositiveInt = 128  # the width of the projections that are compared

    def __post_init__(self) -> None:
        check_fields(self, "objective.")


@final
class Simclr(Objective):
    """NT-Xent: the cross-entropy of picking a view's partner by cosine similarity / temperature among all others.

    The negatives are the images of all processes.
    """

    only_calls: ClassVar[bool] = True
    whole_batch: ClassVar[bool] = True
    scores_task: ClassVar[bool] = False

    def __init__(self, options: SimclrOptions, model: Model) -> None:
        super().__init__()
        self.temperature = options.temperature
        self.projector = Projector(model.num_features, options.hidden, options.out_dim, num_layers=2)

    def streams(self, main: StreamPlan) -> tuple[StreamPlan, ...]:
        if main.batch_size < 2:
            raise ConfigError("SimCLR compares the images of a batch: batch_size must be 2 at least.")
        return (replace(main, views=main.views * 2),)

    def loss(self, model: Model, batch: Batch, progress: Float[Tensor, ""]) -> tuple[Float[Tensor, ""], Metrics]:
        del progress
        features = torch.cat(by_size(batch.first.views, model.pooled))
        projected = torch.stack(self.projector(features).chunk(2), dim=1)  # [b, 2, d]
        loss, found = nt_xent(projected, self.temperature)
        return loss, {"pairs found": found, "feature std": feature_std(features)}


def nt_xent(projected: Float[Tensor, "b two d"], temperature: float) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """The mean loss of this process's views, and the part of them whose partner is the nearest of all."""
    with torch.autocast(projected.device.type, enabled=False):
        own = F.normalize(projected.float(), dim=2)
        everyone, first = gathered(own)
        logits = own.flatten(0, 1) @ everyone.flatten(0, 1).T / temperature
    rows = torch.arange(logits.shape[0], device=logits.device)
    itself = rows + 2 * first
    partner = itself ^ 1
    logits = logits.masked_fill(torch.arange(logits.shape[1], device=logits.device) == itself[:, None], -torch.inf)
    return F.cross_entropy(logits, partner), (logits.argmax(dim=1) == partner).float().mean()


def build(options: SimclrOptions, setting: Setting) -> Simclr:
    return Simclr(options, setting.model)


OBJECTIVE = ObjectiveKind(
    name="simclr",
    summary="find the other view of an image among all views of the batch (contrastive)",
    objective=Simclr,
    options=SimclrOptions,
    build=build,
    source="A Simple Framework for Contrastive Learning of Visual Representations, arXiv 2002.05709",
)

"""LeJEPA (arXiv 2511.08544): views of an image agree, and projections are spread as a Gaussian. There is no teacher."""

import math
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from jaxtyping import Float
from torch import Tensor

from vitlab.core.bounds import NonNegativeInt, PositiveInt, Probability
from vitlab.core.random import uniform
from vitlab.data.batch import Batch
from vitlab.data.streams import StreamPlan
from vitlab.models.contract import Model
from vitlab.objectives.contract import Metrics, Objective, ObjectiveKind, Setting
from vitlab.objectives.views import Crops, by_size, feature_std, patch_of
from vitlab.objectives.whole_batch import Projector, num_processes, total

KNOTS, FARTHEST = 17, 3.0  # of the trapezoidal rule, from 0 on: the integrand is even


@dataclass(frozen=True, kw_only=True)
class LejepaOptions(Crops):
    """Views of an image agree with their mean, and in every direction projections are a standard normal's."""

    weight: Probability = 0.02  # lambda: the share of the loss that is SIGReg
    num_large: PositiveInt = 4  # large views of each image
    num_small: NonNegativeInt = 0  # small views of each image
    slices: PositiveInt = 256  # random directions per step
    hidden: PositiveInt = 2048  # the width of the projector's two inner layers
    out_dim: PositiveInt = 16  # the width of the projections


@final
class Lejepa(Objective):
    """(1 - lambda) |z_v - mean of the large views' z|^2 + lambda SIGReg(z), both means over views and numbers."""

    only_calls: ClassVar[bool] = True
    whole_batch: ClassVar[bool] = True
    scores_task: ClassVar[bool] = False

    def __init__(self, options: LejepaOptions, model: Model) -> None:
        super().__init__()
        self.options, self.patch = options, patch_of(model)
        self.seed = int(torch.randint(2**32, ()))  # torch's generator is seeded by the recipe here
        self.projector = Projector(model.num_features, options.hidden, options.out_dim, num_layers=3)

    def streams(self, main: StreamPlan) -> tuple[StreamPlan, ...]:
        return (self.options.views(main, self.options.num_large, self.patch),)

    def loss(self, model: Model, batch: Batch, progress: Float[Tensor, ""]) -> tuple[Float[Tensor, ""], Metrics]:
        views, large, weight = batch.first.views, self.options.num_large, self.options.weight
        features = by_size(views, model.pooled)
        z = torch.stack(self.projector(torch.cat(features)).float().chunk(len(views)))  # [V, b, d]
        agreement = (z - z[:large].mean(dim=0)).square().mean()
        # the same directions in all processes, others in each step
        drawn = directions(self.seed, progress, z.shape[2], self.options.slices)
        spread = sigreg(z, drawn)
        metrics = {"agreement": agreement.detach(), "sigreg": spread.detach(), "feature std": feature_std(features[0])}
        return (1 - weight) * agreement + weight * spread, metrics


def directions(seed: int, progress: Float[Tensor, ""], width: int, num: int) -> Float[Tensor, "d s"]:
    """Directions that are uniform on the sphere, counted from how far the run is."""
    counter = progress.detach().float().view(torch.int32)
    draws = uniform(seed, counter, torch.arange(2 * width * num, device=progress.device)).view(2, width, num)
    normal = (-2 * (1 - draws[0]).log()).sqrt() * (2 * math.pi * draws[1]).cos()
    return normal / normal.norm(dim=0)


def sigreg(z: Float[Tensor, "v b d"], along: Float[Tensor, "d s"]) -> Float[Tensor, ""]:
    """The Epps-Pulley statistic of each view's batch, the mean over directions and views.

    n times the integral of |E exp(i t x) - exp(-t^2 / 2)|^2 exp(-t^2 / 2) dt, E being the mean over the batch.
    """
    num = z.shape[1] * num_processes()
    t = torch.linspace(0, FARTHEST, KNOTS, device=z.device)
    normal = torch.exp(-t.square() / 2)
    weights = torch.full_like(t, 2 * FARTHEST / (KNOTS - 1)) * normal
    ends = (torch.arange(KNOTS, device=z.device) % (KNOTS - 1) == 0).float()
    weights = weights * (1 - ends / 2)
    with torch.autocast(z.device.type, enabled=False):
        angles = (z.float() @ along)[..., None] * t  # [V, b, S, knots]
    real, imaginary = total(torch.stack([angles.cos().sum(dim=1), angles.sin().sum(dim=1)])) / num
    errors = (real - normal).square() + imaginary.square()
    return (errors * weights).sum(dim=-1).mean() * num


def build(options: LejepaOptions, setting: Setting) -> Lejepa:
    return Lejepa(options, setting.model)


OBJECTIVE = ObjectiveKind(
    name="lejepa",
    summary="views of an image agree, and features are spread as a Gaussian; no teacher",
    objective=Lejepa,
    options=LejepaOptions,
    build=build,
    source="LeJEPA: Provable and Scalable Self-Supervised Learning Without the Heuristics, arXiv 2511.08544",
)

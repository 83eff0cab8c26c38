"""What an objective gives the loop: a scalar to minimise, metrics, and whatever heads it needs for it."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from vitlab.models.contract import Model

Metrics: TypeAlias = dict[str, Tensor]
Forward: TypeAlias = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Batch:
    """Normalised images, and a target for each: class probabilities [B, K], or 0/1 a class where several hold."""

    images: Float[Tensor, "b c h w"]
    targets: Float[Tensor, "b k"]

    def parts(self, num: int) -> list["Batch"]:
        """The batch cut into parts of a size, for accumulation; the last may be smaller."""
        return [
            Batch(images, targets)
            for images, targets in zip(self.images.chunk(num), self.targets.chunk(num), strict=True)
        ]


def auxiliary_losses(model: Forward) -> dict[str, Tensor]:
    """What the model itself adds to the loss of the pass just made, also from inside its replicated wrapper."""
    inner = model.module if isinstance(model, DistributedDataParallel) else model
    return inner.auxiliary() if isinstance(inner, Model) else {}


class Objective(nn.Module, ABC):
    """Owns its extra heads as submodules; the loop optimises them with the model and saves them with it."""

    capturable = False  # whether its step is the same work every time: `step` is not looked at, `after_step` is empty

    @abstractmethod
    def loss(self, model: Forward, batch: Batch, step: int) -> tuple[Float[Tensor, ""], Metrics]:
        """The scalar to minimise, the mean over the batch, and what to log."""

    def backward(self, model: Forward, batch: Batch, step: int, *, scale: float = 1.0) -> tuple[Tensor, Metrics]:
        """Gradients of `scale` times the loss; replaced by an objective that needs several passes."""
        loss, metrics = self.loss(model, batch, step)
        (loss * scale).backward()
        return loss.detach(), metrics

    def param_groups(self) -> list[dict[str, Any]]:
        """Its own parameters in groups, as torch's optimisers take them; by default with the model's rate and decay.

        A group's `rate` is a factor of the model's, its `weight_decay` takes the place of the model's.
        """
        own = [parameter for parameter in self.parameters() if parameter.requires_grad]
        vectors = [parameter for parameter in own if parameter.ndim < 2]
        groups = [{"params": [p for p in own if p.ndim >= 2]}, {"params": vectors, "weight_decay": 0.0}]
        return [group for group in groups if group["params"]]

    def compile_own(self, options: dict[str, Any]) -> None:
        """Compile what is done with the model's answers, where there is something; the model itself is not its own."""
        del options

    def after_step(self, model: nn.Module, step: int) -> None:
        """Called when the optimiser has made its step."""
        del model, step

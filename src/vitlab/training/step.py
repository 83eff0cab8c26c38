"""One optimiser step: gradients, clipping, the finite check, the update, the averaged weights."""

import contextlib
from collections.abc import Callable
from typing import Protocol, TypeAlias

import torch
from torch import Tensor, nn

from vitlab.core.random import torch_seed
from vitlab.objectives.contract import Batch, Metrics
from vitlab.training.average import running
from vitlab.training.distribution import World, any_of, mean_over, without_sync
from vitlab.training.mixed import clip_by, total_norm
from vitlab.training.optimisers import Optimiser, Perturbation, set_rate
from vitlab.training.state import State

Autocast: TypeAlias = Callable[[], contextlib.AbstractContextManager[object]]


class Feed(Protocol):
    """Training batches by step: normalised images on the device, and a soft target for each."""

    def batch(self, step: int) -> tuple[Tensor, Tensor]: ...

    def close(self) -> None: ...


class Stepper:
    """A step by its number. Sums of the metrics stay on the device until `read` asks for their means."""

    def __init__(
        self,
        state: State,
        module: nn.Module,
        feed: Feed,
        spec: Optimiser,
        *,
        accumulate: int,
        seed: int,
        world: World,
        autocast: Autocast = contextlib.nullcontext,
    ) -> None:
        self.state, self.module, self.feed, self.spec, self.world = state, module, feed, spec, world
        self.accumulate, self.seed, self.autocast = accumulate, seed, autocast
        self.parameters = [p for o in state.optimisers for group in o.param_groups for p in group["params"]]
        self.running = list(running(state.model).values())
        self.perturbation = Perturbation(self.parameters, spec.sam) if spec.sam else None
        kept = state.progress
        self.sums = {name: torch.tensor(value, device=world.device) for name, value in kept.sums.items()}
        self.count = kept.summed
        self.last_batch: Batch | None = None

    def gradients(self, batch: Batch, step: int) -> tuple[Tensor, Metrics]:
        """The gradients of the mean loss over the batch, in parts; loss and metrics are means over its images."""
        for parameter in self.parameters:
            parameter.grad = None
        totals: dict[str, Tensor] = {}
        parts = batch.parts(self.accumulate)
        for i, part in enumerate(parts):
            share = len(part.images) / len(batch.images)
            with without_sync(self.module, i < len(parts) - 1), self.autocast():
                loss, metrics = self.state.objective.backward(self.module, part, step, scale=share)
            for name, value in {"loss": loss, **metrics}.items():
                totals[name] = totals[name] + value * share if name in totals else value * share
        for parameter in self.state.objective.parameters():  # which are in no wrapper that would do it
            if parameter.grad is not None:
                parameter.grad = mean_over(self.world, parameter.grad)
        return totals.pop("loss"), totals

    def __call__(self, step: int, rate: float) -> bool:
        """Make the step; False where it was skipped because loss or gradients were not finite."""
        batch = self.last_batch = Batch(*self.feed.batch(step))
        set_rate(self.state.optimisers, rate)
        torch.manual_seed(torch_seed(self.seed, "dropout", step, self.world.rank))
        before = [value.clone() for value in self.running]
        loss, metrics = self.gradients(batch, step)
        if self.perturbation is not None and self._finite(loss, self._norm()):
            self.perturbation.uphill()
            torch.manual_seed(torch_seed(self.seed, "dropout", step, self.world.rank))
            counted = [value.clone() for value in self.running]
            self.gradients(batch, step)
            self.perturbation.back()
            self._put_back(counted)  # the batch was counted by the first pass
        norm = self._norm()
        if not self._finite(loss, norm):
            self._put_back(before)
            self.state.progress.skipped += 1
            self.state.progress.skipped_in_a_row += 1
            return False
        self.state.progress.skipped_in_a_row = 0
        if self.spec.clip is not None:
            clip_by(self.parameters, self.spec.clip, norm)
        for optimiser in self.state.optimisers:
            optimiser.step()
        self.state.objective.after_step(self.state.model, step)
        if self.state.average is not None:
            self.state.average.update(step + 1)
        for name, value in {"loss": loss, "gradient norm": norm, **metrics}.items():
            self.sums[name] = self.sums[name] + value if name in self.sums else value.clone()
        self.count += 1
        return True

    def keep(self) -> None:
        """Put what was summed since the last reading where a checkpoint finds it."""
        progress = self.state.progress
        progress.sums, progress.summed = {name: value.item() for name, value in self.sums.items()}, self.count

    def read(self) -> dict[str, float]:
        """The means since the last reading."""
        means = {name: (value / max(self.count, 1)).item() for name, value in self.sums.items()}
        self.sums, self.count = {}, 0
        return means

    def _put_back(self, statistics: list[Tensor]) -> None:
        """Batch norm's statistics as they were: a pass that is not finite would spoil them for good."""
        for value, old in zip(self.running, statistics, strict=True):
            value.copy_(old)

    def _norm(self) -> Tensor:
        return total_norm(self.parameters)

    def _finite(self, loss: Tensor, norm: Tensor) -> bool:
        return not any_of(self.world, not bool((torch.isfinite(loss) & torch.isfinite(norm)).item()))

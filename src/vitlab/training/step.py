"""One step: gradients, clipping, the finite check and the update for each phase, then the averaged weights."""

import contextlib
from collections.abc import Callable, Mapping
from typing import Protocol, TypeAlias

import torch
from torch import Tensor, nn

from vitlab.core.random import torch_seed
from vitlab.data.batch import Batch
from vitlab.objectives.contract import Metrics
from vitlab.training.distribution import World, any_of, mean_over, without_sync
from vitlab.training.ema import running
from vitlab.training.mixed import clip_by, total_norm
from vitlab.training.optimizers import Optimizer, set_lr
from vitlab.training.sam import Perturbation
from vitlab.training.state import State

Autocast: TypeAlias = Callable[[], contextlib.AbstractContextManager[object]]


class Feed(Protocol):
    """Training batches by step, on the device."""

    def batch(self, step: int) -> Batch: ...

    @property
    def damaged(self) -> Mapping[int, str]: ...

    def close(self) -> None: ...


class Turn:
    """A phase of a step: the module to call for its loss, its parameters, and how they are changed.

    `lowest` is the schedule's lowest factor of the lr.
    """

    def __init__(
        self,
        name: str,
        module: nn.Module,
        optimizers: list[torch.optim.Optimizer],
        spec: Optimizer,
        *,
        lowest: float = 0.0,
    ) -> None:
        self.name, self.module, self.optimizers, self.spec = name, module, optimizers, spec
        self.parameters: list[nn.Parameter] = [
            p for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]
        ]
        self.perturbation = None if spec.sam is None else Perturbation(self.parameters, spec, lowest)

    def set_factor(self, factor: float) -> None:
        """The lr of a step, and what follows it, for a factor of the base lr."""
        set_lr(self.optimizers, self.spec.lr * factor)
        if self.perturbation is not None:
            self.perturbation.set_radius(factor)


class Stepper:
    """A step by its number. Sums of the metrics stay on the device until `read` asks for their means."""

    waits = True  # for the device in every step, so that the host knows how long one takes

    def __init__(
        self,
        state: State,
        turns: list[Turn],
        feed: Feed,
        *,
        total: int,
        accumulate: int,
        seed: int,
        world: World,
        autocast: Autocast = contextlib.nullcontext,
    ) -> None:
        self.state, self.turns, self.feed, self.total, self.world = state, turns, feed, total, world
        self.accumulate, self.seed, self.autocast = accumulate, seed, autocast
        self.progress = torch.zeros((), device=world.device)
        self.running = list(running(state.learner).values())  # of other players too
        kept = state.progress
        self.sums = {name: torch.tensor(value, device=world.device) for name, value in kept.sums.items()}
        self.count = kept.summed
        self.last_batch: Batch | None = None

    def gradients(self, turn: Turn, batch: Batch) -> tuple[Tensor, Metrics]:
        """The gradients of the mean loss over the batch, in parts; loss and metrics are means over its images."""
        for parameter in turn.parameters:
            parameter.grad = None
        totals: dict[str, Tensor] = {}
        parts = batch.parts(self.accumulate) if self.accumulate > 1 else [batch]
        for i, part in enumerate(parts):
            share = len(part) / len(batch)
            with without_sync(turn.module, i < len(parts) - 1), self.autocast():
                loss, metrics = turn.module(part, self.progress, turn.name)
                (loss * share).backward()
            for name, value in {"loss": loss.detach(), **metrics}.items():
                totals[name] = totals[name] + value * share if name in totals else value * share
        return totals.pop("loss"), totals

    def __call__(self, step: int, factor: float) -> bool:
        """Make the step, with lrs times a factor; False where it was skipped: loss or gradients were not finite."""
        batch = self.last_batch = self.feed.batch(step)
        self.progress.fill_(step / self.total)
        measured: dict[str, Tensor] = {}
        for turn in self.turns:
            found = self._take(turn, batch, step, factor)
            if found is None:
                self.state.progress.skipped += 1
                self.state.progress.skipped_in_a_row += 1
                return False
            measured |= found
        self.state.progress.skipped_in_a_row = 0
        self.state.objective.after_step(self.state.model, torch.ones((), dtype=torch.bool, device=self.world.device))
        if self.state.ema is not None:
            self.state.ema.update(step + 1)
        for name, value in measured.items():
            self.sums[name] = self.sums[name] + value if name in self.sums else value.clone()
        self.count += 1
        return True

    def _take(self, turn: Turn, batch: Batch, step: int, factor: float) -> Metrics | None:
        """A phase's update, and what to log of it; None where loss or gradients were not finite."""
        self.state.learner.turn(turn.name)
        seed = self._seed_of(turn, step)
        turn.set_factor(factor)
        torch.manual_seed(seed)
        before = [value.clone() for value in self.running]
        loss, metrics = self.gradients(turn, batch)
        if turn.perturbation is not None and self._finite(loss, total_norm(turn.parameters)):
            turn.perturbation.uphill()
            torch.manual_seed(seed)
            counted = [value.clone() for value in self.running]
            self.gradients(turn, batch)
            turn.perturbation.back()
            self._put_back(counted)  # the batch was counted by the first pass
        norm = total_norm(turn.parameters)
        if not self._finite(loss, norm):
            self._put_back(before)
            return None
        if turn.spec.clip is not None:
            clip_by(turn.parameters, turn.spec.clip, norm)
        for optimizer in turn.optimizers:
            optimizer.step()
        return self._measured(turn, loss, norm, metrics)

    def _seed_of(self, turn: Turn, step: int) -> int:
        """Of what a turn draws at random."""
        more = () if turn is self.turns[0] else (turn.name,)
        return torch_seed(self.seed, "dropout", step, self.world.rank, *more)

    def _measured(self, turn: Turn, loss: Tensor, norm: Tensor, metrics: Metrics) -> Metrics:
        """What to log of a turn, with its name but for the first."""
        found = {"loss": loss, "gradient norm": norm, **metrics}
        return found if turn is self.turns[0] else {f"{turn.name} {name}": value for name, value in found.items()}

    def rehearse(self, batch: Batch) -> None:
        """Compute the gradients of a step and forget them, for their time; nothing that trains is changed.

        Nor is what an objective remembers of a step until it ends, which no checkpoint holds.
        """
        before = [(value, value.clone()) for value in self.state.learner.buffers()]
        try:
            with torch.random.fork_rng(devices=[self.world.device] if self.world.device.type == "cuda" else []):
                for turn in self.turns:
                    self.state.learner.turn(turn.name)
                    for _ in range(1 if turn.perturbation is None else 2):
                        self.gradients(turn, batch)
                    for parameter in turn.parameters:
                        parameter.grad = None
        finally:
            for value, old in before:
                value.copy_(old)

    def keep(self) -> None:
        """Put what was summed since the last reading, everybody's, where a checkpoint finds it."""
        progress, sums = self.state.progress, [value.item() for value in self.sums.values()]
        if self.world.size > 1:
            sums = mean_over(self.world, torch.tensor(sums, dtype=torch.float64, device=self.world.device)).tolist()
        progress.sums, progress.summed = dict(zip(self.sums, sums, strict=True)), self.count

    def read(self) -> dict[str, float]:
        """The means since the last reading."""
        means = {name: (value / max(self.count, 1)).item() for name, value in self.sums.items()}
        self.sums, self.count = {}, 0
        return means

    def _put_back(self, statistics: list[Tensor]) -> None:
        """Batch norm's statistics as they were: a pass that is not finite would spoil them for good."""
        for value, old in zip(self.running, statistics, strict=True):
            value.copy_(old)

    def _finite(self, loss: Tensor, norm: Tensor) -> bool:
        return not any_of(self.world, not bool((torch.isfinite(loss) & torch.isfinite(norm)).item()))

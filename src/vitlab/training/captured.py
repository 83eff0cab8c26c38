"""The whole step as one CUDA graph: the host replays it and is never waited for.

A small model's step is hundreds of short kernels; launched one by one, the host is slower than the GPU. Captured once,
batch, forward, backward, clipping, update and averaged weights are one launch. What changes from step to step (the
step's number, the epoch's order, the rate) lies in tensors of fixed places.
"""

from typing import Any, final

import torch
from torch import Tensor

from vitlab.core.random import torch_seed
from vitlab.data.resident import ResidentFeed
from vitlab.objectives.contract import Batch
from vitlab.training.optimisers import ON_DEVICE, set_rate
from vitlab.training.step import Stepper

WARM_UP = 3  # steps on the side stream before the capture, real ones


@final
class CapturedStepper(Stepper):
    """A stepper for a feed on the GPU and optimisers that work on the device alone, in one process.

    Whether a step was skipped is known on the device only: `skipped_in_a_row` and the count of skipped steps are read
    with the metrics.
    """

    feed: ResidentFeed
    _graph: torch.cuda.CUDAGraph | None = None

    def prepare(self) -> None:
        device = self.world.device
        self._stream = torch.cuda.Stream(device)
        self._step = torch.zeros((), dtype=torch.int64, device=device)
        self._made = torch.full((), self.count, dtype=torch.int64, device=device)
        self._in_a_row = torch.zeros((), dtype=torch.int64, device=device)
        self._skipped = torch.zeros((), dtype=torch.int64, device=device)
        self._bad = torch.zeros((), device=device)
        self._warm = 0
        for optimiser in self.state.optimisers:
            optimiser.found_inf = self._bad  # pyright: ignore[reportAttributeAccessIssue] (fused ones leave out a step)
            optimiser.grad_scale = None  # pyright: ignore[reportAttributeAccessIssue]

    def __call__(self, step: int, rate: float) -> bool:
        if not hasattr(self, "_stream"):
            self.prepare()
        self.feed.prepare(step)
        set_rate(self.state.optimisers, rate)
        self._step.fill_(step + 1)
        torch.cuda.manual_seed(torch_seed(self.seed, "dropout", step, self.world.rank))
        if self._graph is not None:
            self._graph.replay()
        elif self._warm < WARM_UP:
            self._warm += 1
            self._stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._stream):
                self._body()
            torch.cuda.current_stream().wait_stream(self._stream)
        else:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=self._stream):
                self._body()
            self._graph = graph
            graph.replay()
        return True

    def _body(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None  # the backward pass leaves its own, in the graph's memory
        batch = Batch(*self.feed.made())
        before = [value.clone() for value in self.running]
        with self.autocast():
            loss, metrics = self.state.objective.backward(self.module, batch, 0)
        gradients: list[Tensor] = [p.grad for p in self.parameters if p.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients, foreach=True)
        good = torch.isfinite(loss) & torch.isfinite(norm)
        self._bad.copy_((~good).float())
        self._put_back([torch.where(good, value, old) for value, old in zip(self.running, before, strict=True)])
        if self.spec.clip is not None:
            torch.nn.utils.clip_grads_with_norm_(self.parameters, self.spec.clip, norm)
        for optimiser in self.state.optimisers:
            optimiser.step()
        if self.state.average is not None:
            self.state.average.update_on_device(self._step, good)
        self._made.add_(good)
        self._skipped.add_(~good)
        self._in_a_row.copy_(torch.where(good, 0, self._in_a_row + 1))
        for name, value in {"loss": loss, "gradient norm": norm, **metrics}.items():
            if name not in self.sums:
                self.sums[name] = torch.zeros((), device=self.world.device)
            self.sums[name].add_(torch.where(good, value.float(), 0.0))

    def keep(self) -> None:
        self.count = int(self._made.item())
        super().keep()

    def read(self) -> dict[str, float]:
        made = max(int(self._made.item()), 1)
        means = {name: value.item() / made for name, value in self.sums.items()}
        for value in (*self.sums.values(), self._made):
            value.zero_()
        progress = self.state.progress
        progress.skipped += int(self._skipped.item())
        progress.skipped_in_a_row = int(self._in_a_row.item())
        self._skipped.zero_()
        if progress.skipped_in_a_row:
            self.last_batch = Batch(*self.feed.made())
        return means


def can_capture(stepper_arguments: dict[str, Any]) -> bool:
    """Whether a run's parts allow the capture."""
    state, feed, spec = stepper_arguments["state"], stepper_arguments["feed"], stepper_arguments["spec"]
    lr = state.optimisers[0].param_groups[0]["lr"]
    return (
        isinstance(feed, ResidentFeed)
        and isinstance(lr, Tensor)  # rates on the device: one process, one copy of the model
        and stepper_arguments["accumulate"] == 1
        and spec.name in ON_DEVICE
        and spec.sam is None
        and type(state.objective).__name__ == "Supervised"
    )

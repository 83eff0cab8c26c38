"""The whole step as one CUDA graph: the host replays it and is never waited for.

A small model's step is hundreds of short kernels; launched one by one, the host is slower than the GPU. Captured once,
batch, forward, backward, clipping, update and averaged weights are one launch. What changes from step to step (the
step's number, the epoch's order, the rate) lies in tensors of fixed places.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import final

import torch
from torch import Event, Tensor

from vitlab.core.compiling import compile_options
from vitlab.data.loading.resident_feed import ResidentFeed
from vitlab.objectives.contract import Metrics
from vitlab.training.mixed import total_norm
from vitlab.training.sam import Perturbation
from vitlab.training.step import Stepper, Turn

WARM_UP = 3  # steps on the side stream before the capture, real ones


def judge(loss: Tensor, norm: Tensor, bad: Tensor, scale: Tensor | None, clip: float | None) -> Tensor:
    """Whether a turn is to be made, none before it being bad; `bad` and `scale`, which tell the optimizers, are set."""
    good = torch.isfinite(loss) & torch.isfinite(norm) & (bad == 0)
    bad.copy_((~good).float())
    if scale is not None and clip is not None:
        scale.copy_(((norm + 1e-6) / clip).clamp(min=1))  # torch's clipping, turned over
    return good


def count(
    good: Tensor, values: list[Tensor], sums: list[Tensor], made: Tensor, skipped: Tensor, in_a_row: Tensor
) -> None:
    """Add a step's metrics to their sums, and to the counts whether it was made."""
    for total, value in zip(sums, values, strict=True):
        total.add_(torch.where(good, value.float(), 0.0))
    made.add_(good)
    skipped.add_(~good)
    in_a_row.copy_(torch.where(good, 0, in_a_row + 1))


@final
class CapturedStepper(Stepper):
    """A stepper for a feed on the GPU and optimizers that work on the device alone, in one process.

    The next batch is made beside the step, wherever that leaves room on the GPU: augmentation is many small kernels,
    which leave most of it idle when they run alone. So is the average of the step before.

    Whether a step was skipped is known on the device only: `skipped_in_a_row` and the count of skipped steps are read
    with the metrics.
    """

    feed: ResidentFeed
    waits = False
    _graph: torch.cuda.CUDAGraph | None = None
    _judge: Callable[..., Tensor] = staticmethod(judge)  # or the compiled one
    _count: Callable[..., None] = staticmethod(count)

    def prepare(self) -> None:
        device = self.world.device
        self._stream, self._beside = _streams(device)
        self._batch: list[Tensor] = []  # of the step `held`, in fixed places
        self._held = -1
        self._step = torch.zeros((), dtype=torch.int64, device=device)
        self._made = torch.full((), self.count, dtype=torch.int64, device=device)
        self._in_a_row = torch.zeros((), dtype=torch.int64, device=device)
        self._skipped = torch.zeros((), dtype=torch.int64, device=device)
        self._bad = torch.zeros((), device=device)  # 1 where this turn of the step, or one before it, is not finite
        self._scale = torch.ones((), device=device)  # of this turn: what its gradients are divided by
        self._warm = 0
        # of every turn but the first, which has torch's own, and of SAM's second passes
        self._draws = {turn.name: _generator().clone_state() for turn in self.turns[1:]}
        self._again = {turn.name: _generator().clone_state() for turn in self.turns if turn.perturbation is not None}
        for turn in self.turns:
            for optimizer in turn.optimizers:
                # As for torch's scaled gradients: fused optimizers leave out a step, and divide on the way.
                optimizer.found_inf = self._bad  # pyright: ignore[reportAttributeAccessIssue]
                optimizer.grad_scale = self._scale_of(turn)  # pyright: ignore[reportAttributeAccessIssue]

    def _scale_of(self, turn: Turn) -> Tensor | None:
        return None if turn.spec.clip is None else self._scale

    def compile(self) -> None:
        """Make the counting around a step a few kernels; there are dozens, of a few numbers each."""
        options = compile_options(self.world.device)
        self._judge, self._count = torch.compile(judge, options=options), torch.compile(count, options=options)

    def __call__(self, step: int, factor: float) -> bool:
        if not hasattr(self, "_stream"):
            self.prepare()
        if self._held != step:
            self._hold(self.feed.batch(step).tensors())
        self.feed.prepare(step + 1)
        self._held = step + 1
        self.progress.fill_(step / self.total)
        self._step.fill_(step + 1)
        for turn in self.turns:
            turn.set_factor(factor)
            seed = self._seed_of(turn, step)
            (self._draws[turn.name].manual_seed if turn.name in self._draws else torch.cuda.manual_seed)(seed)
            if turn.name in self._again:
                self._again[turn.name].manual_seed(seed)
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
            for draws in (*self._draws.values(), *self._again.values()):
                graph.register_generator_state(draws)
            with torch.cuda.graph(graph, stream=self._stream):
                self._body()
            # A capture begins by writing the generator's seed on that stream: late, it would replace a later step's.
            torch.cuda.current_stream().wait_stream(self._stream)
            self._graph = graph
            graph.replay()
        return True

    def _body(self) -> None:
        here = torch.cuda.current_stream()
        self._beside.wait_stream(here)
        ema = self.state.ema
        with torch.cuda.stream(self._beside):
            if ema is not None:
                ema.catch_up()
            averaged = self._beside.record_event()
            following = self.feed.made()
        self._bad.zero_()
        made = [self._made_turn(turn, averaged) for turn in self.turns]
        self._end(made[-1][0], {name: value for _, measured in made for name, value in measured.items()})
        here.wait_stream(self._beside)
        self._hold(following)

    def _made_turn(self, turn: Turn, averaged: Event) -> tuple[Tensor, Metrics]:
        """Whether a turn was made, and what to log of it.

        As where steps are not captured, one that is not finite ends the step, and those before it stay made.
        """
        self.state.learner.turn(turn.name)
        before = [value.clone() for value in self.running]
        loss, metrics = self._backward(turn, self._draws.get(turn.name))
        torch.cuda.current_stream().wait_event(averaged)  # of the weights that this step changes
        if turn.perturbation is not None:
            self._backward_uphill(turn, turn.perturbation)
        norm = total_norm(turn.parameters)
        good = self._judge(loss, norm, self._bad, self._scale_of(turn), turn.spec.clip)
        self._put_back([torch.where(good, value, old) for value, old in zip(self.running, before, strict=True)])
        for optimizer in turn.optimizers:
            optimizer.step()
        return good, self._measured(turn, loss, norm, metrics)

    def _backward(self, turn: Turn, draws: torch.Generator | None = None) -> tuple[Tensor, Metrics]:
        """A turn's gradients, loss and metrics; with the draws of another generator than torch's own."""
        for parameter in turn.parameters:
            parameter.grad = None  # the backward pass leaves its own, in the graph's memory
        with _drawing_from(draws), self.autocast():
            loss, metrics = turn.module(self.feed.wrap(self._batch), self.progress, turn.name)
            loss.backward()
        return loss.detach(), metrics

    def _backward_uphill(self, turn: Turn, perturbation: Perturbation) -> None:
        """SAM's second pass, with the first one's random draws; batch norm has counted the batch already.

        Gradients that are not finite make weights, and these make gradients, that are not: the step is left out by
        the second norm alone, and the weights are put back in any case.
        """
        counted = [value.clone() for value in self.running]
        perturbation.uphill()
        self._backward(turn, self._again[turn.name])
        perturbation.back()
        self._put_back(counted)

    def _hold(self, batch: list[Tensor]) -> None:
        """Put a batch where the graph looks for it."""
        if not self._batch:
            self._batch = [value.clone() for value in batch]
        for place, value in zip(self._batch, batch, strict=True):
            place.copy_(value)

    def _end(self, good: Tensor, measured: Metrics) -> None:
        """What follows the last turn."""
        self.state.objective.after_step(self.state.model, good)
        if self.state.ema is not None:
            self.state.ema.note(self._step, good)
        for name in measured:
            if name not in self.sums:
                self.sums[name] = torch.zeros((), device=self.world.device)
        sums = [self.sums[name] for name in measured]
        self._count(good, list(measured.values()), sums, self._made, self._skipped, self._in_a_row)

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
            self.last_batch = self.feed.batch(self._held - 1)
        return means


@functools.cache
def _streams(device: torch.device) -> tuple[torch.cuda.Stream, torch.cuda.Stream]:
    """For all runs of a process: matrix products keep 32 MiB for every stream that they have been on."""
    return torch.cuda.Stream(device, priority=-1), torch.cuda.Stream(device)


def _generator() -> torch.Generator:
    return torch.cuda.default_generators[torch.cuda.current_device()]


@contextlib.contextmanager
def _drawing_from(draws: torch.Generator | None) -> Iterator[None]:
    """torch's draws on the device come from another generator; None: from its own."""
    if draws is None:
        yield
        return
    generator = _generator()
    own = generator.graphsafe_get_state()
    generator.graphsafe_set_state(draws)
    try:
        yield
    finally:
        generator.graphsafe_set_state(own)

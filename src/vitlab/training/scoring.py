"""The score of a held-out part: the task's, or where the model does not answer the task, the objective's own loss."""

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule

from vitlab.core.preprocess import Preprocess
from vitlab.core.progress import Progressing
from vitlab.data.contract import Split, Values
from vitlab.data.loading.order import EvaluationOrder
from vitlab.data.loading.resident import Pixels
from vitlab.data.targets import as_target
from vitlab.models.contract import Model, evaluating
from vitlab.tasks.scoring import Held, Scorer, Scores, held_batches
from vitlab.training.distribution import World, mean_over
from vitlab.training.learner import Learner
from vitlab.training.step import Autocast, Feed


@dataclass(frozen=True, kw_only=True)
class Scoring:
    """What every scoring of a run has in common; `signalled` says whether a signal came."""

    target: str
    num_classes: int
    batch_size: int
    num_workers: int
    max_unreadable: float
    world: World
    autocast: Autocast
    signalled: Callable[[], int]

    def score(
        self,
        called: Learner | Model,
        model: Model,
        scorer: Scorer,
        split: Split,
        pixels: Pixels | None,
        progress: Progressing = lambda *_: None,
    ) -> Scores | None:
        """The task's score over a split, each sample once; None where a signal comes before the last of it."""
        sums: Tensor | None = None
        done = 0
        with torch.no_grad(), self.autocast(), in_evaluation(called):  # inference mode does not go with sharded models
            for batch in self._batches(model.preprocess, split, pixels):
                if self.signalled():
                    return None
                part = scorer.of(called, model, batch)
                sums, done = part if sums is None else sums + part, done + len(batch.images) * self.world.size
                progress(min(done, len(split)), len(split))
        assert sums is not None
        if self.world.size > 1:
            torch.distributed.all_reduce(sums)
        return scorer.scores(sums)

    def own_score(self, learner: Learner, feed: Feed, num_images: int) -> Scores | None:
        """The means of the objective's loss and metrics over a split, as its feed augments it; lower is better."""
        num, totals = math.ceil(num_images / self.batch_size), dict[str, Tensor]()
        progress, phase = torch.ones((), device=self.world.device), next(iter(learner.phases))
        with torch.no_grad(), self.autocast(), in_evaluation(learner):
            for step in range(num):
                if self.signalled():
                    return None
                loss, metrics = learner(feed.batch(step), progress, phase)
                for name, value in {**metrics, "loss": loss}.items():
                    totals[name] = totals.get(name, 0) + value.double()
        means = mean_over(self.world, torch.stack(list(totals.values())) / num)
        found = dict(zip(totals, means.tolist(), strict=True))
        return {**found, "score": -found["loss"], "count": float(num_images)}

    def _batches(self, preprocess: Preprocess, split: Split, pixels: Pixels | None) -> Iterator[Held]:
        """A process's share of a split: images, targets, and which of them count.

        All processes get equally many batches, since those of a sharded model must call it together.
        """
        world = self.world
        size = max(self.batch_size // world.size, 1) * world.size
        target = split.targets[self.target] if self.target else None
        if pixels is None or not isinstance(target, Values | None):
            yield from held_batches(
                split,
                self.target,
                preprocess,
                num_classes=self.num_classes,
                device=world.device,
                batch_size=size,
                num_workers=self.num_workers,
                rank=world.rank,
                world=world.size,
                max_damaged=self.max_unreadable,
            )
            return
        known = None if target is None else torch.from_numpy(target.values).to(world.device)
        order = EvaluationOrder(len(split), size, world.size)
        for step in range(len(order)):
            indices, counts = (torch.from_numpy(part).to(world.device) for part in order.batch(step, world.rank))
            readable = counts if pixels.readable is None else counts & pixels.readable[indices]
            images = preprocess.normalize(pixels.values[indices])
            values = images
            if known is not None and target is not None:
                values = as_target(known[indices], target.kind, self.num_classes)
            yield Held(images, values, readable, pixels.values[indices], indices)


@contextlib.contextmanager
def in_evaluation(called: Learner | Model) -> Iterator[None]:
    """A model or the learner in evaluation mode inside the block."""
    with evaluating(called):
        try:
            yield
        finally:
            if isinstance(called, FSDPModule):
                called.reshard()  # what was gathered here must not outlive the weights that it was gathered from

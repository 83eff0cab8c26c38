"""Pictures of what an objective predicts of held-out images, in the run's folder after each evaluation."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import final

import torch
from torch.distributed.fsdp import FSDPModule

from vitlab.data.batch import Batch, Stream
from vitlab.data.loading.resident import load_inputs
from vitlab.data.places import evenly
from vitlab.objectives.contract import Objective
from vitlab.objectives.shown import write_shown
from vitlab.training.distribution import World
from vitlab.training.hooks import Clock
from vitlab.training.loop import Hook, Moment
from vitlab.training.plan import Parts
from vitlab.training.scoring import in_evaluation
from vitlab.training.state import State
from vitlab.training.step import Autocast

IMAGES = 6


@final
class Predictions(Hook):
    """Writes what the objective shows of a few held-out images, the same ones and patches each time."""

    def __init__(
        self,
        state: State,
        parts: Parts,
        folder: Path,
        *,
        world: World,
        autocast: Autocast,
        averaged: Callable[[], AbstractContextManager[None]],
        clock: Clock,
    ) -> None:
        self.state, self.parts, self.folder = state, parts, folder
        self.world, self.autocast, self.averaged, self.clock = world, autocast, averaged, clock
        self._batch: Batch | None = None
        self._shown = 0  # the step

    def after_step(self, moment: Moment) -> None:
        due = moment.last or self.state.progress.evaluated == moment.step
        if not due or moment.ending is not None or self._shown == moment.step:
            return
        self._shown, learner = moment.step, self.state.learner
        has_none = type(learner.objective).show is Objective.show  # so that no images are read for it
        if has_none or isinstance(learner, FSDPModule):  # whose parameters are gathered for its loss alone
            return
        with self.clock.stopped():
            with torch.no_grad(), self.autocast(), self.averaged(), in_evaluation(learner):
                shown = learner.objective.show(learner.model, self._images())
            if shown is not None and self.world.first:
                write_shown(shown, self.folder, moment.step)

    def _images(self) -> Batch:
        if self._batch is None:
            whole, preprocess = self.parts.val or self.parts.train, self.state.model.preprocess
            places = evenly(len(whole), IMAGES)
            pixels = load_inputs(whole.take(places), preprocess, max_damaged=1.0).values.to(self.world.device)
            stream = Stream((preprocess.normalize(pixels),), {}, torch.arange(len(pixels), device=self.world.device))
            self._batch = Batch({"train": stream})
        return self._batch

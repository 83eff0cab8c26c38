"""Batches and steppers for tests of what a step does."""

import dataclasses

import torch
from torch import Tensor

from vitlab.data.batch import Batch, Stream
from vitlab.models.contract import Model
from vitlab.objectives.contract import Objective
from vitlab.training.distribution import World
from vitlab.training.ema import Ema
from vitlab.training.learner import Learner
from vitlab.training.optimizers import Optimizer, build
from vitlab.training.state import State
from vitlab.training.step import Feed, Stepper, Turn

ALONE = World(0, 1, torch.device("cpu"))


def labelled(images: Tensor, targets: Tensor) -> Batch:
    """One stream of images with a label each."""
    return Batch({"train": Stream((images,), {"label": targets}, torch.arange(len(images)))})


def stepping(
    model: Model,
    objective: Objective,
    spec: Optimizer,
    feed: Feed,
    *,
    total: int = 100,
    accumulate: int = 1,
    ema: float | None = None,
    seed: int = 0,
) -> tuple[State, Stepper]:
    """A state and a stepper over the objective's phases, alone on a CPU."""
    learner = Learner(model.train(), objective)
    turns: list[Turn] = []
    for name in learner.phases:
        learner.turn(name)
        own = dataclasses.replace(spec, **learner.phases[name].optimizer)
        turns.append(Turn(name, learner, build(model, objective.param_groups(), own), own))
    state = State(learner, {turn.name: turn.optimizers for turn in turns}, Ema(model, ema) if ema else None)
    return state, Stepper(state, turns, feed, total=total, accumulate=accumulate, seed=seed, world=ALONE)

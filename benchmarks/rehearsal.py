"""The time of a run's step, by a short run that ends with it: alone on the GPU, beside other processes that compile."""

import contextlib
import fcntl
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from vitlab.training.captured import CapturedStepper
from vitlab.training.step import Stepper

REHEARSED, UNTIMED = 60, 20  # steps of a rehearsal, and how many of them are made before the time is taken


class RehearsedError(BaseException):
    """A rehearsal has made its steps: what a run does after them is left out."""


@dataclass
class Rehearsal:
    """What a step took, and the kinds of steps that were made."""

    seconds_per_step: float = 0.0
    kinds: set[type[Stepper]] = field(default_factory=set)


@contextlib.contextmanager
def rehearsing(lock: Path) -> Iterator[Rehearsal]:
    """Steps that are made in turn with other processes, but for the first, which compiles; ends after the last."""
    found, begun = Rehearsal(), 0.0

    def now() -> float:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return time.perf_counter()

    def alone(made: Callable[[Any, int, float], bool]) -> Callable[[Any, int, float], bool]:
        def step(self: Stepper, number: int, factor: float) -> bool:
            nonlocal begun
            found.kinds.add(type(self))
            if number == 1:
                fcntl.flock(file, fcntl.LOCK_EX)
            if number == UNTIMED:
                begun = now()
            done = made(self, number, factor)
            if number == REHEARSED - 1:
                found.seconds_per_step = (now() - begun) / (REHEARSED - UNTIMED)
                fcntl.flock(file, fcntl.LOCK_UN)
                raise RehearsedError
            return done

        return step

    with contextlib.ExitStack() as stack:
        file = stack.enter_context(lock.open("w"))
        for kind in (Stepper, CapturedStepper):
            stack.enter_context(mock.patch.object(kind, "__call__", alone(kind.__call__)))
        stack.enter_context(contextlib.suppress(RehearsedError))
        yield found

"""The time of a run's step, by a short run that ends with it: alone on the GPU, beside other processes that compile."""

import contextlib
import fcntl
import math
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from vitlab.training.captured import CapturedStepper
from vitlab.training.step import Stepper

REHEARSED, UNTIMED = 120, 20  # steps of a rehearsal, and how many of them are made before the time is taken
TIMED = 20  # steps at a time; the quickest of these turns counts, since what else runs there only ever slows
MOST = 300.0  # seconds that a process waits for the others to compile


class RehearsedError(BaseException):
    """A rehearsal has made its steps: what a run does after them is left out."""


@dataclass
class Rehearsal:
    """What a step took, and the kinds of steps that were made."""

    seconds_per_step: float = math.inf
    kinds: set[type[Stepper]] = field(default_factory=set)


def arrivals(lock: Path) -> Path:
    """Where processes that share a lock note that they have compiled."""
    return lock.with_suffix(".compiled")


def _wait_for(folder: Path, together: int, most: float) -> None:
    """Wait until so many processes are there, or for so many seconds."""
    begun = time.monotonic()
    while sum(1 for _ in folder.iterdir()) < together and time.monotonic() - begun < most:
        time.sleep(0.05)


@contextlib.contextmanager
def rehearsing(lock: Path, together: int = 1, most: float = MOST) -> Iterator[Rehearsal]:
    """Steps that are made in turn with other processes, but for the first, which compiles; ends after the last.

    With several `together`, none makes its second before all have made their first, or have failed.
    """
    found, begun, folder = Rehearsal(), 0.0, arrivals(lock)
    folder.mkdir(exist_ok=True)
    arrived = folder / str(os.getpid())

    def now() -> float:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return time.perf_counter()

    def alone(made: Callable[[Any, int, float], bool]) -> Callable[[Any, int, float], bool]:
        def step(self: Stepper, number: int, factor: float) -> bool:
            nonlocal begun
            found.kinds.add(type(self))
            if number == 1:
                now()  # what the first one has launched is done
                arrived.touch()
                _wait_for(folder, together, most)
                fcntl.flock(file, fcntl.LOCK_EX)
            if number >= UNTIMED and (number - UNTIMED) % TIMED == 0:
                begun = now()
            done = made(self, number, factor)
            if number >= UNTIMED and (number + 1 - UNTIMED) % TIMED == 0:
                found.seconds_per_step = min(found.seconds_per_step, (now() - begun) / TIMED)
            if number == REHEARSED - 1:
                fcntl.flock(file, fcntl.LOCK_UN)
                raise RehearsedError
            return done

        return step

    with contextlib.ExitStack() as stack:
        file = stack.enter_context(lock.open("w"))
        stack.callback(arrived.touch)  # a process that fails keeps nobody waiting
        for kind in (Stepper, CapturedStepper):
            stack.enter_context(mock.patch.object(kind, "__call__", alone(kind.__call__)))
        stack.enter_context(contextlib.suppress(RehearsedError))
        yield found

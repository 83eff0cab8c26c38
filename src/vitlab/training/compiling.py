"""Whether torch's compiler works here, asked of a small function before a model is given to it."""

import os
import traceback
from collections.abc import Callable
from pathlib import Path

import torch

from vitlab.training.distribution import World, any_of

LOG = "compile.log"  # a run's file: all that the compiler said where it failed


def can_compile(world: World, folder: Path, say: Callable[[str], None]) -> bool:
    """Whether every process can compile; where one cannot, none does, and the run says so and continues without."""
    failed = False
    try:
        _try(world.device)
    except Exception as error:  # noqa: BLE001  whatever it is, a run does without
        note(folder, error)
        failed = True
    if not any_of(world, failed):
        return True
    say(f"torch's compiler does not work here ({folder / LOG} says why): the run continues without it, more slowly.")
    return False


def note(folder: Path, error: BaseException) -> None:
    """Put what the compiler said into the run's folder: it is hundreds of lines."""
    (folder / LOG).write_text("".join(traceback.format_exception(error)), encoding="utf-8")


def is_its_own(error: RuntimeError) -> bool:
    """Whether it is torch's compiler that failed."""
    return any(kind.__name__ == "TorchDynamoException" for kind in type(error).__mro__)  # torch names it in private


def _try(device: torch.device) -> None:
    """Compile something that no cache can hold, forward and backward."""
    factor = 1 + int.from_bytes(os.urandom(4)) / 2**32

    def small(x: torch.Tensor) -> torch.Tensor:
        return (x.sin() * factor).sum()

    torch.compiler.reset()
    torch.compile(small)(torch.ones(64, device=device, requires_grad=True)).backward()

"""Memory that runs out in a run: how that is told, and what to do."""

import errno

import torch

from vitlab.training import checkpoints
from vitlab.training.distribution import World
from vitlab.training.plan import Plan
from vitlab.training.run import resuming


def memory_ran_out(error: Exception) -> bool:
    """Whether memory ran out, a GPU's or the machine's; torch has a type of error for the former alone."""
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in str(error)


def too_large(plan: Plan, world: World) -> str:
    """What to say, and to do, where memory ran out."""
    whose = "GPU's" if world.device.type == "cuda" else "machine's"
    kept = checkpoints.complete(plan.folder / "checkpoints")
    again = f", or make room and resume ({resuming(plan.folder)})" if kept else ""
    return (
        f"The {whose} memory ran out in steps of {plan.recipe.batch_size:,} images: start a run with a smaller"
        f" --batch-size, or with --accumulate 2 or more, which computes a step in as many parts{again}."
    )

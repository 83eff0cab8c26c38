"""VTAB-1k."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from vitlab.evaluation.contract import SEEN_ONCE, Protocol, Result

if TYPE_CHECKING:
    from vitlab.evaluation.request import Request


@dataclass(frozen=True, kw_only=True)
class VtabOptions:
    """VTAB-1k: 19 tasks of a thousand training images each; --data is the folder that holds them."""

    folder: str | None = None
    """The folder of the runs, in which they resume; by default one under runs/, named after model and data."""
    tasks: tuple[str, ...] | None = None
    """Some of the tasks; without all 19 there is no mean."""
    steps: int = 2500
    """Optimizer steps of each run."""
    lrs: tuple[float, ...] = (0.01,)
    """The learning rate, or several to choose from on the 200 validation images of each task."""
    seeds: tuple[int, ...] = (0,)
    """One final run each."""
    own_size: bool = False
    """Stay at the model's resolution; else --image-size, or the paper's 384."""
    accumulate: int = 1
    """The number of parts in which a batch is computed, if it does not fit into memory."""
    show: bool = False
    """Show each run's own progress."""
    executor: str = "here"
    """Where the runs are made: here, one by one; ray or ray://HOST:PORT on a cluster (see docs/cluster.md)."""


def run(request: "Request") -> Result:
    from vitlab.studies import transfer

    options: VtabOptions = request.options
    result = transfer.vtab(
        request.source,
        Path(request.needed_data),
        transfer.folder_of(request),
        tasks=options.tasks,
        steps=options.steps,
        lrs=options.lrs,
        seeds=options.seeds,
        batch_size=request.how.batch_size or transfer.BATCH_SIZE,
        image_size=transfer.training_size(request),
        machine=transfer.machine_of(request),
        progress=request.progress,
        executor=transfer.executor_of(request),
    )
    return transfer.with_cost(request, result)


PROTOCOL = Protocol(
    name="vtab",
    summary="VTAB-1k, 19 tasks",
    options=VtabOptions,
    examples=(
        "--model B_16.npz --data vtab-1k/ --out b16-vtab.json",
        "--model B_16.npz --data vtab-1k/ --tasks natural --lrs 0.001 0.01",
    ),
    run=run,
    not_taken=SEEN_ONCE,
)

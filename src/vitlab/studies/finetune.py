"""The paper's transfer to one data set."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from vitlab.evaluation.contract import SEEN_ONCE, Protocol, Result

if TYPE_CHECKING:
    from vitlab.evaluation.request import Request


@dataclass(frozen=True, kw_only=True)
class FinetuneOptions:
    """The paper's transfer: an lr chosen on held-out images, then a run per seed on all of train, measured on test."""

    folder: str | None = None
    """The folder of the runs, in which they resume; by default one under runs/, named after model and data."""
    steps: int | None = None
    """Optimizer steps of each run; by default the paper's for the set, or a number that follows from its size."""
    lrs: tuple[float, ...] | None = None
    """The learning rates to choose from; by default the paper's for the set."""
    seeds: tuple[int, ...] = (0, 1, 2)
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

    options: FinetuneOptions = request.options
    result = transfer.finetune(
        request.source,
        request.needed_data,
        transfer.folder_of(request),
        steps=options.steps,
        lrs=options.lrs,
        seeds=options.seeds,
        batch_size=request.how.batch_size,
        image_size=transfer.training_size(request),
        machine=transfer.machine_of(request),
        progress=request.progress,
        executor=transfer.executor_of(request),
    )
    return transfer.with_cost(request, result)


PROTOCOL = Protocol(
    name="finetune",
    summary="the paper's transfer: a grid of learning rates on held-out images, then three seeds",
    options=FinetuneOptions,
    examples=(
        "--model B_16.npz --data pets --out b16-pets.json",
        "--model runs/mine --data digits --own-size --steps 500 --lrs 0.003 0.01 --seeds 0 1 2",
    ),
    run=run,
    not_taken=SEEN_ONCE,
)

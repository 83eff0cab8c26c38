"""What can be chosen of the protocols that train; nothing heavy is imported."""

from dataclasses import dataclass

from vitlab.evaluation.options import OPTIONS as MEASURING


@dataclass(frozen=True, kw_only=True)
class FinetuneOptions:
    """The paper's transfer: a rate chosen on held-out images, then a run a seed on all of train, measured on test."""

    folder: str | None = None
    """Where the runs are, and are gone on with; by default a folder under runs/ that model and data name."""
    steps: int | None = None
    """Optimiser steps of each run; by default the paper's for the set, or by its size."""
    rates: tuple[float, ...] | None = None
    """The learning rates to choose from; by default the paper's for the set."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """One final run each."""
    own_size: bool = False
    """Stay at the model's resolution; else --image-size, or the paper's 384."""
    accumulate: int = 1
    """Parts that a batch is computed in, where it does not fit."""
    show: bool = False
    """Show each run's own progress."""


@dataclass(frozen=True, kw_only=True)
class VtabOptions:
    """VTAB-1k: 19 tasks of a thousand training images each; --data is the folder that holds them."""

    folder: str | None = None
    """Where the runs are, and are gone on with; by default a folder under runs/ that model and data name."""
    tasks: tuple[str, ...] | None = None
    """Some of the tasks; without all 19 there is no mean."""
    steps: int = 2500
    """Optimiser steps of each run."""
    rates: tuple[float, ...] = (0.01,)
    """The learning rate, or several to choose from on the 200 validation images of each task."""
    seeds: tuple[int, ...] = (0,)
    """One final run each."""
    own_size: bool = False
    """Stay at the model's resolution; else --image-size, or the paper's 384."""
    accumulate: int = 1
    """Parts that a batch is computed in, where it does not fit."""
    show: bool = False
    """Show each run's own progress."""


OPTIONS: dict[str, type] = {**MEASURING, "finetune": FinetuneOptions, "vtab": VtabOptions}

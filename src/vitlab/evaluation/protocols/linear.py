"""A linear classifier on frozen features."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from vitlab.core.bounds import Fraction, NonNegativeInt
from vitlab.evaluation.contract import Outcome, Protocol, Result

if TYPE_CHECKING:
    from vitlab.evaluation.measurement import Measurement
    from vitlab.evaluation.request import Request


@dataclass(frozen=True, kw_only=True)
class LinearOptions:
    """A linear classifier on frozen features, its penalty chosen on held-out images."""

    l2s: tuple[float, ...] = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)
    """The penalties to choose from."""
    solver: Literal["lbfgs", "sgd"] = "lbfgs"
    """lbfgs passes over everything at each step; sgd takes mini-batches."""
    holdout: float = 0.1
    """The fraction of train that chooses the penalty, if the data has no validation split of its own."""
    fraction: Fraction = 1.0
    """The fraction of each class of train whose labels are used; the images that `vitlab train --data.fraction`
    takes."""
    subset_seed: NonNegativeInt = 0
    """The draw of those images; as `vitlab train --data.subset-seed`."""
    epochs: int = 50
    """sgd: passes over the features."""
    seed: int = 0
    """The seed of what is held out, and of the order of mini-batches."""


def run(request: "Request") -> Result:
    return request.measure(_linear)


def _linear(on: "Measurement", options: LinearOptions) -> Outcome:
    from vitlab.evaluation.linear import linear
    from vitlab.evaluation.logistic import Probe
    from vitlab.evaluation.measurement import noted

    train, test = on.train_and_test(options.fraction, options.subset_seed)
    # with part of the labels, those of val would be more than that part
    has_val = options.fraction == 1 and on.split != "val" and "val" in on.dataset.splits
    val = on.features("val") if has_val else None
    outcome = linear(
        train.values,
        train.labels,
        test.values,
        test.labels,
        val_x=None if val is None else val.values,
        val_y=None if val is None else val.labels,
        l2s=options.l2s,
        probe=Probe(solver=options.solver, epochs=options.epochs, seed=options.seed),
        holdout=options.holdout,
        num_classes=on.dataset.num_classes,
        classes=on.dataset.classes,
        device=on.subject.device,
        progress=on.progress,
    )
    return noted(outcome, train, test, *(() if val is None else (val,)))


PROTOCOL = Protocol(
    name="linear",
    summary="a linear classifier on the features",
    options=LinearOptions,
    examples=("--model B_16.npz --data flowers102", "--model B_16.npz --data imagenet --solver sgd --epochs 20"),
    run=run,
)

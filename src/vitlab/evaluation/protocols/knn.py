"""Nearest neighbours of frozen features."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from vitlab.core.bounds import Fraction, NonNegativeInt
from vitlab.evaluation.contract import Outcome, Protocol, Result

if TYPE_CHECKING:
    from vitlab.evaluation.measurement import Measurement
    from vitlab.evaluation.request import Request


@dataclass(frozen=True, kw_only=True)
class KnnOptions:
    """The nearest training images vote."""

    ks: tuple[int, ...] = ()
    """How many neighbours vote; by default one of 1, 5, 10, 20, 100, 200, as far as train allows, chosen on held-out
    images."""
    weights: Literal["similarity", "uniform", "distance"] = "similarity"
    """What a vote counts: exp(similarity / temperature), one, or one over the distance."""
    temperature: float = 0.07
    """The temperature of the similarity weights."""
    holdout: float = 0.1
    """The fraction of train that chooses among several numbers."""
    fraction: Fraction = 1.0
    """The fraction of each class of train that is used; the images that `vitlab train --data.fraction` takes."""
    subset_seed: NonNegativeInt = 0
    """The draw of those images; as `vitlab train --data.subset-seed`."""


def run(request: "Request") -> Result:
    return request.measure(_knn)


def _knn(on: "Measurement", options: KnnOptions) -> Outcome:
    from vitlab.evaluation.knn import knn
    from vitlab.evaluation.measurement import noted

    train, test = on.train_and_test(options.fraction, options.subset_seed)
    outcome = knn(
        train.values,
        train.labels,
        test.values,
        test.labels,
        ks=options.ks or None,
        weights=options.weights,
        temperature=options.temperature,
        holdout=options.holdout,
        num_classes=on.dataset.num_classes,
        device=on.subject.device,
        progress=on.progress,
    )
    return noted(outcome, train, test)


PROTOCOL = Protocol(
    name="knn",
    summary="nearest neighbours of the features",
    options=KnnOptions,
    examples=("--model B_16.npz --data cifar10", "--model timm:resnet50 --data cifar10 --ks 20 --weights uniform"),
    run=run,
)

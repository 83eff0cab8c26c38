"""Least squares on frozen features of a few images per class."""

import dataclasses
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vitlab.evaluation.contract import KNOWN, EvaluationError, Outcome, Protocol, Result

if TYPE_CHECKING:
    from vitlab.evaluation.measurement import Measurement
    from vitlab.evaluation.request import Request

log = logging.getLogger("vitlab")


@dataclass(frozen=True, kw_only=True)
class FewshotOptions:
    """Least squares on frozen features of a few images per class."""

    shots: tuple[int, ...] = ()
    """Images per class; by default 1, 5, 10 and 25, as far as every class has that many."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """The seeds of the draws of images."""
    l2: float = 1024.0
    """The penalty."""
    sweep: bool = False
    """Try 2^-10 ... 2^19 instead and keep the best on the measured split, as the public sweep does."""


def run(request: "Request") -> Result:
    return request.measure(_fewshot)


def _fewshot(on: "Measurement", options: FewshotOptions) -> Outcome:
    from vitlab.core.imagenet import places_of
    from vitlab.evaluation.fewshot import SWEEP, fewshot
    from vitlab.evaluation.measurement import noted

    on.check_parts()
    shots = _possible_shots(on, options.shots)
    train, test = on.train_and_test()
    outcome = fewshot(
        train.values,
        train.labels,
        test.values,
        test.labels,
        shots=shots,
        seeds=options.seeds,
        l2=SWEEP if options.sweep else options.l2,
        num_classes=on.dataset.num_classes,
        device=on.subject.device,
        progress=on.progress,
    )
    labels = on.subject.labels
    known = labels is not None and places_of(labels, on.dataset.classes) is not None
    settings = {**outcome.settings, **({KNOWN: True} if known else {})}
    return dataclasses.replace(noted(outcome, train, test), settings=settings)


def _possible_shots(on: "Measurement", asked: tuple[int, ...]) -> tuple[int, ...]:
    """The shots that were asked for, or those of the usual ones that every class has images for."""
    from vitlab.evaluation.fewshot import SHOTS

    counts = on.dataset.splits["train"].counts(on.dataset.num_classes)
    scarce = int(counts.argmin())
    fewest, name = int(counts[scarce]), on.dataset.classes[scarce]
    wanted = asked or SHOTS
    possible = tuple(k for k in wanted if k <= fewest)
    if not possible or (asked and possible != asked):
        raise EvaluationError(
            f"The class '{name}' has {fewest} training image{'s' * (fewest != 1)}, fewer than the {max(asked)} shots"
            " that were asked for: ask for fewer."
            if asked and fewest
            else f"The class '{name}' has no training image, so that no shots can be drawn of it."
        )
    if possible != wanted:
        left_out = " and ".join(str(k) for k in wanted if k not in possible)
        log.warning("%s shots are left out: the class '%s' has %d training images.", left_out, name, fewest)
    return possible


PROTOCOL = Protocol(
    name="fewshot",
    summary="least squares on the features of 1, 5, 10, 25 images per class",
    options=FewshotOptions,
    examples=("--model B_16.npz --data cifar100 --shots 1 5 10", "--model B_16.npz --data pets --sweep"),
    run=run,
)

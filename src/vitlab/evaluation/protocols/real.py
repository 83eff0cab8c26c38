"""ImageNet with the reassessed labels."""

import dataclasses
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from vitlab.evaluation.contract import EvaluationError, Outcome, Protocol, Result

if TYPE_CHECKING:
    from vitlab.evaluation.measurement import Measurement
    from vitlab.evaluation.request import Request

log = logging.getLogger("vitlab")


@dataclass(frozen=True, kw_only=True)
class RealOptions:
    """ImageNet's validation images with the reassessed labels."""

    labels: str = "real.json"
    """The public real.json, of github.com/google-research/reassessed-imagenet."""


def run(request: "Request") -> Result:
    from vitlab.evaluation.real import open_validation_images

    return request.measure(_real, open_named=open_validation_images)


def _real(on: "Measurement", options: RealOptions) -> Outcome:
    from vitlab.core.imagenet import imagenet_classes
    from vitlab.evaluation.features import outputs
    from vitlab.evaluation.measurement import with_damaged
    from vitlab.evaluation.real import NUM_CLASSES, RealAccuracy, RealLabels
    from vitlab.evaluation.subject import for_classes

    if on.subject.logits is None:
        raise EvaluationError(f"{on.subject.name} has no classifier: ReaL needs one with ImageNet's classes.")
    labels, images = RealLabels.read(Path(options.labels)), on.measured.images
    labels.check(images)
    if len(images) < len(labels.labels):
        log.warning(
            "ReaL over a part: %s of %s validation images are there.", f"{len(images):,}", f"{len(labels.labels):,}"
        )
    subject, matched = on.subject, "by number"
    if subject.labels is not None and len(subject.labels) >= NUM_CLASSES:  # perhaps in another order, or among others
        subject, matched = for_classes(subject, [wordnet for wordnet, _ in imagenet_classes()])
    assert subject.logits is not None
    counter = RealAccuracy(labels)
    for batch in outputs(subject.logits, subject, on.measured, on.reading, on.progress):
        counter.add(batch.values, [images.where(index) for index in batch.indices.tolist()])
    outcome = counter.outcome()
    return dataclasses.replace(
        outcome,
        counts=with_damaged(outcome.counts, len(images) - outcome.counts["images"]),
        settings={**outcome.settings, "classes_matched": matched},
    )


PROTOCOL = Protocol(
    name="real",
    summary="ImageNet with the reassessed labels",
    options=RealOptions,
    examples=("--model B_16.npz --data imagenet/val --labels real.json --out b16-real.json",),
    run=run,
)

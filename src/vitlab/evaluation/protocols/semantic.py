"""How often a classifier is right at each level of a hierarchy."""

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from vitlab.evaluation.contract import EvaluationError, Outcome, Protocol, Result

if TYPE_CHECKING:
    from vitlab.evaluation.measurement import Measurement
    from vitlab.evaluation.request import Request


@dataclass(frozen=True, kw_only=True)
class SemanticOptions:
    """Accuracy at each level of a hierarchy, and over all levels, each weighted by its number of images."""

    hierarchy: str = "cifar100"
    """A file with each class's parent (docs/semantic_softmax.md), or cifar100."""
    inner: Literal["all", "branching", "none"] = "all"
    """Which nodes that are not classes are used: all, those with several nodes below (branching), or none."""


def run(request: "Request") -> Result:
    return request.measure(_semantic, learns=False)


def _semantic(on: "Measurement", options: SemanticOptions) -> Outcome:
    import torch

    from vitlab.data.hierarchy import read_hierarchy
    from vitlab.evaluation.features import outputs
    from vitlab.evaluation.measurement import with_damaged
    from vitlab.evaluation.semantic import SemanticAccuracy
    from vitlab.evaluation.subject import for_classes

    on.check_labels(on.split)
    if on.dataset.multi_label:
        raise EvaluationError(f"{on.dataset.name} has several labels per image: measure it with accuracy (mAP).")
    counter = SemanticAccuracy(read_hierarchy(options.hierarchy, on.dataset.classes, inner=options.inner))
    subject, matched = for_classes(on.subject, on.dataset.classes)
    assert subject.logits is not None
    for batch in outputs(subject.logits, subject, on.measured, on.reading, on.progress):
        counter.add(batch.values, torch.from_numpy(batch.labels))
    outcome = counter.outcome()
    counts = {on.split: outcome.counts["images"]}
    return dataclasses.replace(
        outcome,
        counts=with_damaged(counts, len(on.measured) - counts[on.split]),
        settings={**outcome.settings, "classes_matched": matched},
    )


PROTOCOL = Protocol(
    name="semantic",
    summary="a classifier's accuracy at each level of a hierarchy of its classes",
    options=SemanticOptions,
    examples=(
        "--model runs/semantic-cifar100 --data cifar100",
        "--model RUN --data imagenet21k --hierarchy /usr/share/wordnet/data.noun --inner none",
    ),
    run=run,
)

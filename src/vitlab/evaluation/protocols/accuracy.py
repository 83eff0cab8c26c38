"""How often a classifier is right."""

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vitlab.evaluation.contract import Outcome, Protocol, Result

if TYPE_CHECKING:
    from vitlab.evaluation.measurement import Measurement
    from vitlab.evaluation.request import Request


@dataclass(frozen=True, kw_only=True)
class AccuracyOptions:
    """Top-1, top-5, per class, confusion, calibration; mAP where an image has several labels."""


def run(request: "Request") -> Result:
    return request.measure(_accuracy, learns=False)


def _accuracy(on: "Measurement", options: AccuracyOptions) -> Outcome:
    import torch

    from vitlab.evaluation.accuracy import Accuracy
    from vitlab.evaluation.average_precision import MultiLabelAccuracy
    from vitlab.evaluation.features import outputs
    from vitlab.evaluation.measurement import with_damaged
    from vitlab.evaluation.subject import FEATURES, for_classes

    del options
    if not on.subject.dense:  # which is said below
        on.check_labels(on.split)
    otherwise = "" if on.dataset.multi_label else FEATURES  # which are not measured by several labels
    subject, matched = for_classes(on.subject, on.dataset.classes, otherwise=otherwise)
    assert subject.logits is not None
    counter = (MultiLabelAccuracy if on.dataset.multi_label else Accuracy)(on.dataset.num_classes)
    for batch in outputs(subject.logits, subject, on.measured, on.reading, on.progress):
        if isinstance(counter, Accuracy):
            counter.add(batch.values, torch.from_numpy(batch.labels))
        else:
            counter.add(batch.values.numpy(), batch.labels)
    outcome = counter.outcome(on.dataset.classes)
    counts = {on.split if key == "images" else key: count for key, count in outcome.counts.items()}
    return dataclasses.replace(
        outcome,
        counts=with_damaged(counts, len(on.measured) - counts[on.split]),
        settings={**outcome.settings, "classes_matched": matched},
    )


PROTOCOL = Protocol(
    name="accuracy",
    summary="top-1, top-5, per class, confusion, calibration; mAP where an image has several labels",
    options=AccuracyOptions,
    examples=(
        "--model runs/digits --data digits",
        "--model B_16.npz --data imagenet --image-size 384 --crops 5 --flip",
    ),
    run=run,
)

"""Pictures unlike those that a model learned from: shifted test sets, and corruptions."""

import dataclasses
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vitlab.evaluation.contract import EvaluationError, Metric, Outcome, Protocol, Result

if TYPE_CHECKING:
    from vitlab.data.contract import Array, DataSet, Split
    from vitlab.evaluation.measurement import Measurement
    from vitlab.evaluation.request import Request


@dataclass(frozen=True, kw_only=True)
class RobustnessOptions:
    """Accuracy on a shifted test set (ImageNet-V2, -A, -R, -Sketch, ObjectNet or your own), or errors under corruptions
    (ImageNet-C, or any data's own pictures, corrupted here)."""

    corrupt: bool = False
    """Corrupt the data's own pictures, as the model sees them: noise, blur, weather, digital."""
    corruptions: tuple[str, ...] = ()
    """Which corruptions; by default the paper's fifteen, or all that a published set has."""
    severities: tuple[int, ...] = (1, 2, 3, 4, 5)
    """How strong they are, from 1 to 5."""
    clean: str | None = None
    """The data set without the shift (imagenet), to compare with; for --corrupt it is the data itself."""
    images: int | None = None
    """Measure at most this many images, spread evenly; for corruptions this many under each."""
    seed: int = 0
    """The seed of the corruptions."""


def run(request: "Request") -> Result:
    return request.measure(_robustness, learns=False)


def _robustness(on: "Measurement", options: RobustnessOptions) -> Outcome:
    from vitlab.data.conditions import TARGET
    from vitlab.data.sources.published.objectnet import OBJECTNET

    _check(on, options)
    if TARGET in on.measured.targets:
        return _published(on, options)
    if options.corrupt:
        return _corrupted(on, options)
    return _grouped(on, options) if on.dataset.name == OBJECTNET else _shifted(on, options)


def _check(on: "Measurement", options: RobustnessOptions) -> None:
    """What cannot be measured is refused before anything is computed."""
    from vitlab.data.conditions import ALL, SEVERITIES, TARGET
    from vitlab.data.corruptions import check

    name, is_corrupted = on.dataset.name, TARGET in on.measured.targets
    if on.dataset.multi_label:
        raise EvaluationError(f"{name} has several labels per image: robustness is of one class per image.")
    on.check_labels(on.split)
    for corruption in options.corruptions:
        check(corruption, SEVERITIES[0])
    for severity in options.severities:
        check(ALL[0], severity)
    if not options.severities or len({*options.severities}) < len(options.severities):
        raise EvaluationError("protocol robustness: severities must be some of 1 to 5, each once.")
    if options.images is not None and options.images < 1:
        raise EvaluationError(f"protocol robustness: images must be at least 1, not {options.images}.")
    if options.corrupt and is_corrupted:
        raise EvaluationError(f"The pictures of {name} are corrupted already: leave --corrupt away.")
    if options.corrupt and options.clean is not None:
        raise EvaluationError("With --corrupt the data itself is the clean set: leave --clean away.")
    if options.corruptions and not (options.corrupt or is_corrupted):
        raise EvaluationError(f"The pictures of {name} are not corrupted: add --corrupt to corrupt them here.")


def _shifted(on: "Measurement", options: RobustnessOptions) -> Outcome:
    """Accuracy and calibration, among the data's classes alone, as the authors of ImageNet-A and -R have it."""
    from vitlab.evaluation.robustness import accuracy_metrics, answers, matched

    subject, how = matched(on.subject, on.dataset.classes)
    split = _some(on.measured, options)
    found = answers(subject, split, on.reading, on.progress)
    metrics = accuracy_metrics(found, on.dataset.num_classes)
    clean = _clean(on, options)
    if clean is not None:
        before = answers(subject, clean, on.reading, on.progress)
        metrics |= _drop(metrics["top-1"], accuracy_metrics(before, on.dataset.num_classes)["top-1"])
    return Outcome(metrics=metrics, counts=_counts(on, split, metrics["top-1"]), settings={"classes_matched": how})


def _grouped(on: "Measurement", options: RobustnessOptions) -> Outcome:
    """ObjectNet's classes, of which some are several of ImageNet's."""
    from vitlab.evaluation.robustness import grouped_metrics

    split = _some(on.measured, options)
    metrics = grouped_metrics(on.subject, on.dataset.classes, split, on.reading, on.progress)
    clean = _clean(on, options)
    if clean is not None:
        before = grouped_metrics(on.subject, on.dataset.classes, clean, on.reading, on.progress)
        metrics |= _drop(metrics["top-1"], before["top-1"])
    return Outcome(metrics=metrics, counts=_counts(on, split, metrics["top-1"]))


def _published(on: "Measurement", options: RobustnessOptions) -> Outcome:
    """A set whose pictures were corrupted by its authors, after cropping: nothing is cropped again."""
    from vitlab.data.conditions import ALL, chosen, conditions_of
    from vitlab.data.corruptions.images import whole_picture
    from vitlab.evaluation.robustness import answers, matched

    rows = chosen(conditions_of(on.measured), options.corruptions or ALL, options.severities, options.images)
    if not len(rows):
        raise EvaluationError(f"{on.dataset.name} has none of the corruptions at the severities that were asked for.")
    split = on.measured.take(rows)
    subject, how = matched(on.subject, on.dataset.classes)
    seen = dataclasses.replace(subject, preprocess=whole_picture(subject.preprocess))
    wrong = answers(seen, split, on.reading, on.progress).wrong_of(len(split))
    clean = _clean(on, options)
    without = None if clean is None else answers(subject, clean, on.reading, on.progress).wrong_of(len(clean))
    return _errors(on, split, wrong, without, {"classes_matched": how})


def _corrupted(on: "Measurement", options: RobustnessOptions) -> Outcome:
    """The data's own pictures, corrupted here."""
    from vitlab.data.conditions import COMMON
    from vitlab.data.corruptions.images import corrupted
    from vitlab.evaluation.features import FEW_IMAGES
    from vitlab.evaluation.robustness import answers, matched

    subject, how = matched(on.subject, on.dataset.classes)
    clean = _some(on.measured, options)
    corruptions = options.corruptions or COMMON
    split, preprocess = corrupted(clean, subject.preprocess, corruptions, options.severities, seed=options.seed)
    reading = on.reading
    if reading.workers is None and len(split) >= FEW_IMAGES:  # corrupting is work, however small the pictures
        reading = dataclasses.replace(reading, workers=min(os.cpu_count() or 1, 16))
    without = answers(subject, clean, on.reading).wrong_of(len(clean))
    seen = dataclasses.replace(subject, preprocess=preprocess)
    wrong = answers(seen, split, reading, on.progress).wrong_of(len(split))
    notes = ["The corruptions are vitlab's own, with CIFAR-10-C's constants: figures are not those of published sets."]
    settings = {"classes_matched": how, "corruptions": list(corruptions), "notes": [*on.dataset.notes, *notes]}
    return _errors(on, split, wrong, without, settings)


def _errors(
    on: "Measurement", split: "Split", wrong: "Array", clean: "Array | None", settings: dict[str, object]
) -> Outcome:
    """The figures of a corrupted split; those that are parts of AlexNet's are ImageNet-C's alone."""
    import numpy as np

    from vitlab.data.conditions import COMMON, conditions_of
    from vitlab.data.sources.published.imagenet_c import IMAGENET_C
    from vitlab.evaluation.corruption_errors import CorruptionErrors
    from vitlab.evaluation.labeled_features import share
    from vitlab.evaluation.measurement import with_damaged

    errors = CorruptionErrors.of(conditions_of(split), split.labels, wrong)
    of_alexnet = on.dataset.name == IMAGENET_C and errors.whole and set(errors.averaged) <= {*COMMON}
    num = len(errors.averaged)
    some = "" if num == len(COMMON) else f" of {num} corruption{'s' * (num != 1)}"
    metrics: dict[str, Metric] = {}
    if of_alexnet:
        metrics[f"mCE{some}, %"] = errors.mce()
        if clean is not None:
            metrics[f"relative mCE{some}, %"] = errors.relative_mce(clean)
    metrics["mean corruption error"] = errors.error(*errors.averaged)
    if clean is not None:
        metrics["clean error"] = share(int(np.nansum(clean)), int(np.isfinite(clean).sum()))
        metrics["beyond clean, points"] = errors.beyond(clean)
    metrics |= {f"{name} error": errors.error(name) for name in errors.corruptions}
    counts = {"conditions": len(errors.wrong), "images per condition": len(split) // len(errors.wrong)}
    answered = int(np.isfinite(wrong).sum())
    counts = with_damaged({on.split: answered, **counts}, len(split) - answered)
    return Outcome(metrics=metrics, counts=counts, settings=settings, details={"errors": errors.table()})


def _some(split: "Split", options: RobustnessOptions) -> "Split":
    from vitlab.data.places import spread

    return split if options.images is None else split.take(spread(len(split), options.images))


def _clean(on: "Measurement", options: RobustnessOptions) -> "Split | None":
    """The images of the clean set that are of the data's classes, with the data's class numbers."""
    if options.clean is None:
        return None
    import numpy as np

    from vitlab.data.contract import Split
    from vitlab.data.open import open_data
    from vitlab.evaluation.measurement import choose_split

    clean: DataSet = open_data(options.clean, val_fraction=0)
    split = clean.splits[choose_split(clean, None)]
    numbers = _numbers(on.dataset.classes)
    table = np.array([next((numbers[key] for key in _keys(name) if key in numbers), -1) for name in clean.classes])
    labels = table[split.labels]
    kept = np.flatnonzero(labels >= 0)
    if not len(kept):
        raise EvaluationError(f"{clean.name} has no images of the classes of {on.dataset.name}.")
    return Split.labelled(split.take(kept).images, labels[kept])


def _numbers(classes: "tuple[str, ...]") -> dict[str, int]:
    return {key: number for number, name in enumerate(classes) for key in _keys(name)}


def _keys(name: str) -> tuple[str, ...]:
    """What a class is known by: its WordNet ids, or else its name."""
    from vitlab.core.imagenet import wordnet_ids

    return wordnet_ids(name) or (name.casefold(),)


def _drop(shifted: Metric, clean: Metric) -> dict[str, Metric]:
    """The clean set's accuracy, and how many percentage points the shifted one's is below it."""
    assert shifted.spread is not None
    assert clean.spread is not None
    drop = Metric(
        value=100 * (clean.value - shifted.value),
        count=shifted.count,
        spread=100 * (shifted.spread**2 + clean.spread**2) ** 0.5,
        spread_of="half of the 95% interval",
        unit="number",
    )
    return {"clean top-1": clean, "drop, points": drop}


def _counts(on: "Measurement", split: "Split", top: Metric) -> dict[str, int]:
    from vitlab.evaluation.measurement import with_damaged

    return with_damaged({on.split: top.count, "classes": on.dataset.num_classes}, len(split) - top.count)


PROTOCOL = Protocol(
    name="robustness",
    summary="shifted test sets (ImageNet-V2, -A, -R, -Sketch, -C, ObjectNet), and corruptions of any pictures",
    options=RobustnessOptions,
    examples=(
        "--model B_16.npz --data imagenet-a --clean imagenet",
        "--model B_16.npz --data imagenet-c --clean imagenet --out b16-c.json",
        "--model runs/cifar10 --data cifar10 --corrupt",
        "--data photos/ --model runs/mine --corrupt --corruptions motion_blur fog --images 500",
    ),
    run=run,
)

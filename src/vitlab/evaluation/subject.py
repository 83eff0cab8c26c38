"""What is measured, from a model of ours or from any function of images, and its classes put in a data set's order."""

import contextlib
import dataclasses
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from vitlab.core.config import check_value
from vitlab.core.imagenet import places_of, plain
from vitlab.core.preprocess import Preprocess
from vitlab.evaluation.contract import EvaluationError, Subject
from vitlab.models.contract import Model, evaluating
from vitlab.models.fingerprint import model_fingerprint
from vitlab.models.generator import need_images

Precision: TypeAlias = Literal["float32", "bf16"]
Function: TypeAlias = Callable[[Tensor], Tensor]
log = logging.getLogger("vitlab")

FEATURES = "measure its features (fewshot, linear, knn)"  # what can be done without the data's classes


@contextlib.contextmanager
def lent(model: Model) -> Iterator[None]:
    """A model that `subject_of` may have: on its device and in its mode again after the block, each of its modules."""
    device = next(model.parameters()).device
    with evaluating(model):
        try:
            yield
        finally:
            model.to(device)


def subject_of(
    model: Model, *, name: str, device: torch.device | str = "cpu", precision: Precision = "float32"
) -> Subject:
    """A model as it is: pooled features, and logits where it has a head. It is moved to the device: see `lent`."""
    check_value(Precision, precision, "precision")
    need_images(model, name)
    device = torch.device(device)
    model = model.to(device).eval()
    weight = next(model.parameters()).dtype

    def features(images: Tensor) -> Tensor:
        return model.pool(model.encode(model.embed(images.to(weight))))

    def logits(images: Tensor) -> Tensor:
        return model(images.to(weight))

    found = subject_from(
        features,
        logits=logits if getattr(model.config, "num_classes", 1) and not model.is_dense else None,
        name=name,
        preprocess=model.preprocess,
        fingerprint=model_fingerprint(model, precision),
        labels=model.labels,
        device=device,
        precision=precision,
    )
    return dataclasses.replace(found, dense=model.is_dense, task=model.task)


def subject_from(
    features: Function,
    *,
    logits: Function | None = None,
    name: str,
    preprocess: Preprocess,
    fingerprint: str | None = None,
    labels: tuple[str, ...] | None = None,
    device: torch.device | str = "cpu",
    precision: Precision = "float32",
) -> Subject:
    """Any functions of normalised images [B, 3, H, W]; what they give is brought to float32 without gradients.

    Give a `fingerprint` that changes whenever the functions do, and features are kept between calls.
    """
    device = torch.device(device)

    def plainly(function: Function) -> Function:
        def call(images: Tensor) -> Tensor:
            with torch.inference_mode(), torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
                return function(images).float()

        return call

    return Subject(
        name=name,
        features=plainly(features),
        logits=None if logits is None else plainly(logits),
        preprocess=preprocess,
        fingerprint=fingerprint,
        labels=labels,
        device=device,
    )


def for_classes(subject: Subject, classes: Sequence[str], *, otherwise: str = FEATURES) -> tuple[Subject, str]:
    """The subject with one logit for each of a data set's classes, in their order, and how they were matched.

    By name where the model's names hold all of the data's: then a prediction is one of the data's classes, also where
    the model knows more. By number where there are equally many and the names do not match. `otherwise` is what can be
    done where neither is possible, beside fine-tuning.
    """
    advice = f"fine-tune it on this data, or {otherwise}" if otherwise else "fine-tune it on this data"
    if subject.dense:
        raise EvaluationError(
            f"{subject.name} says the class of each pixel, not of the image: measure it by its own task (`vitlab"
            f" evaluate score`), {advice}."
        )
    if subject.logits is None:
        raise EvaluationError(f"{subject.name} has no classifier: {advice}.")
    places = None if subject.labels is None else places_of(subject.labels, classes)
    if places is not None:
        assert subject.labels is not None
        if places == list(range(len(subject.labels))):
            return subject, "by name"
        logits, index = subject.logits, torch.tensor(places, device=subject.device)
        chosen = dataclasses.replace(
            subject, logits=lambda images: logits(images)[:, index], labels=tuple(subject.labels[i] for i in places)
        )
        more = len(subject.labels) > len(places)
        return chosen, f"by name, {len(places)} of the model's {len(subject.labels)}" if more else "by name"
    known = num_logits(subject)
    if known == len(classes):
        if subject.labels is not None:
            log.warning(
                "The class names of %s are not the data's ('%s', the data's '%s'): matched by number.",
                subject.name, subject.labels[0], classes[0],
            )  # fmt: skip
        return subject, "by number"
    if subject.task != "classification":
        outputs = "one number" if known == 1 else f"{known} numbers"
        raise EvaluationError(
            f"{subject.name} gives {outputs} per image and tells no classes apart, since it is for {subject.task}:"
            f" measure it by its own task (`vitlab evaluate score`), {advice}."
        )
    missing = "" if subject.labels is None else _missing(subject.labels, classes)
    raise EvaluationError(f"{subject.name} tells {known} classes and the data has {len(classes)}{missing}: {advice}.")


def num_logits(subject: Subject) -> int:
    """How many classes a subject tells."""
    assert subject.logits is not None
    return subject.logits(torch.zeros(1, 3, *subject.preprocess.size, device=subject.device)).shape[-1]


def _missing(labels: Sequence[str], classes: Sequence[str]) -> str:
    known = {plain(name) for name in labels}
    absent = next((name for name in classes if plain(name) not in known), None)
    return "" if absent is None else f", among them '{absent}', which the model does not know"

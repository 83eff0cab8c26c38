"""What rounding a model to 8 bits costs in accuracy: both programs over the same images, read once."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from vitlab.core.preprocess import Preprocess
from vitlab.core.record import environment, write_json
from vitlab.data.contract import Array, DataSet
from vitlab.data.jpeg import decoder_name
from vitlab.data.open import open_data
from vitlab.evaluation.accuracy import Accuracy
from vitlab.evaluation.contract import EvaluationError
from vitlab.evaluation.features import Progress, Reading, outputs
from vitlab.evaluation.measurement import choose_split
from vitlab.evaluation.subject import for_classes, subject_from
from vitlab.exporting.int8 import Quantized, export_int8
from vitlab.exporting.program import Form
from vitlab.models.contract import Model

Program: TypeAlias = Callable[[Array], Array]


def export_measured(
    model: Model,
    path: Path,
    form: Form,
    data: str | None,
    *,
    split: str | None = None,
    batch_size: int = 32,
    progress: Progress | None = None,
) -> Quantized:
    """Write the 8-bit program of a model, and what it costs and saves as `path`.json; without data no accuracy."""
    dataset = None if data is None else open_data(data)

    def measure(float32: Program, int8: Program) -> dict[str, Any]:
        assert dataset is not None
        return accuracy_difference(
            *(float32, int8, dataset),
            split=split,
            preprocess=model.preprocess,
            labels=model.labels,
            pixels=form.pixels,
            batch_size=batch_size,
            progress=progress,
        )

    made = export_int8(model, path, form, None if dataset is None else measure)
    about = {**made.record(), "environment": environment(decoder_name())}
    write_json(path.with_name(f"{path.name}.json"), about)
    return made


def accuracy_difference(
    float32: Program,
    int8: Program,
    dataset: DataSet,
    *,
    split: str | None,
    preprocess: Preprocess,
    labels: tuple[str, ...] | None = None,
    pixels: bool = False,
    batch_size: int = 32,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Top-1 of both programs on a split, their difference, and on how many images they give the same class.

    The 8-bit program gets one image at a time: it rounds a whole batch by one scale, so that in batches an image's
    answer would depend on the others.
    Programs that take `pixels` are given the bytes that the images were made from, [B, H, W, 3].
    """
    if dataset.multi_label:
        raise EvaluationError(f"{dataset.name} has several labels per image; top-1 needs one.")
    split = choose_split(dataset, split)
    bytes_of = preprocess if pixels else None
    programs = [_logits(float32, bytes_of, singly=False), _logits(int8, bytes_of, singly=True)]
    subject, _ = for_classes(
        subject_from(
            lambda images: images.flatten(1),
            logits=lambda images: torch.cat([program(images) for program in programs]),  # [2 B, K]
            name="The model",
            preprocess=preprocess,
            labels=labels,
        ),
        dataset.classes,
        otherwise="leave the data out",
    )
    logits_of = subject.logits
    assert logits_of is not None

    def both(images: Tensor) -> Tensor:
        return torch.cat(logits_of(images).chunk(2), dim=1)

    counters = [Accuracy(dataset.num_classes), Accuracy(dataset.num_classes)]
    same = 0
    for batch in outputs(both, subject, dataset.splits[split], Reading(batch_size=batch_size), progress):
        halves = batch.values.chunk(2, dim=1)
        for counter, logits in zip(counters, halves, strict=True):
            counter.add(logits, torch.from_numpy(batch.labels))
        same += int((halves[0].argmax(dim=1) == halves[1].argmax(dim=1)).sum())
    before, after = (counter.outcome(dataset.classes).metrics["top-1"] for counter in counters)
    return {
        "data": dataset.name,
        "split": split,
        "images": before.count,
        "top-1 float32": before.value,
        "top-1 int8": after.value,
        "difference": after.value - before.value,
        "same class": same,
    }


def _logits(program: Program, bytes_of: Preprocess | None, *, singly: bool) -> Callable[[Tensor], Tensor]:
    """A program as a function of normalised images."""

    def call(images: Tensor) -> Tensor:
        values = images.numpy()
        if bytes_of is not None:
            mean, std = (np.array(each)[:, None, None] for each in (bytes_of.mean, bytes_of.std))
            values = np.rint((values * std + mean) * 255).clip(0, 255).astype(np.uint8).transpose(0, 2, 3, 1)
        parts = np.split(values, len(values)) if singly else [values]
        return torch.from_numpy(np.concatenate([program(np.ascontiguousarray(part)) for part in parts]))

    return call

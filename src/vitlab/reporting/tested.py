"""A run's model over held-out pictures, as its task looks at them."""

import os
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from vitlab.core.errors import Error
from vitlab.core.thumbnails import shrunk
from vitlab.data.contract import Array, DataSet, Split
from vitlab.data.places import evenly
from vitlab.evaluation.cost import model_cost
from vitlab.models.contract import Model, evaluating
from vitlab.reporting.pictures import picture_at
from vitlab.reporting.purpose import Purpose
from vitlab.tasks.results import Chosen, Example, Tested
from vitlab.tasks.scoring import held_batches

BUDGET = {"cpu": 2e12, "cuda": 2e15}  # FLOPs that are spent on looking: some seconds
FEWEST, MOST = 64, 10_000  # pictures that are looked at unless a number is given
FEW_IMAGES = 1000  # below, starting workers takes longer than decoding
BATCH = 64
TOP = 5  # classes of an answer that are kept


class Seen(NamedTuple):
    """A batch of readable images, what the model makes of them, and what they are."""

    pixels: Array  # uint8 [b, H, W, 3]
    outputs: Tensor
    target: Tensor
    places: list[int]


def held_out(dataset: DataSet) -> tuple[str, Split] | None:
    """The part that training saw least of: test, or else what chose the best weights."""
    for name in ("test", "val"):
        if name in dataset.splits and len(dataset.splits[name]):
            return name, dataset.splits[name]
    return None


def looked_at(whole: Split, limit: int) -> Split:
    """At most so many pictures of a part."""
    return whole.take(evenly(len(whole), limit)) if len(whole) > limit else whole


def affordable(model: Model, device: torch.device) -> int:
    """How many pictures some seconds suffice for; a function of the model, so that a report can be made again."""
    flops = max(model_cost(model)["flops"], 1)
    budget = BUDGET["cuda" if device.type == "cuda" else "cpu"]
    return int(min(max(budget / flops, FEWEST), MOST))


def check_limit(images: int | None) -> None:
    """Refuse a number of pictures that is none."""
    if images is not None and images < 1:
        raise Error(f"The number of images must be at least 1, not {images}.")


def examine_task(
    model: Model,
    purpose: Purpose,
    dataset: DataSet,
    *,
    limit: int,
    device: torch.device,
    progress: Callable[[int, int], None] | None = None,
) -> Tested | None:
    """The model over at most `limit` pictures of the held-out part; None where the data has none."""
    found = held_out(dataset)
    if found is None:
        return None
    part, whole = found
    split, task = looked_at(whole, limit), purpose.task
    examiner, num_read = task.examiner(purpose.loss, dataset), 0
    for seen in _batches(model, task.target, split, dataset, device):
        if seen.places:
            examiner.add(seen.outputs, seen.target, seen.places)
            num_read += len(seen.places)
        if progress is not None:
            progress(min(seen.places[-1] + 1, len(split)) if seen.places else 0, len(split))
    if examiner.sums is None:
        raise Error(f"none of its {len(split):,} held-out pictures can be read.")
    total = examiner.sums.cpu()
    scores = examiner.scorer.scores(total)
    best, worst = (_examples(model, purpose, split, dataset, chosen, device) for chosen in examiner.standing_out())
    return Tested(
        part=part,
        of=len(whole),
        num=int(scores["count"]),
        unread=len(split) - num_read,
        scores=scores,
        sums=total,
        labels=model.labels or (),
        best=tuple(best),
        worst=tuple(worst),
        details=examiner.details(),
    )


def _examples(
    model: Model, purpose: Purpose, split: Split, dataset: DataSet, chosen: Sequence[Chosen], device: torch.device
) -> Iterator[Example]:
    if not chosen:
        return
    some, task = split.take([each.place for each in chosen]), purpose.task
    for seen in _batches(model, task.target, some, dataset, device):
        answers = task.answers(model, seen.outputs, TOP)
        for row, (place, answer) in enumerate(zip(seen.places, answers, strict=True)):
            target, picture = seen.target[row].cpu(), picture_at(some, place)
            if picture is None:
                continue
            yield Example(
                where=some.images.where(place),
                pixels=seen.pixels[row],
                picture=np.asarray(shrunk(picture)),
                target=target,
                truth=task.truth(model, target, answer),
                answer=answer,
                score=chosen[place].score,
                place=chosen[place].place,
            )


def _batches(model: Model, name: str, split: Split, dataset: DataSet, device: torch.device) -> Iterator[Seen]:
    weight = next(model.parameters()).dtype
    num_classes = dataset.num_classes or int(getattr(model.config, "num_classes", 0))
    batches = held_batches(
        split,
        name,
        model.preprocess,
        num_classes=num_classes,
        device=device,
        batch_size=BATCH,
        num_workers=0 if len(split) < FEW_IMAGES else min(os.cpu_count() or 1, 4),
        max_damaged=1.0,
    )
    with evaluating(model), torch.no_grad():
        for batch in batches:
            keep = batch.counts
            places = batch.indices[keep.cpu()].tolist()
            if not places:
                continue
            outputs = model(batch.images[keep].to(weight)).float()
            pixels = batch.pixels[keep.cpu()].permute(0, 2, 3, 1).numpy()
            yield Seen(pixels, outputs, batch.target[keep], places)

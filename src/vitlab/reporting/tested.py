"""A run's model over held-out pictures by its task's own score, with the answers that stand out."""

import math
import os
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from vitlab.data.contract import Array, DataSet, Split
from vitlab.data.loader import evaluation_batches
from vitlab.data.targets import as_target
from vitlab.models.contract import Model, evaluating
from vitlab.reporting.measure import BATCH, evenly, held_out
from vitlab.reporting.purpose import Purpose
from vitlab.tasks.sections import Example, Tested

SHOWN = 4  # answers of each kind
FEW_IMAGES = 1000  # below, starting workers takes longer than decoding


class Seen(NamedTuple):
    """A batch of readable images, what the model makes of them, and what they are."""

    pixels: Array  # uint8 [b, H, W, 3]
    outputs: Tensor
    target: Tensor
    places: list[int]


def score_task(
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
    split = whole.take(evenly(len(whole), limit)) if len(whole) > limit else whole
    scorer, sums, alone = purpose.task.scorer(purpose.loss, dataset), list[Tensor](), list[tuple[float, float, int]]()
    for seen in _batches(model, purpose.task.target, split, device):
        for row, place in enumerate(seen.places):  # an image by itself, so that the best and the worst are known
            one = slice(row, row + 1)
            own = scorer.sums(seen.outputs[one], seen.target[one], torch.ones(1, dtype=torch.bool, device=device))
            scores = scorer.scores(own)
            if math.isfinite(scores["score"]):
                alone.append((scores["score"], -scores["loss"], place))
            sums = [own if not sums else sums[0] + own]
        if progress is not None:
            progress(min(seen.places[-1] + 1, len(split)) if seen.places else 0, len(split))
    total = sums[0].cpu()
    scores = scorer.scores(total)
    order = sorted(alone, reverse=True)
    shown = min(SHOWN, len(order) // 2)
    return Tested(
        part=part,
        of=len(whole),
        num=int(scores["count"]),
        scores=scores,
        sums=total,
        labels=model.labels or (),
        best=tuple(_examples(model, purpose, split, order[:shown], device)),
        worst=tuple(_examples(model, purpose, split, order[len(order) - shown :][::-1], device)),
    )


def _examples(
    model: Model, purpose: Purpose, split: Split, chosen: list[tuple[float, float, int]], device: torch.device
) -> Iterator[Example]:
    if not chosen:
        return
    some = split.take([place for _, _, place in chosen])
    for seen in _batches(model, purpose.task.target, some, device):
        answers = purpose.task.answers(model, seen.outputs, 5)
        for row, (place, answer) in enumerate(zip(seen.places, answers, strict=True)):
            yield Example(
                where=os.path.basename(some.images.where(place)),  # noqa: PTH119  it may be no path
                pixels=seen.pixels[row],
                target=seen.target[row].cpu(),
                answer=answer,
                score=chosen[place][0],
            )


def _batches(model: Model, name: str, split: Split, device: torch.device) -> Iterator[Seen]:
    batches = evaluation_batches(
        split,
        model.preprocess,
        targets=(name,),
        batch_size=BATCH,
        num_workers=0 if len(split) < FEW_IMAGES else min(os.cpu_count() or 1, 4),
        max_damaged=1.0,
    )
    weight, target = next(model.parameters()).dtype, split.targets[name]
    num_classes = int(getattr(model.config, "num_classes", 0))
    with evaluating(model), torch.no_grad():
        for batch in batches:
            images = batch.images[batch.counts]
            if not len(images):
                continue
            outputs = model(model.preprocess.normalise(images.to(device)).to(weight)).float()
            values = as_target(batch.targets[name][batch.counts].to(device), target.kind, num_classes)
            yield Seen(images.permute(0, 2, 3, 1).numpy(), outputs, values, batch.indices[batch.counts].tolist())

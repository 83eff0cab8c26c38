"""Several views of each image at test time: crops of a larger picture, and mirrored ones.

Features are averaged. Of logits, the views' probabilities are averaged, and what is given is their logarithm (for
sigmoid outputs the log-odds): a softmax of it is the mean probability again.
"""

import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from vitlab.core.config import check_fields
from vitlab.evaluation.contract import EvaluationError, Subject


@dataclass(frozen=True, kw_only=True)
class TestTime:
    """Which views of an image are averaged; the defaults are the one that the preprocessing gives."""

    __test__ = False  # no class of tests

    crops: Literal[1, 5] = 1  # 1: the centre; 5: the centre and the four corners
    flip: bool = False  # each crop also mirrored
    resize: int | None = None  # px that the picture's shorter side has before crops are taken; None: see `enlarged`

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def views(self) -> int:
        return self.crops * (2 if self.flip else 1)


def averaged(subject: Subject, views: TestTime, *, multi_label: bool = False) -> Subject:
    """The subject over several views: its pictures are read at the larger size that the crops are taken from."""
    if views == TestTime():
        return subject
    size = subject.preprocess.size
    large = enlarged(subject, views)
    preprocess = subject.preprocess
    if large != size:
        edge = min(large) if preprocess.resize == "shortest" else None
        preprocess = dataclasses.replace(preprocess, size=large, shortest_edge=edge)

    def features(images: Tensor) -> Tensor:
        return _mean(subject.features, images, size, views)

    def logits(images: Tensor) -> Tensor:
        function = subject.logits
        assert function is not None
        if multi_label:
            return _mean(lambda view: function(view).double().sigmoid(), images, size, views).logit(eps=1e-15).float()
        mean = _mean(lambda view: function(view).double().softmax(dim=-1), images, size, views)
        return mean.clamp_min(torch.finfo(torch.float64).tiny).log().float()

    return dataclasses.replace(
        subject,
        features=features,
        logits=None if subject.logits is None else logits,
        preprocess=preprocess,
        fingerprint=None if subject.fingerprint is None else _extended(subject.fingerprint, views, size),
    )


def enlarged(subject: Subject, views: TestTime) -> tuple[int, int]:
    """The size, height and width, that pictures have before crops are taken.

    Without `resize`: the size itself for one crop; for five the shorter edge that the preprocessing resizes to where
    that is larger than its crop, and 8/7 of the size otherwise (256 px for 224).
    """
    preprocess = subject.preprocess
    height, width = preprocess.size
    short = min(height, width)
    edge = views.resize
    if edge is None:
        if views.crops == 1:
            return height, width
        edge = preprocess.shortest_edge or short
        edge = edge if edge > short else max(round(short * 8 / 7), short + 1)
    if edge < short:
        raise EvaluationError(f"Crops of {short} px cannot be taken from pictures of {edge} px: resize to more.")
    return round(height * edge / short), round(width * edge / short)


def view_images(
    images: Float[Tensor, "b c h w"], size: tuple[int, int], views: TestTime
) -> Iterator[Float[Tensor, "b c h2 w2"]]:
    """The views of a batch: the centre first, then the corners, and after each its mirror image."""
    height, width = size
    down, right = images.shape[-2] - height, images.shape[-1] - width
    corners = [(0, 0), (0, right), (down, 0), (down, right)] if views.crops == 5 else []
    for top, left in [(down // 2, right // 2), *corners]:
        view = images[..., top : top + height, left : left + width]
        yield view
        if views.flip:
            yield view.flip(-1)


def _mean(function: Callable[[Tensor], Tensor], images: Tensor, size: tuple[int, int], views: TestTime) -> Tensor:
    total: Tensor | None = None
    for view in view_images(images, size, views):
        values = function(view)
        total = values if total is None else total + values
    assert total is not None
    return total / views.views


def _extended(fingerprint: str, views: TestTime, size: tuple[int, int]) -> str:
    text = json.dumps([fingerprint, dataclasses.asdict(views), size])
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

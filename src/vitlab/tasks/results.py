"""A model over held-out images for a report: its scores, the answers that stand out, and what a task kept besides."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, final

import torch
from torch import Tensor

from vitlab.data.contract import Array, DataSet
from vitlab.objectives.cross_entropy import Loss
from vitlab.tasks.answer import Answer
from vitlab.tasks.scoring import Scorer, Scores

SHOWN = 4  # answers of each kind


@final
@dataclass(frozen=True, kw_only=True)
class Example:
    """A held-out image, what it is and what the model said of it; its score is that of the image by itself."""

    where: str
    pixels: Array  # uint8 [H, W, 3], as the model saw it
    picture: Array  # uint8 [H, W, 3], as it is, shrunk to what a page shows
    target: Tensor
    truth: Answer
    answer: Answer
    score: float
    place: int = 0  # in the part that was looked at


@final
@dataclass(frozen=True, kw_only=True)
class Tested:
    """A model over a part of a data set: the scores of all images, the sums that made them, and some answers."""

    part: str  # 'test' or 'val'
    of: int  # images of the whole part
    num: int  # images that were looked at and could be read
    unread: int = 0  # images that were looked at and could not
    scores: Scores
    sums: Tensor
    labels: tuple[str, ...]  # the model's, where it has any
    best: tuple[Example, ...] = ()
    worst: tuple[Example, ...] = ()
    details: object | None = None  # what the task's examiner found besides

    @property
    def complete(self) -> bool:
        """Whether all images of the part were looked at."""
        return self.num + self.unread == self.of


@final
@dataclass(frozen=True)
class Reached:
    """Scores, on which part, and of how many images."""

    scores: Mapping[str, float]
    part: str  # 'test' or 'val'
    count: int


@final
@dataclass(frozen=True, kw_only=True)
class ReportContext:
    """What a report has to tell of: the scores that the run logged, its data, and what was looked at for the report."""

    summary: str = ""  # the task's, as its `TaskKind` has it
    loss: Loss
    classes: tuple[str, ...] = ()
    dataset: DataSet | None = None
    logged: Reached | None = None  # of the test part where the run scored one, else the best of validation
    tested: Tested | None = None
    balanced: bool = False  # whether all classes were drawn equally often
    pretrained: bool = False  # whether the run started from trained weights

    @property
    def reached(self) -> Reached | None:
        """The run's own scores of the test part; without them, what was looked at here, or the best of validation."""
        tested, logged = self.tested, self.logged
        if tested is None or (logged is not None and logged.part == "test"):
            return logged
        return Reached(tested.scores, tested.part, tested.num)


class Chosen(NamedTuple):
    """An image that stands out: its place in the part, and its own score."""

    place: int
    score: float


class Examiner(ABC):
    """Sees a model's outputs over a held-out part, a batch at a time."""

    def __init__(self, scorer: Scorer) -> None:
        self.scorer = scorer
        self.sums: Tensor | None = None

    def add(self, outputs: Tensor, target: Tensor, places: Sequence[int]) -> None:
        """Readable images by their places in the part."""
        del places
        self._sum(self.scorer.sums(outputs, target, _all(outputs)))

    @abstractmethod
    def standing_out(self) -> tuple[list[Chosen], list[Chosen]]:
        """The best answers and the worst, the most telling first."""

    def details(self) -> object | None:
        """What else the task's sections need."""
        return None

    def _sum(self, part: Tensor) -> None:
        self.sums = part if self.sums is None else self.sums + part


@final
class ScoreExaminer(Examiner):
    """By the score of each image by itself, whatever the task."""

    def __init__(self, scorer: Scorer) -> None:
        super().__init__(scorer)
        self._alone: list[tuple[float, float, int]] = []

    def add(self, outputs: Tensor, target: Tensor, places: Sequence[int]) -> None:
        for row, place in enumerate(places):
            one = outputs[row : row + 1]
            own = self.scorer.sums(one, target[row : row + 1], _all(one))
            scores = self.scorer.scores(own)
            if math.isfinite(scores["score"]):
                self._alone.append((scores["score"], -scores["loss"], place))
            self._sum(own)

    def standing_out(self) -> tuple[list[Chosen], list[Chosen]]:
        order = [Chosen(place, score) for score, _, place in sorted(self._alone, reverse=True)]
        shown = min(SHOWN, len(order) // 2)
        return order[:shown], order[len(order) - shown :][::-1]


def _all(outputs: Tensor) -> Tensor:
    return torch.ones(len(outputs), dtype=torch.bool, device=outputs.device)

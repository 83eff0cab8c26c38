"""What a task decides: which head, target, loss and score, and how an answer is shown."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, final

import torch
from torch import Tensor

from vitlab.core.errors import ConfigError, DataError
from vitlab.data.contract import DataSet, Split
from vitlab.models.contract import Model
from vitlab.objectives.contract import Criterion
from vitlab.objectives.cross_entropy import Loss
from vitlab.tasks.answer import Answer, Scored
from vitlab.tasks.sections import Scores, Section, Tested, answer_section, score_section

__all__ = ["Answer", "Scored", "Scorer", "Scores", "Section", "Task", "TaskKind", "Tested"]


class Scorer(ABC):
    """A score over a split from sums, which add up over batches and processes."""

    @abstractmethod
    def sums(self, outputs: Tensor, target: Tensor, counts: Tensor) -> Tensor:
        """Of the rows that count (bool [B]), float64 [n]."""

    @abstractmethod
    def scores(self, sums: Tensor) -> Scores:
        """By name, from the sums of all; `score` selects, higher being better, `loss` decides between equal ones."""


class Task(ABC):
    """What a model is for. It learns the split's target `target`."""

    target: ClassVar[str] = "label"
    tells_classes: ClassVar[bool] = False  # whether it says which class an image is of: a report compares classes then
    shares: ClassVar[frozenset[str]] = frozenset()  # the scores that are shown as percentages

    @abstractmethod
    def check(self, dataset: DataSet) -> None:
        """Refuse data that this task cannot be learned from, in one sentence."""

    @abstractmethod
    def fields(self, dataset: DataSet) -> dict[str, Any]:
        """The fields of a model's configuration that follow from the data: `num_classes`, and which `head`."""

    def fit(self, model: Model, dataset: DataSet) -> None:
        """Tell a model what its outputs mean."""
        del dataset
        model.labels, model.multi_label = None, False

    @abstractmethod
    def criterion(self, loss: Loss, dataset: DataSet, train: Split) -> Criterion:
        """The loss that `Supervised` takes."""

    @abstractmethod
    def scorer(self, loss: Loss, dataset: DataSet) -> Scorer:
        """The score of a held-out part."""

    @abstractmethod
    def words(self, scores: Mapping[str, float]) -> str:
        """The scores of an evaluation, or the metrics of steps, that are worth a word besides the loss; or nothing."""

    @abstractmethod
    def answers(self, model: Model, outputs: Tensor, top: int) -> list[Answer]:
        """What a model's outputs say, an answer per image."""

    def truth(self, target: Tensor, answer: Answer) -> Answer:
        """An image's target in the form of an answer to it."""
        if answer.mask is not None:
            return Answer(mask=target.to(torch.uint8).cpu().numpy(), labels=answer.labels)
        if answer.numbers:
            return Answer(numbers=dict(zip(answer.numbers, target.flatten().tolist(), strict=True)))
        known = {each.index: each.label for each in answer.classes}
        chosen = target.flatten().nonzero().flatten().tolist()
        return Answer(classes=tuple(Scored(known.get(i, f"class {i}"), i, float(target[i])) for i in chosen))

    def sections(self, tested: Tested) -> list[Section]:
        """What a report says of the model's answers to held-out images; not asked where it `tells_classes`."""
        return [score_section(tested, self.shares), answer_section(tested, self.truth)]


@final
@dataclass(frozen=True, kw_only=True)
class TaskKind:
    """What a file says of its task."""

    name: str
    summary: str
    build: Callable[[Any], Task]  # from its options
    options: type[Any]  # a dataclass with defaults


def need_target(task: Task, name: str, dataset: DataSet) -> None:
    """Refuse splits that lack the task's target."""
    for split in dataset.splits.values():
        if task.target not in split.targets:
            there = ", ".join(sorted(split.targets)) or "no targets at all"
            raise DataError(f"{dataset.name}: {name} needs a {task.target} for each image, and there are {there}.")


def no_loss_options(loss: Loss, name: str) -> None:
    """Refuse options of the cross-entropy for a task that has another loss."""
    if loss != Loss():
        raise ConfigError(f"loss.* are options of the cross-entropy, which {name} does not use: leave them out.")

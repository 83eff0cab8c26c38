"""What a task decides: which head, target, loss and score, and how an answer is shown."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, final

import torch
from torch import Tensor

from vitlab.core.errors import ConfigError, DataError
from vitlab.data.contract import UNLABELLED, DataSet, Split
from vitlab.models.contract import Model
from vitlab.objectives.contract import Criterion
from vitlab.objectives.cross_entropy import Loss
from vitlab.tasks.answer import Answer, Scored
from vitlab.tasks.report import answer_section, plain_opening, score_section
from vitlab.tasks.results import Examiner, Example, ReportContext, ScoreExaminer, Tested
from vitlab.tasks.scoring import Scorer, Scores
from vitlab.tasks.sections import Opening, Remark, Section

__all__ = ["Answer", "ReportContext", "Scored", "Scorer", "Scores", "Section", "Task", "TaskKind", "Tested"]


class Task(ABC):
    """What a model is for. It learns the split's target `target`."""

    target: ClassVar[str] = "label"  # empty: images alone are enough
    tells_classes: ClassVar[bool] = False  # whether the service may keep an answer as an array of probabilities
    shares: ClassVar[frozenset[str]] = frozenset()  # the scores that are shown as percentages
    protocol: ClassVar[str] = "score"  # of `vitlab evaluate`, the one that measures most of it
    terms: ClassVar[Mapping[str, str]] = {}  # what a report's glossary explains for it, besides what all runs have

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

    def truth(self, model: Model, target: Tensor, answer: Answer) -> Answer:
        """An image's target in the form of an answer to it."""
        if answer.mask is not None:
            return Answer(mask=target.to(torch.uint8).cpu().numpy(), labels=answer.labels)
        if answer.numbers:
            return Answer(numbers=dict(zip(answer.numbers, target.flatten().tolist(), strict=True)))
        names, chosen = model.labels, target.flatten().nonzero().flatten().tolist()
        return Answer(
            classes=tuple(Scored(names[i] if names else f"class {i}", i, float(target.flatten()[i])) for i in chosen)
        )

    def examiner(self, loss: Loss, dataset: DataSet) -> Examiner:
        """What looks at the answers to held-out images for a report."""
        return ScoreExaminer(self.scorer(loss, dataset))

    def opening(self, context: ReportContext) -> Opening:
        """The head of a report: what was learned, and how well."""
        reached = context.reached
        words = "" if reached is None else self.score_words(reached.scores)
        return plain_opening(context.summary, f"to say {context.summary}", reached, words)

    def score_words(self, scores: Mapping[str, float]) -> str:
        """The scores that matter; where the task has no words for them, the one that selects."""
        return self.words(scores) or (f"score {scores['score']:.4g}" if "score" in scores else "")

    def curve_title(self, name: str, context: ReportContext) -> str:
        """The title of a logged score's curve."""
        del context
        return f"{name[:1].upper()}{name[1:]}" if name.islower() else name

    def caption(self, example: Example, context: ReportContext) -> str:
        """What was said of an image and what it is."""
        del context
        return f"It said {example.answer.words()}; it is {example.truth.words()}."

    def commands(self, run: str, data: str) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """What to do with a run's model, in words and as a command; none: what is done with models of images."""
        del run, data
        return ()

    def remarks(self, context: ReportContext) -> list[Remark]:
        """What stands out in the answers and the data, the most important first."""
        del context
        return []

    def sections(self, context: ReportContext) -> list[Section]:
        """What a report says of the model's answers to held-out images, and of the data that they were learned from."""
        if context.tested is None:
            return []
        return [score_section(context, self.shares), answer_section(context.tested)]


@final
@dataclass(frozen=True, kw_only=True)
class TaskKind:
    """What a file says of its task."""

    name: str
    summary: str
    build: Callable[[Any], Task]  # from its options
    options: type[Any]  # a dataclass with defaults


def need_target(task: Task, name: str, dataset: DataSet) -> None:
    """Refuse splits that lack the task's target, but for the one that is to lack it."""
    for part, split in dataset.splits.items():
        if part != UNLABELLED and task.target not in split.targets:
            there = " and ".join(f"{target}s" for target in sorted(split.targets)) or "neither labels nor masks"
            raise DataError(f"{dataset.name}: {name} needs a {task.target} for each image, and {part} has {there}.")


def no_loss_options(loss: Loss, name: str) -> None:
    """Refuse options of the cross-entropy for a task that has another loss."""
    if loss != Loss():
        raise ConfigError(f"loss.* are options of the cross-entropy, which {name} does not use: leave them out.")

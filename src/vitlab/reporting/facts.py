"""All that a report is made from, in one place."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from vitlab.data.contract import DataSet
from vitlab.evaluation.cost import Spent
from vitlab.evaluation.examples import wilson
from vitlab.reporting.inside import Inside
from vitlab.reporting.measure import Measured, Number
from vitlab.reporting.purpose import Purpose
from vitlab.reporting.record import RunRecord
from vitlab.tasks.sections import Tested


@dataclass(frozen=True)
class Headline:
    """The number that the run is told by: its name, what it is over, and how many pictures."""

    name: str  # 'accuracy', 'mAP' or 'labels': the share of single labels that are right
    part: str  # 'test' or 'val'
    number: Number
    count: int


@dataclass(frozen=True)
class Reached:
    """The scores of a task that is not told by classes, in words; on which part, and how many pictures."""

    words: str
    part: str  # 'test' or 'val'
    count: int


@dataclass(frozen=True, kw_only=True)
class Facts:
    """A run, its data where that can be opened, and what was measured where there is a model."""

    record: RunRecord
    dataset: DataSet | None = None
    total_steps: int | None = None
    purpose: Purpose = field(default_factory=Purpose)
    measured: Measured | None = None  # of a classifier's answers
    tested: Tested | None = None  # of another task's
    inside: Inside | None = None
    spent: Spent | None = None
    model_cost: Mapping[str, float] | None = None
    missing: tuple[str, ...] = ()  # sentences on what could not be had

    @property
    def title(self) -> str:
        return str(self.record.field("name") or self.record.folder.name)

    @property
    def classes(self) -> tuple[str, ...]:
        return self.record.classes or (self.dataset.classes if self.dataset else ())

    @property
    def multi_label(self) -> bool:
        return self.dataset is not None and self.dataset.multi_label

    @property
    def notes(self) -> tuple[str, ...]:
        return self.dataset.notes if self.dataset else ()

    @property
    def num_train(self) -> int | None:
        train = self.dataset.splits.get("train") if self.dataset else None
        return None if train is None else len(train)

    @property
    def epoch_steps(self) -> float | None:
        """Steps of one pass over train."""
        batch = self.record.field("batch_size")
        return self.num_train / batch if self.num_train and batch else None

    @property
    def varied(self) -> bool:
        """Whether training pictures were made harder than held-out ones."""
        fields = ("augmentation.mixup", "augmentation.cutmix", "augmentation.erase", "loss.label_smoothing")
        policy = self.record.field("augmentation.policy", "none") != "none"
        return policy or any(self.record.field(name) for name in fields)

    @property
    def by_label(self) -> bool:
        """Whether the run's own accuracy counts single labels, and not pictures."""
        return self.record.field("loss.kind") == "sigmoid" or self.multi_label

    @property
    def headline(self) -> Headline | None:
        """What was measured here, unless the run measured the same on more pictures."""
        measured, result = self.measured, self.record.result
        logged = None if self.by_label and measured is not None else result.get("test accuracy")
        if measured is not None and (measured.whole or measured.part != "test" or logged is None):
            name = "mAP" if self.multi_label else "accuracy"
            return Headline(name, measured.part, measured.numbers[name], measured.num)
        if logged is not None:
            return self._logged("test", float(logged), int(result.get("test count") or 0))
        scores = self.record.series("val accuracy")
        if not scores:
            return None
        step, value = max(scores, key=lambda point: point[1])
        return self._logged("val", value, int(dict(self.record.series("val count")).get(step, 0)))

    @property
    def reached(self) -> Reached | None:
        """What was measured here, unless the run measured the same on more pictures."""
        tested, words = self.tested, self.purpose.words
        logged = {name[5:]: value for name, value in self.record.result.items() if name.startswith("test ")}
        if tested is not None and (tested.whole or tested.part != "test" or not logged):
            return Reached(words(tested.scores), tested.part, tested.num)
        if logged:
            return Reached(words(logged), "test", int(logged.get("count") or 0))
        lines = [line for line in self.record.lines if isinstance(line.get("val score"), int | float)]
        if not lines:
            return None
        best = max(lines, key=lambda line: line["val score"])
        scores = {name[4:]: value for name, value in best.items() if name.startswith("val ") and value is not None}
        return Reached(words(scores), "val", int(scores.get("count") or 0))

    def _logged(self, part: str, value: float, count: int) -> Headline:
        if self.by_label:
            return Headline("labels", part, Number(value=value), count)
        low, high = wilson(round(value * count), count) if count else (None, None)
        return Headline("accuracy", part, Number(value=value, low=low, high=high), count)

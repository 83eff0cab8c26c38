"""All that a report is made from, in one place."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from vitlab.core.imagenet import with_words
from vitlab.data.contract import UNLABELLED, DataSet
from vitlab.evaluation.cost import Spent
from vitlab.reporting.inside import Inside
from vitlab.reporting.purpose import Purpose
from vitlab.reporting.record import RunRecord
from vitlab.tasks.results import Reached, ReportContext, Tested
from vitlab.tasks.sections import Section


@dataclass(frozen=True, kw_only=True)
class Facts:
    """A run, its data where that can be opened, and what was measured where there is a model."""

    record: RunRecord
    dataset: DataSet | None = None
    total_steps: int | None = None
    mixed_steps: int | None = None  # after which pictures are not mixed any more, where they were before
    purpose: Purpose = field(default_factory=Purpose)
    tested: Tested | None = None
    shown: tuple[Section, ...] = ()  # what the objective shows of itself
    inside: Inside | None = None
    spent: Spent | None = None
    model_cost: Mapping[str, float] | None = None
    missing: tuple[str, ...] = ()  # sentences on what could not be had

    @property
    def title(self) -> str:
        return str(self.record.field("name") or self.record.folder.name)

    @property
    def classes(self) -> tuple[str, ...]:
        return with_words(self.record.classes) or (self.dataset.classes if self.dataset else ())

    @property
    def notes(self) -> tuple[str, ...]:
        return self.dataset.notes if self.dataset else ()

    @property
    def num_train(self) -> int | None:
        """Images that the model learned from; beside labels, there may be more without."""
        splits = self.dataset.splits if self.dataset else {}
        learned = (splits.get(UNLABELLED) if self.purpose.headless else None) or splits.get("train")
        return None if learned is None else len(learned)

    @property
    def epoch_steps(self) -> float | None:
        """Steps of one pass over train."""
        batch = self.record.field("batch_size")
        return self.num_train / batch if self.num_train and batch else None

    @property
    def mixed_at_end(self) -> bool:
        """Whether pictures were mixed with each other to the last step."""
        ended = self.mixed_steps is not None and self.record.step > self.mixed_steps
        return self.record.mixes and not ended

    @property
    def harder(self) -> list[str]:
        """Why the loss on training pictures is higher at the end than it would be on them as they are."""
        varied = self.record.field("augmentation.policy", "none") != "none" or self.record.field("augmentation.erase")
        reasons = {
            "training pictures are varied": varied,
            "training pictures are blended with each other": self.mixed_at_end,
            "the loss on training pictures asks for answers that are never quite sure (label smoothing)": (
                self.record.field("loss.label_smoothing")
            ),
        }
        return [reason for reason, there in reasons.items() if there]

    @property
    def logged(self) -> Reached | None:
        """The scores that the run wrote down: of the test part, or the best of validation."""
        test = {name[5:]: value for name, value in self.record.result.items() if name.startswith("test ")}
        if test:
            return Reached(test, "test", int(test.get("count") or 0))
        best = self.record.best
        if best is None:
            return None
        scores = {name[4:]: value for name, value in best.items() if name.startswith("val ") and value is not None}
        return Reached(scores, "val", int(scores.get("count") or 0))

    @property
    def context(self) -> ReportContext:
        """What the task speaks of."""
        return ReportContext(
            summary=self.purpose.summary,
            loss=self.purpose.loss,
            classes=self.classes,
            dataset=self.dataset,
            logged=self.logged,
            tested=self.tested,
            balanced=bool(self.record.field("data.balanced")),
            pretrained=self.record.pretrained,
        )

"""What a run's model was trained for."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from vitlab.core.registry import is_file_reference
from vitlab.objectives.collapse import SHARES
from vitlab.objectives.cross_entropy import Loss
from vitlab.tasks.classification import TASK, Classification
from vitlab.tasks.contract import Task


@dataclass(frozen=True, kw_only=True)
class Purpose:
    """A task, its name and what it is in words, and the loss that it was trained by; or, without a head, no task."""

    task: Task = field(default_factory=Classification)
    name: str = TASK.name  # as --task takes it
    summary: str = TASK.summary
    loss: Loss = field(default_factory=Loss)
    headless: bool = False  # the model gives features: an objective of its own was minimised

    @property
    def shares(self) -> frozenset[str]:
        """The scores that are shown as percentages."""
        return SHARES if self.headless else self.task.shares

    @property
    def terms(self) -> Mapping[str, str]:
        """What the glossary explains for the task."""
        return {} if self.headless else self.task.terms

    @property
    def given(self) -> tuple[str, ...]:
        """What a command needs besides the model, so that it is taken for its task."""
        return ("--task", self.name) if is_file_reference(self.name) else ()

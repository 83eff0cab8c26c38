"""What a model is for: one file each."""

from vitlab.core.registry import Registry
from vitlab.models.contract import Model
from vitlab.tasks.contract import Task, TaskKind

TASKS = Registry(TaskKind, "task", "vitlab.tasks", "TASK", ("classification", "segmentation", "generation"))


def task_for(model: Model, name: str | None = None) -> Task:
    """What a trained model is for; `name` is the task's, where it is given in the place of the model's own."""
    kind = TASKS.find(name or model.task)
    return kind.build(kind.options())

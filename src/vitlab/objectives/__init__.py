"""What a step minimises: one file each."""

from vitlab.core.registry import Registry
from vitlab.objectives.contract import ObjectiveKind

OBJECTIVES = Registry(ObjectiveKind, "objective", "vitlab.objectives", "OBJECTIVE", ("supervised", "distillation"))

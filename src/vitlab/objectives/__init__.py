"""What a step minimises: one file each."""

from vitlab.core.registry import Registry
from vitlab.objectives.contract import ObjectiveKind

MODULES = (
    "supervised",
    "distillation",
    "masked_patches",
    "mae",
    "dino",
    "contrastive",
    "lejepa",
    "semantic_softmax",
    "transgan",
    "fixmatch",
    "noisy_student",
    "meta_pseudo_labels",
)
OBJECTIVES = Registry(ObjectiveKind, "objective", "vitlab.objectives", "OBJECTIVE", MODULES)

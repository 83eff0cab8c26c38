"""Models: one file per family, each of which ends with its `FAMILY`."""

from vitlab.core.registry import Registry
from vitlab.models.family import Family

MODULES = (
    *("vit", "hybrid", "conv_stem", "bit", "wide_resnet", "cvt", "coatnet", "vmoe"),
    *("axial", "local_attention", "non_local", "transgan", "timm.adapter"),
)
FAMILIES = Registry(Family, "model family", "vitlab.models", "FAMILY", MODULES)

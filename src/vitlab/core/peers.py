"""Libraries that vitlab is compared with and that a user may have: torchvision and timm."""

import importlib
from types import ModuleType

import torch

from vitlab.core.errors import MissingDependencyError

# torchvision 0.28: torchvision/csrc/ops/nms.cpp and quantized/cpu/qnms_kernel.cpp
SCHEMAS = ("nms", "qnms")
_declared: list[torch.library.Library] = []  # a declaration lasts as long as its object


def import_torchvision() -> ModuleType:
    """torchvision, also where its compiled operators do not fit this build of torch.

    The wheels of package indexes are built for one CUDA version; beside a CPU torch their operators are missing, and
    `import torchvision` fails because it registers shapes for `torchvision::nms`. With the schemas declared the Python
    part (transforms, models) works; the operators themselves stay missing.
    """
    try:
        return _import("torchvision")
    except RuntimeError as error:
        if "operator torchvision::" not in str(error) or _declared:
            raise
    library = torch.library.Library("torchvision", "DEF")
    for name in SCHEMAS:
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _declared.append(library)
    return _import("torchvision")


def import_timm() -> ModuleType:
    """timm, which needs torchvision."""
    import_torchvision()
    return _import("timm")


def _import(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise MissingDependencyError(f"{name} is not installed: pip install 'vitlab[timm]'.") from error

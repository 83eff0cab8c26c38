"""The Vision Transformer, end to end. Everything is imported when it is first used: `import vitlab` costs nothing."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vitlab.api import (
        Prediction,
        Scored,
        create,
        embed,
        evaluate,
        examine_data,
        export,
        export_int8,
        finetune,
        inspect,
        list_models,
        load,
        predict,
        pretrain,
        push,
        report,
        resume,
        sample,
        save,
        study,
        train,
    )
    from vitlab.core.errors import Error

    __version__: str

__all__ = [
    "Error",
    "Prediction",
    "Scored",
    "__version__",
    "create",
    "embed",
    "evaluate",
    "examine_data",
    "export",
    "export_int8",
    "finetune",
    "inspect",
    "list_models",
    "load",
    "predict",
    "pretrain",
    "push",
    "report",
    "resume",
    "sample",
    "save",
    "study",
    "train",
]

_HOMES = {
    "Error": "vitlab.core.errors",
    "Prediction": "vitlab.api",
    "Scored": "vitlab.api",
    "create": "vitlab.models.create",
    "embed": "vitlab.api",
    "evaluate": "vitlab.api",
    "examine_data": "vitlab.api",
    "export": "vitlab.api",
    "export_int8": "vitlab.api",
    "finetune": "vitlab.api",
    "inspect": "vitlab.api",
    "list_models": "vitlab.models.zoo.rows",
    "load": "vitlab.weights.load",
    "predict": "vitlab.api",
    "pretrain": "vitlab.api",
    "push": "vitlab.api",
    "report": "vitlab.api",
    "resume": "vitlab.api",
    "sample": "vitlab.api",
    "save": "vitlab.weights.load",
    "study": "vitlab.api",
    "train": "vitlab.api",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib import metadata  # most of what `import vitlab` would cost

        try:
            value = metadata.version("vitlab")
        except metadata.PackageNotFoundError:
            value = "0+unknown"  # run from a checkout that was never installed
    elif name in _HOMES:
        value = getattr(import_module(_HOMES[name]), name)
    else:
        raise AttributeError(f"module 'vitlab' has no attribute '{name}'")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

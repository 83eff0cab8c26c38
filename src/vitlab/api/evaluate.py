"""Protocols that measure a model."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from vitlab.api.given import data_name, source_name
from vitlab.core.devices import choose_device
from vitlab.core.registry import permit
from vitlab.data.decoding import StrPath
from vitlab.models.contract import Model

if TYPE_CHECKING:
    from vitlab.evaluation.contract import Result


def evaluate(
    protocol: str,
    model: Model | StrPath,
    data: StrPath | None = None,
    *,
    split: str | None = None,
    name: str | None = None,
    image_size: int | None = None,
    crops: Literal[1, 5] = 1,
    flip: bool = False,
    resize: int | None = None,
    batch_size: int | None = None,
    workers: int | None = None,
    cache: StrPath | None = None,
    keep: bool = True,
    device: str | None = None,
    precision: Literal["auto", "float32", "bf16"] = "auto",
    progress: Callable[[int, int], None] | None = None,
    **options: Any,
) -> "Result":
    """What a protocol measures of a model on a data set: accuracy, robustness, fewshot, linear, knn, finetune, vtab ...

    `mine.py:NAME` is one of your own. Keywords that are not named here are the protocol's own, and unknown ones are
    refused. Features are kept in `cache` unless `keep` is False. Processes that torchrun started share the work, and
    all get the same result.
    """
    from vitlab.evaluation.request import How, Request, checked_options
    from vitlab.evaluation.testtime import TestTime
    from vitlab.studies import PROTOCOLS
    from vitlab.studies.evaluate import HOST

    protocol, source = str(protocol), data_name(data)  # what is no protocol's name is refused as one that is not known
    permit(protocol, *([] if source is None else [source]))
    found = PROTOCOLS.find(protocol)
    request = Request(
        protocol=found.name,
        model=model if isinstance(model, Model) else source_name(model, "model"),
        data=source,
        options=checked_options(found, options),
        how=How(
            split=split,
            name=name,
            image_size=image_size,
            views=TestTime(crops=crops, flip=flip, resize=resize),
            batch_size=batch_size,
            workers=workers,
            cache=None if cache is None else Path(cache),
            keep=keep,
            device=choose_device(device),
            precision=precision,
        ),
        host=HOST,
        progress=progress,
    )
    return found.run(request)

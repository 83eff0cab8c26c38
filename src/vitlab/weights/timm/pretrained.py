"""timm's own weights of `timm:<name>`, through its client and the hub's cache."""

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from vitlab.core.config import from_dict
from vitlab.core.errors import CheckpointError, Error
from vitlab.core.hub import answering
from vitlab.core.imagenet import imagenet_labels
from vitlab.models.create import change
from vitlab.models.timm.adapter import TimmModel
from vitlab.models.timm.build import TimmConfig, first_line
from vitlab.models.zoo.timm_rows import timm_row
from vitlab.weights import sources
from vitlab.weights.mapping import LoadReport
from vitlab.weights.surgery import new_head, replaces_head

IMAGENET = 1000  # classes


def load_timm(source: str, changes: Mapping[str, Any]) -> TimmModel:
    """The model of that name with timm's weights; timm itself resizes positions and leaves out another head."""
    with answering() as silent:
        if silent and not _kept():  # said at once: importing timm takes seconds
            raise _cannot_fetch(source, silent)
        published = from_dict(TimmConfig, timm_row(source).config, where=source)
        config = change(published, changes, where=source)
        try:
            model = TimmModel(config, pretrained=True)
        except Error:
            raise
        except Exception as error:  # timm's own, the hub client's or its HTTP library's, whichever it is
            raise _cannot_fetch(source, silent or _cause(error)) from error
    report = LoadReport()
    if replaces_head(published, config):
        report.adapted.append(new_head(published, config))
    elif config.num_classes == IMAGENET:
        model.labels = imagenet_labels()
    if config.image_size != published.image_size:
        report.adapted.append(resized(published, config))
    model.load_report = report
    return model


def resized(old: TimmConfig, new: TimmConfig) -> str:
    """What to say of another resolution."""
    (height, width), (new_height, new_width) = old.image_size, new.image_size
    return f"Resolution changed from {height} x {width} to {new_height} x {new_width} px as timm does it."


def _kept() -> bool:
    """Whether timm could find anything on this machine, or is itself missing, of which it is told first."""
    kept = Path(torch.hub.get_dir(), "checkpoints")
    return bool(sources.cached()) or find_spec("timm") is None or (kept.is_dir() and any(kept.iterdir()))


def _cannot_fetch(source: str, why: str) -> CheckpointError:
    return CheckpointError(
        f"The weights of {source} are not in the local cache and cannot be fetched ({why}): for fresh ones use"
        f" vitlab.create('{source}').{sources.at_hand()}"
    )


def _cause(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    return first_line(error)

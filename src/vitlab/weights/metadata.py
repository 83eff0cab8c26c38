"""What no shape tells of a model, as JSON in a safetensors header: with it a single file is read back exactly."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from vitlab.core.config import from_dict, to_dict
from vitlab.core.errors import CheckpointError
from vitlab.core.preprocess import Preprocess
from vitlab.core.reading import parse_json
from vitlab.models.contract import Model
from vitlab.weights.format import Location

KEY = "vitlab"
FIELDS = (
    *("image_size", "heads", "norm_eps", "gelu", "pool", "positions", "resize_rule"),
    *("group_eps", "weight_eps", "weight_eps_of", "pool_padding"),  # of what has a ResNet
    *("batch_eps", "conv_activation", "pre_activation", "downsample", "pooling", "squeeze_activation"),  # of CoAtNet
)


@dataclass(frozen=True)
class Notes:
    """Fields of the configuration, preprocessing and class names; empty where a file has none."""

    config: Mapping[str, Any] = field(default_factory=dict)
    preprocess: Preprocess | None = None
    labels: tuple[str, ...] | None = None

    def header(self) -> dict[str, str]:
        """The metadata of a safetensors file."""
        content: dict[str, Any] = {"config": dict(self.config)}
        if self.preprocess is not None:
            content["preprocess"] = to_dict(self.preprocess)
        if self.labels is not None:
            content["labels"] = list(self.labels)
        return {"format": "pt", KEY: json.dumps(content, ensure_ascii=False)}


def notes_of(model: Model) -> Notes:
    """What to note of a model."""
    config = {name: value for name, value in to_dict(model.config).items() if name in FIELDS}
    return Notes(config, model.preprocess, model.labels)


def read_notes(location: Location) -> Notes:
    """The notes in a file's header, or empty ones."""
    where = f"{location.where}: the '{KEY}' entry of its header"
    try:
        content = parse_json(location.tensors.metadata.get(KEY, "{}"))
    except ValueError as error:
        raise CheckpointError(f"{where} is not JSON.") from error
    match content:
        case {"config": dict(config)}:
            labels, preprocess = content.get("labels"), content.get("preprocess")
        case {} if not content:
            return Notes()
        case _:
            raise CheckpointError(f"{where} has no 'config'.")
    if labels is not None and not (isinstance(labels, list) and all(isinstance(name, str) for name in labels)):
        raise CheckpointError(f"{where} must have class names that are texts.")
    if preprocess is not None:
        preprocess = from_dict(Preprocess, preprocess, where=where)
    known = {name: value for name, value in config.items() if name in FIELDS}
    return Notes(known, preprocess, None if labels is None else tuple(labels))

"""Sizes, parameters and cost of the zoo's rows: counted once and kept in a file, since counting all takes seconds.

`python docs/zoo.py` writes the file, and says with --check whether it is current.
"""

import json
import math
from importlib.resources import files
from typing import TYPE_CHECKING, Any, TypeAlias

from vitlab.models.zoo.row import ZooRow

if TYPE_CHECKING:
    from vitlab.models.contract import Model

Facts: TypeAlias = dict[str, Any]
FILE = "facts.json"


def kept_facts() -> list[Facts]:
    """Of every row of a family of ours, in the zoo's order; torch is not imported for it."""
    return json.loads(files("vitlab.models.zoo").joinpath(FILE).read_text(encoding="utf-8"))


def count_facts(row: ZooRow) -> Facts:
    """A row with what its model on the meta device tells."""
    from vitlab.core.config import from_dict
    from vitlab.models.counts import count_flops, count_parameters
    from vitlab.models.create import empty_model, family_of

    model = empty_model(from_dict(family_of(row.family).config, row.config, where=row.name)).eval()
    config = model.config
    heads = getattr(config, "heads", None)
    return {
        "name": row.name,
        "family": row.family,
        "layers": model.num_layers,
        "width": getattr(config, "width", model.num_features),
        "mlp_dim": getattr(config, "mlp_dim", None),  # None where a family has no such thing
        "heads": list(heads) if isinstance(heads, tuple) else heads,  # of each stage, where they differ
        "patch_size": getattr(config, "patch_size", None),
        "image_size": list(config.image_size),
        "num_classes": config.num_classes,
        "tokens": _tokens(model),
        "parameters": count_parameters(model),
        "flops": count_flops(model),
        "published_parameters": row.published,
        "published_counts": row.counts,
        "source": row.source,
    }


def _tokens(model: "Model") -> int:
    """Of an image; a generator ends with one per pixel."""
    if not model.takes_images:
        return math.prod(model.config.image_size)
    return model.encode(model.embed(model.example("meta"))).values.shape[1]


def as_json(facts: list[Facts]) -> str:
    """A line per row, so that a change can be read."""
    return "[\n" + ",\n".join(json.dumps(fact, ensure_ascii=False) for fact in facts) + "\n]\n"

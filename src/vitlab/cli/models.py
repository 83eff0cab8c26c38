"""`vitlab models`: the zoo as a table."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import Positional, arg

from vitlab.cli.parsing import parse
from vitlab.cli.terminal import print_json, print_table, progress_bar

if TYPE_CHECKING:
    from vitlab.api import ZooRow

DESCRIPTION = """The models that can be built by name: their sizes, parameters and cost.

Examples:
  vitlab models
  vitlab models 'vit-b*-224'
  vitlab models cifar --json
"""
CAPTION = (
    "Size: layers / width / MLP / heads. Tokens: patches and prefix. GFLOPs an image, 2 FLOPs a multiply-add, matrix"
    " products and attention only."
)


@dataclass(frozen=True)
class Arguments:
    pattern: Annotated[Positional[str], arg(metavar="[PATTERN]")] = "*"
    """A glob over the names; a plain word matches anywhere in a name."""
    json: bool = False
    """Print one JSON document instead of a table."""


def main(arguments: Sequence[str]) -> int:
    given = parse(Arguments, arguments, prog="vitlab models", description=DESCRIPTION)

    from vitlab.api import list_models
    from vitlab.core.errors import unknown_name

    rows = list_models(given.pattern)
    if not rows:
        names = [row.name for row in list_models()]
        raise unknown_name("model", given.pattern, names, " `vitlab models` lists them.")
    facts: list[dict[str, Any]] = []
    with progress_bar("Counting", len(rows)) as progress:
        for row in rows:
            facts.append(_facts(row))
            if progress is not None:
                progress(len(facts), len(rows))
    if given.json:
        print_json(facts)
        return 0
    columns = ["name", "size", ">patch", ">pixels", ">tokens", ">parameters", ">GFLOPs"]
    print_table(columns, [_cells(fact) for fact in facts], caption=CAPTION)
    return 0


def _facts(row: "ZooRow") -> dict[str, Any]:
    """A row with what its model on the meta device tells."""
    import torch

    from vitlab.core.config import from_dict
    from vitlab.models.cost import count_flops, count_parameters
    from vitlab.models.create import empty_model, family_of

    model = empty_model(from_dict(family_of(row.family).config, row.config, where=row.name)).eval()
    config = model.config
    images = torch.zeros(1, config.channels, *config.image_size, device="meta")
    return {
        "name": row.name,
        "family": row.family,
        "layers": model.num_layers,
        "width": getattr(config, "width", model.num_features),
        "mlp_dim": getattr(config, "mlp_dim", None),  # None where a family has no such thing
        "heads": getattr(config, "heads", None),
        "patch_size": getattr(config, "patch_size", None),
        "image_size": list(config.image_size),
        "num_classes": config.num_classes,
        "tokens": model.encode(model.embed(images)).values.shape[1],
        "parameters": count_parameters(model),
        "flops": count_flops(model),
        "published_parameters": row.published,
        "published_counts": row.counts,
        "source": row.source,
    }


def _cells(fact: dict[str, Any]) -> list[str]:
    height, width = fact["image_size"]
    return [
        fact["name"],
        " / ".join(str(fact[name]) for name in ("layers", "width", "mlp_dim", "heads") if fact[name] is not None),
        "" if fact["patch_size"] is None else str(fact["patch_size"]),
        str(width) if height == width else f"{height} x {width}",
        str(fact["tokens"]),
        f"{fact['parameters'] / 1e6:.2f} M",
        f"{fact['flops'] / 1e9:.2f}",
    ]

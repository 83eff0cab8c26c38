"""`vitlab models`: the zoo as a table."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from tyro.conf import Positional, arg

from vitlab.cli.parsing import parse
from vitlab.cli.terminal import print_json, print_table, progress_bar

DESCRIPTION = """The models that can be built by name: their sizes, parameters and cost.

They are built with fresh weights. Trained ones come from checkpoints; vitlab/tiny is one that is in the package.

Examples:
  vitlab models
  vitlab models 'vit-b*-224'
  vitlab models cifar --json
"""
CAPTION = (
    "Size: layers / width / MLP / heads. Tokens: patches and prefix. Published: parameters as the source prints them, *"
    " without the head. GFLOPs per image, 2 FLOPs a multiply-add, matrix products and attention only."
)


@dataclass(frozen=True)
class Arguments:
    pattern: Annotated[Positional[str], arg(metavar="[PATTERN]")] = "*"
    """A glob over the names; a plain word matches anywhere in a name."""
    json: bool = False
    """Print one JSON document instead of a table."""


def main(arguments: Sequence[str]) -> int:
    given = parse(Arguments, arguments, prog="vitlab models", description=DESCRIPTION)

    from vitlab.core.errors import unknown_name
    from vitlab.models.zoo.facts import kept_facts
    from vitlab.models.zoo.row import matches

    kept = kept_facts()
    facts = [*(fact for fact in kept if matches(fact["name"], given.pattern)), *_counted(given.pattern, kept)]
    if not facts:
        raise unknown_name("model", given.pattern, [fact["name"] for fact in kept], " `vitlab models` lists them.")
    if given.json:
        print_json(facts)
        return 0
    columns = ["name", "size", ">patch", ">pixels", ">tokens", ">parameters", ">published", ">GFLOPs"]
    print_table(columns, [_cells(fact) for fact in facts], caption=CAPTION)
    return 0


def _counted(pattern: str, kept: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows that are not ours: timm's, where they are asked for, and those of installed packages."""
    from vitlab.models import FAMILIES

    if not (pattern.startswith("timm:") or FAMILIES.has_more()):
        return []
    from vitlab.models.zoo.facts import count_facts
    from vitlab.models.zoo.rows import list_models

    names = {fact["name"] for fact in kept}
    rows = [row for row in list_models(pattern) if row.name not in names]
    facts: list[dict[str, Any]] = []
    with progress_bar("Counting", len(rows)) as progress:
        for row in rows:
            facts.append(count_facts(row))
            if progress is not None:
                progress(len(facts), len(rows))
    return facts


def _cells(fact: dict[str, Any]) -> list[str]:
    height, width = fact["image_size"]
    return [
        fact["name"],
        " / ".join(_size(fact[name]) for name in ("layers", "width", "mlp_dim", "heads") if fact[name] is not None),
        "" if fact["patch_size"] is None else str(fact["patch_size"]),
        str(width) if height == width else f"{height} x {width}",
        str(fact["tokens"]),
        f"{fact['parameters'] / 1e6:.2f} M",
        fact["published_parameters"] + "*" * (fact["published_counts"] == "backbone"),
        f"{fact['flops'] / 1e9:.2f}",
    ]


def _size(value: int | list[int]) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)

"""`vitlab models`: the zoo as a table."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from tyro.conf import Positional, arg

from vitlab.cli.parsing import parse
from vitlab.cli.terminal import print_json, print_table, progress_bar

DESCRIPTION = """List the models that can be built by name: their sizes, parameters and cost.

They are built with fresh weights. Trained ones come from checkpoints; vitlab/tiny is one in the package.

Examples:
  vitlab models
  vitlab models 'vit-b*-224'
  vitlab models cifar --json
  vitlab models vit-cifar-d128 --shapes
"""
CAPTION = (
    "Size: layers / width / MLP / heads. Tokens: patches and prefix. Published: parameters as the source prints them, *"
    " without the head. GFLOPs per image, 2 FLOPs a multiply-add, matrix products and attention only."
)


@dataclass(frozen=True)
class Arguments:
    pattern: Annotated[Positional[str], arg(metavar="[PATTERN]")] = "*"
    """A glob over the names; a plain word matches anywhere in a name."""
    shapes: bool = False
    """For one model: every shape from an image to its logits, without building it in memory."""
    json: bool = False
    """Print one JSON document instead of a table."""


def main(arguments: Sequence[str]) -> int:
    given = parse(Arguments, arguments, prog="vitlab models", description=DESCRIPTION)

    from vitlab.core.errors import unknown_name
    from vitlab.models.zoo.facts import kept_facts
    from vitlab.models.zoo.row import matches

    if given.shapes:
        return _shapes(given.pattern, as_json=given.json)
    kept = kept_facts()
    facts = [*(fact for fact in kept if matches(fact["name"], given.pattern)), *_counted(given.pattern, kept)]
    if not facts:
        raise unknown_name("model", given.pattern, [fact["name"] for fact in kept], " `vitlab models` lists them.")
    if given.json:
        print_json(facts)
        return 0
    columns = ["name", "size", ">patch", ">pixels", ">tokens", ">parameters", ">published", ">GFLOPs"]
    spare = ("published", "tokens", "pixels", "patch", "size")
    print_table(columns, [_cells(fact) for fact in facts], caption=CAPTION, spare=spare)
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


def _shapes(pattern: str, *, as_json: bool) -> int:
    """The steps of one model; layers that are alike are one in the table."""
    from vitlab.core.config import from_dict
    from vitlab.core.errors import Error, unknown_name
    from vitlab.models.create import empty_model, family_of
    from vitlab.models.shapes import shapes_of
    from vitlab.models.zoo.rows import ZOO, list_models

    rows = list_models(pattern)
    rows = [row for row in rows if row.name == pattern] or rows
    if not rows:
        raise unknown_name("model", pattern, ZOO, " `vitlab models` lists them.")
    if len(rows) > 1:
        some = ", ".join(row.name for row in rows[:3])
        raise Error(f"--shapes is of one model, and '{pattern}' matches {len(rows)}: name one of {some}, ...")
    row = rows[0]
    steps = shapes_of(empty_model(from_dict(family_of(row.family).config, row.config, where=row.name)).eval())
    if as_json:
        print_json({"name": row.name, "steps": [vars(step) for step in steps]})
        return 0
    layers: dict[int, list[Any]] = {}
    for step in steps:
        if step.layer is not None:
            layers.setdefault(step.layer, []).append((step.name, step.shape))
    alike = _alike(layers)
    lines = [
        [alike.get(step.layer or 0, ""), step.name, " x ".join(map(str, step.shape))]
        for step in steps
        if step.layer is None or step.layer in alike
    ]
    print_table(["layers", "step", ">shape"], lines, caption=f"{row.name}, one image.")
    return 0


def _alike(layers: Mapping[int, Any]) -> dict[int, str]:
    """The first of all layers that are the same, and what these are called: '1 to 12', or '1, 3, ..., 47'."""
    same: dict[int, list[int]] = {}
    for layer, found in layers.items():
        same.setdefault(next(first for first in layers if layers[first] == found), []).append(layer)
    return {first: _called(found) for first, found in same.items()}


def _called(numbers: Sequence[int]) -> str:
    if len(numbers) > 1 and numbers[-1] - numbers[0] == len(numbers) - 1:
        return f"{numbers[0]} to {numbers[-1]}"
    shown = list(map(str, numbers))
    return ", ".join(shown if len(shown) < 4 else [*shown[:2], "...", shown[-1]])

"""Writes docs/zoo.md and the counts that `vitlab models` prints from the zoo's tables: `python docs/zoo.py`.

With --check it says whether they are current.
"""

import json
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from vitlab.core.config import from_dict
from vitlab.models.create import family_of
from vitlab.models.zoo import facts as zoo_facts
from vitlab.models.zoo.facts import Facts, as_json, count_facts
from vitlab.models.zoo.row import ZooRow
from vitlab.models.zoo.rows import ZOO, find_row
from vitlab.models.zoo.timm_rows import EFFICIENTNETS
from vitlab.recipes import RECIPES

PAGE = Path(__file__).with_name("zoo.md")
COUNTS = Path(zoo_facts.__file__).with_name(zoo_facts.FILE)
HEAD = """# The zoo

Written by `python docs/zoo.py` from the tables in `src/vitlab/models/zoo*.py`; not to be edited. On the command line:

    vitlab models                # all of it
    vitlab models "vit-b*-224"   # some of it; --json for programs
    vitlab models "timm:eff*"    # timm's, where it is installed
    vitlab models vit-cifar-d128 --shapes    # of one model: every shape from the image to the logits

`vitlab.create(name)` builds a model with fresh weights; keywords change fields of its configuration. *Stated* is the
number of parameters as the source prints it, or worked out by hand where the source says so: of the whole model or,
where it says *backbone*, without pooling head and classifier. *Counted* is that of the whole model which vitlab builds.
GFLOPs are for one image of that resolution: two FLOPs a multiply-add, matrix products, convolutions and attention only.

*Recipes* are the trainings of the family's paper or of later work: `vitlab train RECIPE`. Their files in
`src/vitlab/recipes` say where the figures are from, and which of them no source confirmed.
"""
COLUMNS = "| name | resolution | stated | counted | GFLOPs | source |\n|-|-:|-:|-:|-:|-|"


def timm_models() -> list[ZooRow]:
    """timm's EfficientNets, which have a published count."""
    return [find_row(f"timm:{name}") for name in EFFICIENTNETS]


def sections(rows: Iterable[ZooRow]) -> dict[str, list[ZooRow]]:
    """The rows of each family, in the order of the table."""
    by_family: dict[str, list[ZooRow]] = {}
    for row in rows:
        by_family.setdefault(row.family, []).append(row)
    return by_family


def fixed_cells(row: ZooRow) -> tuple[str, str, str, str]:
    """What needs no counting: name, resolution, the stated number of parameters, source."""
    height, width = config_of(row).image_size
    resolution = str(height) if height == width else f"{height} x {width}"
    stated = f"{row.published}{', backbone' if row.counts == 'backbone' else ''}"
    return f"`{row.name}`", resolution, stated, row.source.replace("|", "\\|")


def config_of(row: ZooRow) -> Any:
    return from_dict(family_of(row.family).config, row.config, where=row.name)


def line(row: ZooRow, facts: Facts) -> str:
    name, resolution, stated, source = fixed_cells(row)
    parameters, flops = facts["parameters"], facts["flops"] / 1e9
    counted = f"{parameters / 1e6:.2f} M" if parameters >= 1e6 else f"{parameters / 1e3:.1f} k"
    cost = f"{flops:.2f}" if flops >= 0.1 else f"{flops:.1g}"
    return "| " + " | ".join((name, resolution, stated, counted, cost, source)) + " |"


def recipes_of(family: str) -> list[str]:
    """The names of the recipes for models of a family."""
    sources = {name: first_source(name) for name in RECIPES}
    return [name for name, source in sources.items() if source in ZOO and ZOO[source].family == family]


def first_source(name: str) -> str:
    """The row that a recipe's model is of: a published checkpoint's name begins with it, a run's is its recipe's."""
    source = RECIPES[name]().model.source
    return first_source(source.removeprefix("runs/")) if source.startswith("runs/") else source.split(".")[0]


def heading(family: str) -> tuple[str, str]:
    """A section's title, and the command that lists its rows."""
    described = family_of(family)
    pattern = described.pattern
    return described.title, f"vitlab models {json.dumps(pattern) if '*' in pattern else pattern}"


def opening(family: str) -> str:
    """What stands between a section's command and its table."""
    names, note = [f"`{name}`" for name in recipes_of(family)], family_of(family).note
    parts = ([f"Recipes: {', '.join(names)}."] if names else []) + ([note] if note else [])
    return "".join(f"{textwrap.fill(part, 120, break_on_hyphens=False)}\n\n" for part in parts)


def page(rows: Sequence[ZooRow], facts: Mapping[str, Facts]) -> str:
    """The whole document."""
    parts = [HEAD]
    for family, members in sections(rows).items():
        title, command = heading(family)
        lines = "\n".join(line(row, facts[row.name]) for row in members)
        parts.append(f"\n## {title}\n\n    {command}\n\n{opening(family)}{COLUMNS}\n{lines}\n")
    return "".join(parts)


def main(arguments: Sequence[str]) -> int:
    ours, timms = list(ZOO.values()), timm_models()
    facts = {row.name: count_facts(row) for row in (*ours, *timms)}
    written = {
        PAGE: page([*ours, *timms], facts),
        COUNTS: as_json([facts[row.name] for row in ours]),
    }
    if "--check" in arguments:
        stale = [path.name for path, text in written.items() if path.read_text(encoding="utf-8") != text]
        print(
            f"{', '.join(stale)}: not what the zoo's tables say: python docs/zoo.py" if stale else "The zoo is current."
        )
        return 1 if stale else 0
    for path, text in written.items():
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

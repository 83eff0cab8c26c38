"""Writes docs/published.md from the published figures: `python docs/published.py`.

With --check it says whether the page is current.
"""

import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

from vitlab.evaluation.published.tables import TABLES, Figure, Table, group_means, published_table
from vitlab.evaluation.results import markdown

PAGE = Path(__file__).with_name("published.md")
UNITS = {"percent": "In percent.", "fraction": "", "number": ""}
FORMATS = {"percent": ",.2f", "fraction": ".5f"}
HEAD = """# Published figures

Written by `python docs/published.py` from the tables in `src/vitlab/evaluation/published`; not to be edited. In a
program:

    from vitlab.evaluation.published.tables import published_table
    published_table("vit-v2-main").figures["imagenet", "ViT-H/14 (JFT)"]    # value, spread, source, place

`vitlab evaluate compare --published v2` sets the main table beside your own results, and `vitlab study leaderboard`
shows the leaderboards beside our models. Every figure has its source; † marks one that is from memory, and ‡ one that
is from another place than the table's, named below it. No figure is read off a picture: figure 4 of the paper, whose
points no text states, is left out, and so are the bars of figure 2 for models other than ViT.
"""


def page() -> str:
    """The whole document."""
    return "\n".join([HEAD, *(section(published_table(name)) for name in TABLES)])


def section(table: Table) -> str:
    """A table with where it is from."""
    lines = [[row, *(cell(table, row, column) for column in table.columns)] for row in table.rows]
    shown = markdown(["", *(f">{column}" for column in table.columns)], lines)
    units = [f"{name}: {unit}" for name, unit in {**table.row_units, **table.column_units}.items() if unit != "number"]
    about = [f"`{table.name}`: {table.source.cite}, {table.place}.", UNITS[table.unit], "; ".join(units)]
    about.append(f"Seen in: {table.source.seen}.")
    words = " ".join(part.removesuffix(".") + "." for part in about if part)
    notes = [*table.remarks, *others(table), *groups(table)]
    return "\n\n".join([f"## {table.title}", filled(words), shown, *map(filled, notes), ""])


def filled(text: str) -> str:
    return textwrap.fill(text, 120, break_on_hyphens=False)


def cell(table: Table, row: str, column: str) -> str:
    figure = table.figures.get((row, column))
    if figure is None:
        return "–"
    unit = table.unit_of(row, column)
    text = f"{figure.value:{FORMATS.get(unit, ',.10g')}}"
    spread = "" if figure.spread is None else f" ± {figure.spread:.2f}"
    mark = "†" if figure.from_memory else "‡" if elsewhere(table, figure) else ""
    return f"{text}{spread}{mark}"


def elsewhere(table: Table, figure: Figure) -> bool:
    return (figure.source, figure.place) != (table.source, table.place)


def others(table: Table) -> list[str]:
    """The places that are not the table's own, with what is from each."""
    places: dict[str, list[str]] = {}
    for (row, column), figure in table.figures.items():
        if elsewhere(table, figure):
            where = f"{figure.source.cite}, {figure.place}"
            places.setdefault(where, []).append(f"{row} ({column})")
    return [f"‡ {where}: {', '.join(what)}." for where, what in places.items()]


def groups(table: Table) -> list[str]:
    """Figure 2 of the paper, which follows from the tasks."""
    if table.name != "vit-v2-vtab":
        return []
    means = {model: group_means(model) for model in table.columns}
    return [
        f"{model}: " + ", ".join(f"{group} {value:.2f}" for group, value in found.items()) + "."
        for model, found in means.items()
    ]


def main(arguments: Sequence[str]) -> int:
    text = page()
    if "--check" in arguments:
        current = PAGE.exists() and PAGE.read_text(encoding="utf-8") == text
        print("The published figures are current." if current else f"{PAGE.name} is stale: python docs/published.py")
        return 0 if current else 1
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""What the verbs print: tables and JSON for standard output, words and a progress bar for standard error."""

import contextlib
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from vitlab.core.progress import stage
from vitlab.core.words import one_line

BETWEEN = 3  # places of a terminal between two columns


def say(text: str) -> None:
    """A line on standard error."""
    print(one_line(text), file=sys.stderr)


def print_json(value: Any) -> None:
    """One JSON document on standard output."""
    print(json.dumps(value, indent=2, allow_nan=False))


def print_table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], *, caption: str = "", spare: Sequence[str] = ()
) -> None:
    """A table: drawn on a terminal, else aligned by spaces. A column whose name begins with '>' is set to the right.

    On a terminal that is too narrow for it, columns of `spare` are left out, the first one first, and that is said.
    """
    from rich.cells import cell_len  # a Korean or Chinese character takes two places

    names = [name.lstrip(">") for name in columns]
    right = [name.startswith(">") for name in columns]
    cells = [[one_line(cell) for cell in row] for row in rows]
    widths = [max(map(cell_len, column)) for column in zip(names, *cells, strict=True)]
    if sys.stdout.isatty():
        _draw(names, right, cells, widths, caption, spare)
        return
    for row in [names, *cells]:
        gaps = [" " * (width - cell_len(cell)) for cell, width in zip(row, widths, strict=True)]
        aligned = (
            f"{gap}{cell}" if to_right else f"{cell}{gap}" for cell, gap, to_right in zip(row, gaps, right, strict=True)
        )
        print("  ".join(aligned).rstrip())
    if caption:
        print(f"\n{caption}")


def _draw(
    names: list[str], right: list[bool], rows: list[list[str]], widths: list[int], caption: str, spare: Sequence[str]
) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console, left_out, kept = Console(), list[str](), list(range(len(names)))
    for name in spare:
        if sum(widths[place] + BETWEEN for place in kept) <= console.width:
            break
        left_out.append(name)
        kept.remove(names.index(name))
    if left_out:
        caption += f" Left out for want of room: {', '.join(left_out)}."
    table = Table(box=box.SIMPLE_HEAD, caption=caption or None, caption_justify="left", header_style="bold")
    for place in kept:
        whole = right[place] or (bool(spare) and not place)
        justify = "right" if right[place] else "left"
        table.add_column(names[place], justify=justify, no_wrap=whole, overflow="fold")
    for row in rows:
        table.add_row(*(Text(row[place]) for place in kept))
    console.print(table)


@contextlib.contextmanager
def progress_bar(title: str, total: int, *, at_least: int = 2) -> Iterator[Callable[[int, int], None] | None]:
    """A function of (done, all) that moves a bar on standard error; None where nobody watches or little is to do."""
    if total < at_least or not sys.stderr.isatty():
        yield None
        return
    with stage(title, transient=True) as progress:
        yield progress

"""What the verbs print: tables and JSON for standard output, words and a progress bar for standard error."""

import contextlib
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from vitlab.core.progress import stage
from vitlab.core.words import one_line


def say(text: str) -> None:
    """A line on standard error."""
    print(one_line(text), file=sys.stderr)


def print_json(value: Any) -> None:
    """One JSON document on standard output."""
    print(json.dumps(value, indent=2, allow_nan=False))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, caption: str = "") -> None:
    """A table: drawn on a terminal, else aligned by spaces. A column whose name begins with '>' is set to the right."""
    names = [name.lstrip(">") for name in columns]
    right = [name.startswith(">") for name in columns]
    cells = [[one_line(cell) for cell in row] for row in rows]
    if sys.stdout.isatty():
        _draw(names, right, cells, caption)
        return
    from rich.cells import cell_len  # a Korean or Chinese character takes two places

    widths = [max(map(cell_len, column)) for column in zip(names, *cells, strict=True)]
    for row in [names, *cells]:
        gaps = [" " * (width - cell_len(cell)) for cell, width in zip(row, widths, strict=True)]
        aligned = (
            f"{gap}{cell}" if to_right else f"{cell}{gap}" for cell, gap, to_right in zip(row, gaps, right, strict=True)
        )
        print("  ".join(aligned).rstrip())
    if caption:
        print(f"\n{caption}")


def _draw(names: list[str], right: list[bool], rows: list[list[str]], caption: str) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, caption=caption or None, caption_justify="left", header_style="bold")
    for name, to_right in zip(names, right, strict=True):
        table.add_column(name, justify="right" if to_right else "left", no_wrap=to_right, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    Console().print(table)


@contextlib.contextmanager
def progress_bar(title: str, total: int, *, at_least: int = 2) -> Iterator[Callable[[int, int], None] | None]:
    """A function of (done, all) that moves a bar on standard error; None where nobody watches or little is to do."""
    if total < at_least or not sys.stderr.isatty():
        yield None
        return
    with stage(title, transient=True) as progress:
        yield progress

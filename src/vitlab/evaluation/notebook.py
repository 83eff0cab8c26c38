"""How results show themselves in a notebook: tables, and what has to be said of them."""

from typing import TYPE_CHECKING

from vitlab.core import notebook
from vitlab.core.markup import Html
from vitlab.core.words import short
from vitlab.evaluation.results import result_notes, result_table, result_title

if TYPE_CHECKING:
    from vitlab.evaluation.compare import Comparison
    from vitlab.evaluation.contract import Result

MOST_ROWS = 24  # VTAB has as many


def shown(result: "Result") -> Html:
    """A line per metric."""
    columns, rows = result_table(result)
    left = len(rows) - MOST_ROWS
    return notebook.card(
        result_title(result),
        notebook.table(columns, [[short(cell) if cell else "" for cell in row] for row in rows[:MOST_ROWS]]),
        notebook.faint(f"… and {left:,} more in .metrics") if left > 0 else None,
        *(notebook.faint(note) for note in result_notes(result)),
    )


def shown_comparison(comparison: "Comparison") -> Html:
    """A row per data set, a column per model."""
    columns, rows = comparison.table()
    return notebook.card(
        "Models side by side, in percent where a row names no other unit",
        notebook.table(columns, rows),
        *(notebook.faint(note) for note in comparison.notes),
    )

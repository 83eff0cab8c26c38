"""How an inspection shows itself in a notebook: its figures with a sentence each, most of them folded."""

from typing import TYPE_CHECKING

from matplotlib.figure import Figure

from vitlab.core import notebook
from vitlab.core.markup import Html, tag
from vitlab.core.words import short
from vitlab.inspection.drawing import draw_svg, inline_svg
from vitlab.inspection.page import average_words, cut_words
from vitlab.inspection.view import View
from vitlab.inspection.write import model_figures, view_figures

if TYPE_CHECKING:
    from vitlab.inspection.gather import Inspection

MOST_PICTURES = 3  # `inspect(..., out=folder)` writes all


def shown(inspection: "Inspection") -> Html:
    """Where the model looked in the first pictures, then what it learned."""
    findings = inspection.findings
    left = len(findings.views) - MOST_PICTURES
    more = f"… and {left} more: vitlab.inspect(..., out=FOLDER) draws all of them"
    pictures = [part for place, view in enumerate(findings.views[:MOST_PICTURES]) for part in _looked(view, place == 0)]
    model = [notebook.folded(title, _drawn(figure, words)) for title, _, figure, words in model_figures(findings)]
    absent = [notebook.faint(sentence) for sentence in (*findings.missing, *inspection.unread)]
    return notebook.card(
        f"Inside {findings.model}",
        notebook.line(cut_words(findings)),
        notebook.faint(average_words(findings)),
        *pictures,
        notebook.faint(more) if left > 0 else None,
        *model,
        notebook.folded("What is not here, and why", *absent) if absent else None,
    )


def _looked(view: View, with_heads: bool) -> list[Html]:
    """A picture's answer and where the model looked; its heads, the largest of all figures, folded."""
    answer = ", ".join(f"{short(label, 40)} {share:.0%}" for label, share in view.classes)
    found = view_figures(view)
    _, figure, words = next(found)
    parts = [notebook.line(f"{short(view.name)}: {answer}" if answer else short(view.name)), _drawn(figure, words)]
    if with_heads:
        parts += [notebook.folded("Head by head", _drawn(figure, words)) for _, figure, words in found]
    return parts


def _drawn(figure: Figure, caption: str) -> Html:
    svg = Html(inline_svg(draw_svg(figure), caption))
    return tag(
        "figure", tag("div", svg, style="overflow-x:auto"), notebook.faint(caption), style="margin:.3em 0 .8em 0"
    )

"""`inspect.html`: the figures with a sentence each, one file that refers to nothing outside it."""

from collections.abc import Iterable, Sequence

from vitlab.core.words import escaped
from vitlab.inspection.document import Panel, document, panel_markup
from vitlab.inspection.examine import Findings
from vitlab.inspection.view import View


def page(
    findings: Findings, views: Iterable[tuple[View, Sequence[Panel]]], sections: Sequence[tuple[str, Panel]]
) -> str:
    """The page: what was looked at, each picture with its panels, then the sections on the model as a whole."""
    parts = [_heading(findings)]
    pictures = [_picture(view, panels) for view, panels in views]
    if pictures:
        parts += ["<h2>The pictures, and where the model looked</h2>", *pictures]
    for title, panel in sections:
        parts += [f"<h2>{escaped(title)}</h2>", panel_markup(panel)]
    if findings.missing:
        lines = "".join(f"<p>{escaped(sentence)}</p>" for sentence in findings.missing)
        parts.append(f"<h2>What is not here, and why</h2>{lines}")
    return document(f"Inside {findings.model}", parts)


def _heading(findings: Findings) -> str:
    return (
        f"<h1>Inside {escaped(findings.model)}</h1>\n<p>What this model learned and where it looks."
        f' {cut_words(findings)}</p>\n<p class="faint">{escaped(average_words(findings))}</p>'
    )


def cut_words(findings: Findings) -> str:
    """How the model cuts its pictures."""
    rows, columns = findings.grid
    height, width = findings.image_size
    cut = f"It takes pictures of {width} x {height} pixels and sees them as {columns} x {rows} patches"
    side = findings.patch[0]
    return cut + (f" of {side:g} x {side:g} pixels." if findings.patch[0] == findings.patch[1] else ".")


def average_words(findings: Findings) -> str:
    """What averages are over, or nothing."""
    over = f" of the data set {findings.data}" if findings.data else ""
    count = "one picture" if findings.num_images == 1 else f"{findings.num_images} pictures"
    averages = f"Averages are over {count}{over}." if findings.num_images else ""
    few = (
        " That is few: give more pictures, or a data set, for steadier numbers." if 0 < findings.num_images < 16 else ""
    )
    return averages + few


def _picture(view: View, panels: Sequence[Panel]) -> str:
    answer = ""
    if view.classes:
        first, *others = (f"{escaped(label)} ({share:.0%})" for label, share in view.classes)
        answer = (
            f"<p>The model's answer: <strong>{first}</strong>{', then ' + ', '.join(others) if others else ''}.</p>"
        )
    return f"<h3>{escaped(view.name)}</h3>\n{answer}\n" + "\n".join(panel_markup(panel) for panel in panels)

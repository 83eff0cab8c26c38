"""The figures of inspect for a run's model: where it looked in a few pictures, how far, kinds of patches, filters."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure
from PIL import Image

from vitlab.core.markup import Html, tag
from vitlab.core.words import count
from vitlab.inspection.captions import rollout_doubt
from vitlab.inspection.document import Panel, panel_markup
from vitlab.inspection.drawing import draw_svg, inline_svg
from vitlab.inspection.examine import examine
from vitlab.inspection.write import model_figures, view_figures
from vitlab.models.contract import Model
from vitlab.reporting.glossary import term

SECTIONS = ("kinds", "distance", "filters", "positions")  # of what inspect draws of a whole model


@dataclass(frozen=True)
class Inside:
    """Figures of a few pictures, then of the model with a title each; and sentences on what it does not have."""

    looked: tuple[Panel, ...] = ()
    heads: Panel | None = None  # of the first picture
    sections: tuple[tuple[str, Panel], ...] = ()
    missing: tuple[str, ...] = ()
    num_images: int = 0
    doubt: str = ""  # why the colours of all pictures tell little
    answered: bool = True  # whether some of the pictures have an answer, and what spoke for it


def look_inside(
    model: Model,
    shown: Sequence[tuple[str, Image.Image]],
    pictures: Iterable[Image.Image],
    seen: Callable[[int], None] | None = None,
) -> Inside:
    """Maps of the pictures `shown`, whose captions come with them, and averages over `pictures`."""
    findings = examine(model, "the model", shown, pictures, seen=seen)
    drawn = [(view, {name: (figure, words) for name, figure, words in view_figures(view)}) for view in findings.views]
    looked = [_panel(figures["attention"][0], view.name) for view, figures in drawn if view.rollout is not None]
    heads = next((_panel(*figures["last-layer"]) for _, figures in drawn if "last-layer" in figures), None)
    sections = [
        (title, _panel(figure, caption)) for title, name, figure, caption in model_figures(findings) if name in SECTIONS
    ]
    doubts = [rollout_doubt(view.rollout) for view in findings.views if view.rollout is not None]
    doubt = doubts[0] if doubts and all(doubts) else ""
    return Inside(
        looked=tuple(looked),
        heads=heads,
        sections=tuple(sections),
        missing=findings.missing,
        num_images=findings.num_images,
        doubt=doubt,
        answered=any(view.gradient is not None for view in findings.views),
    )


def drawn_inside(found: Inside) -> list[Html]:
    """What inspect shows, as the page has it."""
    parts: list[Html] = []
    if found.looked:
        parts.append(tag("h3", "Where it looked"))
        parts.append(
            tag(
                "p",
                "The picture as the model sees it; beside it, yellow is where it looked (",
                term("attention"),
                " followed back through all layers)",
                ", and on the right what spoke for its answer." if found.answered else ".",
                f" {found.doubt}" if found.doubt else "",
            )
        )
        parts.append(tag("div", *(Html(panel_markup(panel)) for panel in found.looked), class_="looked"))
    if found.heads is not None:
        parts += [tag("h3", "Where each head looked"), Html(panel_markup(found.heads))]
    for title, panel in found.sections:
        parts += [tag("h3", title), Html(panel_markup(panel))]
    if found.num_images and any(title == "How far it looks" for title, _ in found.sections):
        parts.append(tag("p", f"Averages are over {count(found.num_images, 'held-out picture')}.", class_="faint"))
    if found.missing:
        parts.append(tag("p", " ".join(found.missing), class_="faint"))
    return parts


def _panel(figure: Figure, caption: str) -> Panel:
    return Panel(inline_svg(draw_svg(figure), caption), caption)

"""Pieces of what shows itself in a notebook, their style in the elements: a style sheet would be the whole notebook's.

Words have the theme's own colour, lines and fills are half transparent: readable on light and on dark. What a viewer
strips of styles leaves plain tables.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from vitlab.core.markup import Html, tag
from vitlab.core.thumbnails import Thumbnail

LINE = "1px solid rgba(128,128,128,.35)"
FILL = "rgba(58,134,200,.45)"
SHOWN_PX = 88  # of a thumbnail's longer side


def card(title: str, *parts: str | None) -> Html:
    """A title above parts."""
    heading = tag("div", title, style="font-weight:600")
    return tag("div", heading, *parts, style="max-width:48rem;line-height:1.5;overflow-wrap:break-word")


def line(text: str) -> Html:
    """A line of words."""
    return tag("div", text)


def faint(text: str) -> Html:
    """A line that stands back."""
    return tag("div", text, style="opacity:.75;font-size:.9em")


def folded(title: str, *parts: str) -> Html:
    """Parts that are shown when their title is clicked."""
    return tag("details", tag("summary", title, style="cursor:pointer"), *parts)


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Html:
    """A table; a column whose name begins with '>' is set to the right, and names that are all empty are left out."""
    names = [name.lstrip(">") for name in columns]
    right, left = "text-align:right;white-space:nowrap", "text-align:left"
    styles = [
        f"{right if name.startswith('>') else left};vertical-align:baseline;padding:.15em .8em .15em 0"
        for name in columns
    ]
    head = [tag("th", name, scope="col", style=style) for name, style in zip(names, styles, strict=True)]
    body = [tag("tr", *(tag("td", cell, style=style) for cell, style in zip(row, styles, strict=True))) for row in rows]
    return tag(
        "table",
        tag("thead", tag("tr", *head, style=f"border-bottom:{LINE}")) if any(names) else None,
        tag("tbody", *body),
        style="border-collapse:collapse;margin:.3em 0;color:inherit;font:inherit;font-variant-numeric:tabular-nums",
    )


def bar(share: float) -> Html:
    """A bar as long as a share of 0 to 1."""
    length = f"{100 * min(max(share, 0.0), 1.0):.1f}%"
    filled = tag("div", style=f"width:{length};height:.7em;background:{FILL};border-radius:2px")
    return tag("div", filled, style="width:4.5em")


def image(small: Thumbnail, alt: str) -> Html:
    """A thumbnail; a tiny picture is enlarged by its squares."""
    scale = SHOWN_PX / max(small.width, small.height)
    width, height = (max(round(scale * side), 1) for side in (small.width, small.height))
    style = "margin:0;image-rendering:pixelated" if small.tiny else "margin:0"
    return tag("img", src=small.source, alt=alt, width=width, height=height, style=style)


def link(path: Path, text: str) -> Html:
    """A link to a file: by the way from here, which a notebook's page can follow, or else by its address."""
    whole = path.absolute()
    inside = whole.is_relative_to(Path.cwd())
    address = quote(os.fsencode(whole.relative_to(Path.cwd()))) if inside else whole.as_uri()
    return tag("a", text, href=address, style="color:inherit;text-decoration:underline")

"""The sections that a task describes, drawn."""

import numpy as np
from PIL import Image

from vitlab.core.pictures import class_colour
from vitlab.data.contract import IGNORED, Array
from vitlab.reporting.markup import Html, tag
from vitlab.reporting.pictures import thumbnail
from vitlab.reporting.words import short
from vitlab.tasks.sections import Figure, Section

OVER = 0.6  # how much of a mask's colour there is over the picture


def drawn(section: Section) -> list[Html]:
    """Words, then the table, then the pictures with the colours of their classes."""
    parts = [tag("p", words) for words in section.words]
    if section.rows:
        head = [
            tag("th", name, scope="col", class_="amount" if place else None) for place, name in enumerate(section.head)
        ]
        rows = [
            tag("tr", tag("th", short(name), scope="row"), *(tag("td", cell, class_="amount") for cell in cells))
            for name, *cells in section.rows
        ]
        parts.append(tag("table", tag("thead", tag("tr", *head)), tag("tbody", *rows), class_="plain"))
    shown = [figure.mask for row in section.figures for figure in row if figure.mask is not None]
    if section.legend and shown:
        there = sorted({int(k) for mask in shown for k in np.unique(mask)})
        parts.append(tag("ul", *(_named(section.legend, k) for k in there if k < len(section.legend)), class_="legend"))
    parts += [tag("div", *(_figure(figure) for figure in row), class_="pictures") for row in section.figures]
    return parts


def over(pixels: Array, mask: Array) -> Array:
    """A picture with the colours of a mask over it; where the mask is `IGNORED`, the picture itself."""
    colours = np.array([class_colour(k) for k in range(256)], dtype=np.float32)[mask]
    mixed = (1 - OVER) * pixels + OVER * colours
    return np.where((mask == IGNORED)[..., None], pixels, np.rint(mixed)).astype(np.uint8)


def _named(names: tuple[str, ...], k: int) -> Html:
    colour = "#" + "".join(f"{value:02x}" for value in class_colour(k))
    return tag("li", tag("i", style=f"background:{colour}"), f" {short(names[k], 40)}")


def _figure(figure: Figure) -> Html:
    pixels = figure.pixels if figure.mask is None else over(figure.pixels, figure.mask)
    small = thumbnail(Image.fromarray(np.ascontiguousarray(pixels)))
    image = tag(
        "img",
        src=small.source,
        alt=short(figure.caption, 200),
        width=small.width,
        height=small.height,
        class_="tiny" if small.tiny else None,
    )
    return tag("figure", tag("div", image, class_="frame"), tag("figcaption", short(figure.caption, 120)))

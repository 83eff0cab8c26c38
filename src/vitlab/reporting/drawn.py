"""The sections that a task describes, drawn."""

from functools import singledispatch

import numpy as np
from PIL import Image

from vitlab.core.markup import Html, join, tag
from vitlab.core.pictures import class_color
from vitlab.core.thumbnails import thumbnail
from vitlab.core.words import short
from vitlab.inference.masks import blend
from vitlab.reporting.charts import reliability_chart
from vitlab.reporting.confusion import matrix
from vitlab.reporting.glossary import Glossary
from vitlab.tasks.sections import (
    Bar,
    Block,
    Figure,
    Folded,
    Heading,
    Matrix,
    Pictures,
    Reliability,
    Section,
    Span,
    Table,
    Text,
    Words,
)

LONGEST_CAPTION = 120


def drawn(section: Section, glossary: Glossary) -> list[Html]:
    """Its blocks, one after the other."""
    return [_block(block, glossary) for block in section.blocks]


def spoken(words: Words, glossary: Glossary) -> Html:
    """Words as markup."""
    parts = [words] if isinstance(words, str) else words
    return join([_span(part, glossary) if isinstance(part, Span) else _lines(part) for part in parts])


def plain(words: Words) -> str:
    """Words as they are read aloud."""
    return words if isinstance(words, str) else "".join(part if isinstance(part, str) else part.text for part in words)


@singledispatch
def _block(block: Block, glossary: Glossary) -> Html:  # noqa: ARG001  its cases take it
    raise AssertionError(block)


@_block.register
def _(block: Text, glossary: Glossary) -> Html:
    return tag("p", spoken(block.words, glossary), class_="faint" if block.faint else None)


@_block.register
def _(block: Heading, glossary: Glossary) -> Html:
    del glossary
    return tag("h3", block.title)


@_block.register
def _(block: Matrix, glossary: Glossary) -> Html:
    del glossary
    return tag("figure", tag("div", matrix(block), class_="scrolled", tabindex="0"))


@_block.register
def _(block: Reliability, glossary: Glossary) -> Html:
    del glossary
    return tag("div", tag("figure", reliability_chart(block.bins, label=block.label)), class_="charts")


@_block.register
def _(block: Folded, glossary: Glossary) -> Html:
    return tag("details", tag("summary", block.title), *(_block(each, glossary) for each in block.blocks))


@_block.register
def _(block: Table, glossary: Glossary) -> Html:
    bars = any(isinstance(cell, Bar) for row in block.rows for cell in row)

    def kind(place: int) -> str | None:
        return "amount" if place >= block.names and not bars else None

    head = [
        tag("th", spoken(words, glossary), scope="col", class_=kind(place)) for place, words in enumerate(block.head)
    ]
    rows = [
        tag(
            "tr",
            *(
                tag("th", _cell(cell, glossary), scope="row")
                if place == 0 and block.names == 1
                else tag("td", _cell(cell, glossary), class_=kind(place))
                for place, cell in enumerate(row)
            ),
        )
        for row in block.rows
    ]
    return tag(
        "table",
        tag("caption", block.caption) if block.caption else None,
        tag("thead", tag("tr", *head)),
        tag("tbody", *rows),
        class_="classes" if bars else "plain",
    )


@_block.register
def _(block: Pictures, glossary: Glossary) -> Html:
    rows = [tag("div", *(_figure(figure, glossary) for figure in row), class_="pictures") for row in block.rows]
    shown = [figure.mask for row in block.rows for figure in row if figure.mask is not None]
    if block.legend and shown:
        there = sorted({int(k) for mask in shown for k in np.unique(mask)})
        rows.insert(0, tag("ul", *(_named(block.legend, k) for k in there if k < len(block.legend)), class_="legend"))
    return join(rows)


def _figure(figure: Figure, glossary: Glossary) -> Html:
    pixels = figure.pixels if figure.mask is None else blend(figure.pixels, figure.mask)
    small = thumbnail(Image.fromarray(np.ascontiguousarray(pixels)))
    caption = figure.caption
    image = tag(
        "img",
        src=small.source,
        alt=figure.alt or short(plain(caption), 200),
        title=figure.hover or None,
        width=small.width,
        height=small.height,
        class_="tiny" if small.tiny else None,
    )
    text = short(caption, LONGEST_CAPTION) if isinstance(caption, str) else caption
    return tag("figure", tag("div", image, class_="frame"), tag("figcaption", spoken(text, glossary)))


def _named(names: tuple[str, ...], k: int) -> Html:
    color = "#" + "".join(f"{value:02x}" for value in class_color(k))
    return tag("li", tag("i", style=f"background:{color}"), f" {short(names[k], 40)}")


def _cell(cell: Words | Bar, glossary: Glossary) -> Html:
    if not isinstance(cell, Bar):
        return spoken(cell, glossary)
    filled = tag("span", tag("i", style=f"width:{100 * cell.share:.1f}%"))
    return tag("div", filled, tag("b", cell.words), class_=f"bar {'right' if cell.right else 'share'}")


def _span(span: Span, glossary: Glossary) -> Html:
    if span.term:
        return glossary.term(span.term, span.text)
    match span.style:
        case "strong":
            return tag("strong", span.text)
        case "faint":
            return tag("span", span.text, class_="faint")
        case "right" | "wrong":
            return tag("span", span.text, class_=f"mark {span.style}")
        case None:
            return join([span.text])


def _lines(text: str) -> Html:
    return join([join([line]) for line in text.split("\n")], tag("br"))

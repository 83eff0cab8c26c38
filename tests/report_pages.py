"""A report as a reader, and a browser, take it: headings, tables, pictures, and what it would fetch."""

import base64
import io
import re
from html.parser import HTMLParser
from typing import Any

from PIL import Image

VOID = ("meta", "img", "br")


class Page(HTMLParser):
    """Parsed; elements that are not closed, or closed in the wrong order, are an error."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.source = text
        self.links: list[str] = []
        self.ids: list[str] = []
        self.headings: list[str] = []
        self.images: list[dict[str, str | None]] = []
        self.commands: list[str] = []
        self.hovers: list[str] = []  # of the squares of a chart
        self.rows: list[list[str]] = []
        self.labels: list[str] = []
        self.language: str | None = None
        self._texts: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        assert self._open == []

    @property
    def text(self) -> str:
        return " ".join("".join(self._texts).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag not in ("script", "link", "iframe", "object", "embed", "base", "form")
        values = dict(attrs)
        assert len(values) == len(attrs)
        assert not any(name.startswith("on") for name in values)
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href", "srcset", "data")]
        self.links += re.findall(r"url\((.*?)\)", " ".join(value or "" for _, value in attrs))
        if values.get("id"):
            self.ids.append(values["id"] or "")
        if tag == "html":
            self.language = values.get("lang")
        if tag == "img":
            self.images.append(values)
        if tag == "svg":
            assert values.get("role") == "img"
            self.labels.append(values.get("aria-label") or "")
        if tag in ("h1", "h2", "h3"):
            self.headings.append("")
        if tag == "pre":
            self.commands.append("")
        if tag == "title" and "svg" in self._open:
            self.hovers.append("")
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" in self._open:
            self.links += re.findall(r"url\((.*?)\)", data)
            assert "@import" not in data
            return
        self._texts.append(data)
        for tag, kept in (("pre", self.commands), ("title", self.hovers)):
            if tag in self._open and (tag != "title" or "svg" in self._open):
                kept[-1] += data
        if self._open and self._open[-1] in ("h1", "h2", "h3"):
            self.headings[-1] += data
        if "td" in self._open or "th" in self._open:
            self.rows[-1][-1] += data

    def row(self, name: str) -> list[str]:
        """The cells beside the one of that name."""
        return next(cells[1:] for cells in self.rows if cells[:1] == [name])

    def check(self) -> None:
        """Nothing outside is asked for, pictures are whole and named, and every link on the page leads somewhere."""
        outside = [link for link in self.links if not link.startswith(("data:image/", "#"))]
        assert outside == []
        assert "http:" not in self.source
        assert "https:" not in self.source
        assert len(self.ids) == len(set(self.ids)), [name for name in self.ids if self.ids.count(name) > 1]
        assert {link[1:] for link in self.links if link.startswith("#")} <= set(self.ids)
        for image in self.images:
            assert image["alt"]
            kind, _, content = (image["src"] or "").partition(";base64,")
            with Image.open(io.BytesIO(base64.b64decode(content))) as picture:
                assert kind == f"data:image/{(picture.format or '').lower()}"
                assert (str(picture.width), str(picture.height)) == (image["width"], image["height"])
        assert all(self.labels)
        assert self.language == "en"
        assert 'name="viewport"' in self.source
        assert "prefers-color-scheme: dark" in self.source
        assert "@media print" in self.source

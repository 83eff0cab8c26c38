"""A figure as a PNG and an SVG file, and as an element of a page."""

import io
import re
import zlib
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from vitlab.core.files import atomic_file
from vitlab.core.words import escaped
from vitlab.inspection.figures import INK, STYLE

SUFFIXES = (".png", ".svg")


@dataclass(frozen=True)
class Drawing:
    """A figure that was drawn; the SVG has nothing behind it."""

    png: bytes
    svg: str


@mpl.rc_context(STYLE)
def draw(figure: Figure) -> Drawing:
    """Both kinds, from one layout: laid out again, a figure would move by some pixels."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    png = io.BytesIO()
    figure.savefig(png, format="png", dpi=200, bbox_inches="tight", pad_inches=0.06, metadata={"Software": None})
    return Drawing(png.getvalue(), draw_svg(figure))


@mpl.rc_context(STYLE)
def draw_svg(figure: Figure) -> str:
    """As SVG alone, with nothing behind it."""
    svg = io.BytesIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))  # so that the same figure is the same file
    figure.savefig(svg, format="svg", transparent=True, bbox_inches="tight", pad_inches=0.06, metadata=nothing)
    return svg.getvalue().decode()


def save_drawing(drawing: Drawing, path: Path) -> list[Path]:
    """`path` with .png and with .svg, both on white, each there whole or not at all."""
    files = [path.with_name(path.name + suffix) for suffix in SUFFIXES]
    white = re.sub(r"<svg [^>]*>", r'\g<0>\n <rect width="100%" height="100%" fill="#ffffff"/>', drawing.svg, count=1)
    for file, content in zip(files, (drawing.png, white.encode()), strict=True):
        with atomic_file(file) as partial:
            partial.write_bytes(content)
    return files


def inline_svg(svg: str, label: str) -> str:
    """An <svg> element: words and axes in the colour of the page's text, as wide as there is room."""
    text = svg[svg.index("<svg") :].strip()
    text = re.sub(r' (xmlns(:\w+)?|version)="[^"]*"', "", text).replace("xlink:href", "href")
    text = (
        re.sub(r'<g id="[^"]*"', "<g", text)
        .replace(INK, "currentColor")
        .replace("'DejaVu Sans'", "system-ui, sans-serif")
    )
    text = re.sub(r"<style[^>]*>.*?</style>", "", text)  # it would be the whole page's; `style` has it for this element
    text = re.sub(r'(<image [^>]*?) id="image[^"]*"', r"\1", text)  # named by its content: two alike have one name
    own = f"f{zlib.crc32((svg + label).encode(errors='backslashreplace')):08x}-"  # figures of one page repeat ids
    text = re.sub(r'( id="|href="#|url\(#)', rf"\g<1>{own}", text)
    size = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', text)
    assert size is not None
    width = float(size[1]) * 4 / 3  # points to pixels
    style = f"max-width:{width:.0f}px;min-width:{0.7 * width:.0f}px"  # smaller, its words could not be read
    style += ";stroke-linejoin:round;stroke-linecap:butt"
    opening = f'<svg role="img" aria-label="{escaped(label)}" style="{style}" {size[0]}>'
    return opening + text[text.index(">") + 1 :]

"""An HTML page that refers to nothing outside it: the frame, the style and the figures that pages share."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from vitlab.core.words import escaped


@dataclass(frozen=True)
class Panel:
    """A figure as an <svg> element, and what it shows in a sentence or two."""

    svg: str
    caption: str


STYLE = """
:root { color-scheme: light dark; --paper: #fdfdfc; --ink: #23272e; --faint: #676d76; --line: #d9dce0; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #16181c; --ink: #e4e6ea; --faint: #9aa1ab; --line: #343a42; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem 1rem 4rem; max-width: 54rem; background: var(--paper); color: var(--ink);
  font: 1rem/1.55 system-ui, sans-serif; overflow-wrap: break-word; }
h1 { font-size: 1.5rem; line-height: 1.25; margin: 0 0 .5rem; }
h2 { font-size: 1.2rem; margin: 2.5rem 0 .5rem; padding-top: 1rem; border-top: 1px solid var(--line); }
h3 { font-size: 1rem; margin: 1.8rem 0 .3rem; }
p { margin: .4rem 0; max-width: 42rem; }
.faint, figcaption { color: var(--faint); }
figure { margin: 1rem 0; }
figcaption { font-size: .9rem; margin-top: .4rem; max-width: 42rem; }
.scrolled { overflow-x: auto; }
.wide { container-type: inline-size; }
.sideways { margin: 0; overflow: hidden; font-size: .85rem; color: var(--faint); }
@media print { .sideways { display: none; } }
svg { display: block; width: 100%; height: auto; }
@media print {
  :root { --paper: #fff; --ink: #000; --faint: #444; --line: #ccc; }
  figure { break-inside: avoid; } h2, h3 { break-after: avoid; }
}
"""


def document(title: str, parts: Iterable[str], style: str = "") -> str:
    """A whole page from a title, which is escaped, and markup; `style` comes after the style that pages share."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escaped(title)}</title>\n<style>{STYLE}{style}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(parts)
        + "\n</main>\n</body>\n</html>\n"
    )


def panel_markup(panel: Panel) -> str:
    """A panel as a <figure>; on a screen that is narrower than it can be drawn, it moves sideways and says so."""
    least = re.search(r"min-width:(\d+)px", panel.svg)
    hint = ""
    if least is not None:  # as high as a line where there is less room than that, else of no height
        height = f"max-height:clamp(0px, ({least[1]}px - 100cqi) * 999, 1.6rem)"
        hint = f'<p class="sideways" style="{height}" aria-hidden="true">Scroll sideways for the rest ⟷</p>\n'
    scrolled = f'<div class="scrolled" tabindex="0">\n{panel.svg}\n</div>'
    caption = f"<figcaption>{escaped(panel.caption)}</figcaption>"
    return f'<figure class="wide">\n{hint}{scrolled}\n{caption}\n</figure>'

"""Words on a dark band below a picture, in a font that has their letters."""

import logging
import math
import os
from collections.abc import Iterable
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

SMALLEST = 11  # px of letters that can be read
MARGIN = 4  # px around the words
DARK, LIGHT = (24, 24, 24), (255, 255, 255)

log = logging.getLogger("vitlab")


def font_with(words: Iterable[str]) -> str:
    """The file of a font with the letters of all words: matplotlib's, or the one of this machine that lacks fewest."""
    from matplotlib import get_data_path
    from matplotlib.font_manager import findSystemFonts
    from matplotlib.ft2font import FT2Font

    letters = {ord(letter) for text in words for letter in text if letter.isprintable() and not letter.isspace()}

    def lacked(file: str) -> int:
        try:
            return len(letters - FT2Font(file).get_charmap().keys())
        except (OSError, RuntimeError):  # of bitmaps, as fonts of coloured emoji are
            return len(letters) + 1

    best = str(Path(get_data_path(), "fonts", "ttf", "DejaVuSans.ttf"))
    if lacked(best):
        found = [file for file in findSystemFonts() if "LastResort" not in file]  # which has a box for every letter
        best = min([best, *sorted(found, key=lambda file: ("regular" not in file.lower(), file))], key=lacked)
    if missing := letters - FT2Font(best).get_charmap().keys():
        some = " ".join(map(chr, sorted(missing)[:10]))
        log.warning("No one font on this machine has all letters of the class names: boxes stand for %s.", some)
    return best


def with_words(picture: Image.Image, words: str, font: str | os.PathLike[str]) -> Image.Image:
    """A picture with its words below it, in as many lines as it takes; a small picture gets a margin beside it."""
    drawn = ImageFont.truetype(font, max(picture.width // 24, SMALLEST))
    lines = [""]
    for part in words.split(", "):
        longer = f"{lines[-1]}, {part}" if lines[-1] else part
        if lines[-1] and drawn.getlength(longer) > picture.width - 2 * MARGIN:
            lines[-1] += ","
            lines.append(part)
        else:
            lines[-1] = longer
    width = max(picture.width, math.ceil(max(map(drawn.getlength, lines))) + 2 * MARGIN)
    ascent, descent = drawn.getmetrics()
    height = ascent + descent
    canvas = Image.new("RGB", (width, picture.height + height * len(lines) + 2 * MARGIN), DARK)
    canvas.paste(picture)
    for place, line in enumerate(lines):
        top = picture.height + MARGIN + place * height
        ImageDraw.Draw(canvas).text((MARGIN, top), line, fill=LIGHT, font=drawn)
    return canvas

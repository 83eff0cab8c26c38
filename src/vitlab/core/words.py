"""Numbers and names in words that need no explanation."""

import html
import shlex
from collections.abc import Sequence

UNITS = ((1e18, "exa"), (1e15, "peta"), (1e12, "tera"), (1e9, "giga"), (1e6, "mega"))
HARMLESS = "\n\u00a0\u202f\u200d"  # line breaks of ours, spaces that do not break, what joins an emoji's parts
LONGEST_NAME = 60  # characters of a class's or file's name that are shown


def percent(share: float) -> str:
    """'86.8%'; two ends that are not quite reached are not rounded to."""
    text = f"{100 * share:.1f}%"
    if text == "100.0%":
        return "100%" if share == 1 else "over 99.9%"
    if text == "0.0%":
        return "0%" if share == 0 else "under 0.1%"
    return text


def number(value: float) -> str:
    """To three figures, without an exponent where that can be read."""
    if value == 0 or 1e-3 <= abs(value) < 1e6:
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
    return f"{value:.1e}".replace("e-0", "e-").replace("e+0", "e")


def count(amount: int, one: str, several: str | None = None) -> str:
    """'1 picture', '1,259 pictures'."""
    return f"{amount:,} {one if amount == 1 else several or one + 's'}"


def duration(seconds: float) -> str:
    """'22 s', '3 min 12 s', '5 h 7 min', '2 days 4 h'."""
    if seconds < 1:
        return "under 1 s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, minutes = divmod(round(seconds / 60), 60)
    if hours < 48:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    days, hours = divmod(round(seconds / 3600), 24)
    return f"{days} days {hours} h" if hours else f"{days} days"


def clock(seconds: float) -> str:
    """'3:07', '1:20:00'."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"


def about(seconds: float) -> str:
    """A duration that is not known well: 'a few seconds', '40 s', '4 minutes', '3 hours', '2 days'."""
    if seconds < 10:
        return "a few seconds"
    if seconds < 90:
        return f"{round(seconds, -1):.0f} s"
    if seconds < 90 * 60:
        return f"{round(seconds / 60)} minutes"
    if seconds < 48 * 3600:
        return f"{round(seconds / 3600)} hours"
    return f"{round(seconds / 86400)} days"


def flops(amount: float) -> str:
    """'158 gigaFLOPs'."""
    for size, name in UNITS:
        if amount >= size:
            return f"{number(amount / size)} {name}FLOPs"
    return f"{amount:,.0f} FLOPs"


def millions(amount: float) -> str:
    """'86.6 million', '137 thousand'."""
    for size, name in ((1e9, "billion"), (1e6, "million"), (1e3, "thousand")):
        if amount >= size:
            return f"{number(amount / size)} {name}"
    return f"{amount:.0f}"


def short(name: str, most: int = LONGEST_NAME) -> str:
    """A name on one line, its middle left out where it is long."""
    plain = " ".join(name.split()) or "(no name)"
    if len(plain) <= most:
        return plain
    tail = most // 2
    return f"{plain[: most - tail - 1]}…{plain[-tail:]}"


def printable(text: str) -> str:
    """The text with control characters escaped, so that a file's or class's name cannot command a terminal."""
    return "".join(c if c.isprintable() or c in HARMLESS else repr(c)[1:-1] for c in text)


def one_line(text: str) -> str:
    """The same with line breaks escaped too, so that a name cannot look like a line of ours."""
    return printable(text).replace("\n", "\\n")


def escaped(text: str) -> str:
    """The text for markup: its control characters escaped, and what markup would take for its own."""
    return html.escape(printable(text))


def listed(names: Sequence[str], most: int = 6) -> str:
    """'cat, dog and horse'; 'cat, dog, horse and 97 more'."""
    shown = [short(name, 30) for name in names]
    if len(shown) > most:
        return f"{', '.join(shown[: most - 1])} and {len(shown) - most + 1:,} more"
    if len(shown) < 2:
        return "".join(shown)
    return f"{', '.join(shown[:-1])} and {shown[-1]}"


def command(*words: str) -> str:
    """A command line that a shell reads as these words."""
    return shlex.join(words)

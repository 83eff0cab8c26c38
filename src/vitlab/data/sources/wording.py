"""Words for messages: a few of many names, and an order of names that people expect."""

import re
from collections.abc import Sequence

DIGITS = re.compile(r"([0-9]+)")


def few(names: Sequence[str], most: int = 3) -> str:
    """The first names, and how many more there are."""
    shown = ", ".join(str(name) for name in names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most:,} more"


def natural(name: str) -> tuple[tuple[tuple[int, int, str], ...], str]:
    """A key that sorts names with their numbers as numbers: 2, 10, a2, a10; text as Python sorts it."""
    parts = DIGITS.split(name)
    key = tuple(
        (0, len(part.lstrip("0")), part.lstrip("0")) if i % 2 else (1, 0, part) for i, part in enumerate(parts) if part
    )
    return key, name

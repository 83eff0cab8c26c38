"""Errors that a user can cause: one sentence each, saying what was wrong, where, and what to do."""

import difflib
import os
from collections.abc import Iterable
from pathlib import Path

from vitlab.core.words import one_line

LONGEST = 2000  # characters of a sentence that are shown: its beginning, and its end, which says what to do


class Error(Exception):
    """Something a user did; the command line prints the sentence and exits with 2."""

    def __str__(self) -> str:
        """The sentence, in which nothing that a file says can command a terminal, begin a line or fill a page."""
        text = one_line(super().__str__())
        return text if len(text) <= LONGEST else f"{text[: LONGEST // 2 - 3]} … {text[-LONGEST // 2 :]}"


class UnknownNameError(Error):
    """A name that no table holds."""


class ConfigError(Error):
    """A configuration whose fields are unknown, of the wrong type, or contradict each other."""


class ImageError(Error):
    """A picture that cannot be read, or that a model cannot take."""


class DataError(Error):
    """A data set that is missing, empty, damaged, or not what it says."""


class CheckpointError(Error):
    """A checkpoint that is missing, damaged, dangerous, or not what it says."""


class CannotHoldError(Error):
    """A checkpoint format that has no place for what a model has."""


class MissingDependencyError(Error):
    """An optional package that a request needs and that is not installed."""


def near_matches(name: str, known: Iterable[str]) -> str:
    """' Did you mean a, b?' for names close to `name`, or an empty string."""
    candidates = {str(item).lower(): str(item) for item in known}
    close = difflib.get_close_matches(name.lower(), candidates, n=3, cutoff=0.6)
    return f" Did you mean {', '.join(candidates[item] for item in close)}?" if close else ""


def near_paths(path: str) -> str:
    """' Did you mean photos/cats?' for the nearest path that exists, part by part, or an empty string."""
    found, parts = Path(Path(path).anchor), Path(path).parts
    for part in parts[1:] if found.parts else parts:
        if not os.path.lexists(found / part):
            try:
                close = difflib.get_close_matches(part, os.listdir(found), n=1, cutoff=0.6)  # noqa: PTH208
            except (OSError, ValueError):
                close = []
            if not close:
                return ""
            part = close[0]
        found /= part
    return f" Did you mean {found}?" if str(found) != str(Path(path)) else ""


def unknown_name(kind: str, name: str, known: Iterable[str], hint: str = "") -> UnknownNameError:
    """The error for a name that is not in a table, with near matches or else a hint where to look."""
    return UnknownNameError(f"There is no {kind} named '{name}'.{near_matches(name, known) or hint}")

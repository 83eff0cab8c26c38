"""Errors that a user can cause: one sentence each, saying what was wrong, where, and what to do."""

import difflib
from collections.abc import Iterable

from vitlab.core.words import one_line

LONGEST = 2000  # characters of a sentence that are shown: its beginning, and its end, which says what to do


class Error(Exception):
    """Something a user did; the command line prints the sentence and exits with `status`."""

    status = 2

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
    return did_you_mean(near_names(name, known))


def near_names(name: str, known: Iterable[str]) -> list[str]:
    """Up to three names close to `name`, the closest first."""
    candidates = {str(item).lower(): str(item) for item in known}
    return [candidates[item] for item in difflib.get_close_matches(name.lower(), candidates, n=3, cutoff=0.6)]


def did_you_mean(names: Iterable[str]) -> str:
    """' Did you mean a, b?', or an empty string where there are none."""
    said = ", ".join(names)
    return f" Did you mean {said}?" if said else ""


def unknown_name(kind: str, name: str, known: Iterable[str], hint: str = "") -> UnknownNameError:
    """The error for a name that is not in a table, with near matches or else a hint where to look."""
    return UnknownNameError(f"There is no {kind} named '{name}'.{near_matches(name, known) or hint}")

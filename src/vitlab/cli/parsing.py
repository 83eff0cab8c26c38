"""A verb's arguments, and what is wrong with them in one sentence."""

import contextlib
import io
import re
from collections.abc import Sequence
from typing import Any, TypeVar

import tyro

from vitlab.core.errors import Error

T = TypeVar("T")

FLAGS = (tyro.conf.FlagCreatePairsOff,)
LINE = re.compile(r"^(?:│ |  )(.*?)(?: │)?$", re.MULTILINE)  # inside a box, which is indented where it is not drawn
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
EXPLANATION = 8  # columns by which tyro indents what an option is for, where it lists options


def parse(
    kind: type[T], arguments: Sequence[str], *, prog: str, description: str | None, config: tuple[Any, ...] = FLAGS
) -> T:
    """The arguments as `kind` describes them; its help is printed where they ask for it."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return tyro.cli(kind, prog=prog, description=description, args=arguments, config=config)
    except SystemExit as ended:
        if not ended.code:
            raise
    raise Error(f"{_sentence(said.getvalue())} See {prog} --help.")


def _sentence(box: str) -> str:
    """The first part of a box that tyro draws, and the nearest of the options that it proposes."""
    parts = [""]
    for text in LINE.findall(COLOURS.sub("", box)):
        if not text.strip(" ─-"):
            parts.append("")
        elif not text.startswith(" " * EXPLANATION):
            parts[-1] += f"{text.strip()} "
    meant = next((part.split()[3] for part in parts if part.startswith("Perhaps you meant:")), "")
    hint = f" Did you mean {meant}?" if meant else ""
    return f"{parts[0].strip(' .:')}.{hint}"

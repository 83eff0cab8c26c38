"""The files of docs/extending.md, written where they can be imported from, once per process."""

import atexit
import functools
import io
import re
import shutil
import tempfile
import tokenize
from pathlib import Path

from vitlab.core.registry import permit

PAGE = Path(__file__).parents[1] / "docs" / "extending.md"
NAMES = {
    "model": "convmixer.py:CONVMIXER",
    "objective": "mae.py:MAE",
    "task": "regression.py:REGRESSION",
    "source": "dots.py:DOTS",
    "protocol": "nearest.py:NEAREST",
    "recipe": "where.py:where",
}


def files() -> dict[str, str]:
    """Each fenced file of the page by its name, which its first line says."""
    return dict(re.findall(r"^```python\n# (\w+\.py)\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL))


@functools.cache
def folder() -> Path:
    """A folder with the files; modules are imported by their names, so that there can be one such folder only."""
    made = Path(tempfile.mkdtemp(prefix="extending-"))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    for name, text in files().items():
        (made / name).write_text(text)
    return made


def named(what: str) -> str:
    """The name by which one of the files' things is given, which is permitted."""
    name = f"{folder()}/{NAMES[what]}"
    permit(name)
    return name


def lines_of_code(text: str) -> int:
    """Lines that hold code: neither blank, nor of comments, nor of docstrings."""
    lines, at_start = set[int](), True
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        layout = token.type in (tokenize.NEWLINE, tokenize.NL, tokenize.COMMENT, tokenize.INDENT, tokenize.DEDENT)
        if not layout and not (at_start and token.type == tokenize.STRING) and token.type != tokenize.ENDMARKER:
            lines |= set(range(token.start[0], token.end[0] + 1))
        at_start = token.type == tokenize.NEWLINE or (at_start and layout)
    return len(lines)

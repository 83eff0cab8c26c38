"""`vitlab push`: a model, with its card, to the Hugging Face hub."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from vitlab.cli.parsing import parse
from vitlab.cli.terminal import print_json
from vitlab.core.words import one_line

DESCRIPTION = """Upload a run's model, or a folder of the native format, to the Hugging Face hub.

The folder has a card, README.md: what the model is, how to use it, its scores, its preprocessing and its recipe, with
paths shortened. If you edit the card, it is uploaded as it is. Run `hf auth login` first, or set HF_TOKEN.

Examples:
  vitlab push runs/mine hf-hub:owner/name
  vitlab push runs/mine hf-hub:owner/name --private --license apache-2.0
  vitlab predict photo.jpg --model hf-hub:owner/name
"""


@dataclass(frozen=True)
class Arguments:
    source: Annotated[Positional[Path], arg(metavar="RUN")]
    """A run's folder, or a native one."""
    repository: Annotated[Positional[str], arg(metavar="hf-hub:OWNER/NAME")]
    """The repository; it is created if there is none."""
    private: bool = False
    """Make the repository private; an existing public one is refused."""
    message: str | None = None
    """The commit's message."""
    license: str | None = None
    """The model's licence, by its name on the hub (apache-2.0, mit, ...); by default unknown."""
    json: bool = False
    """Print what was done as one JSON document."""


def main(arguments: Sequence[str]) -> int:
    given = parse(Arguments, arguments, prog="vitlab push", description=DESCRIPTION)
    from vitlab import api

    pushed = api.push(
        given.source, given.repository, private=given.private, message=given.message, license=given.license
    )
    if given.json:
        print_json(
            {"repository": pushed.repository, "url": pushed.url, "commit": pushed.commit, "files": list(pushed.files)}
        )
        return 0
    print(one_line(f"Uploaded {', '.join(pushed.files)} to {pushed.url}."))
    print(one_line(f"vitlab.load('hf-hub:{pushed.repository}') loads it."))
    return 0

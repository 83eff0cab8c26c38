"""`vitlab report`: the page that tells what became of a run."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from vitlab.cli.parsing import parse
from vitlab.cli.terminal import print_json, progress_bar, say
from vitlab.core.words import one_line

DESCRIPTION = """Write a run's report.html: one page with what was trained on what, how well, where it fails and why.

Every run ends with one. This makes it again, also of a run that is running or was stopped: it says so, and shows what
there is. The numbers are measured anew on held-out images.

Examples:
  vitlab report runs/digits
  vitlab report runs/pets --images 5000
"""


@dataclass(frozen=True)
class Arguments:
    run: Annotated[Positional[Path], arg(metavar="RUN")]
    """The run's folder."""
    images: int | None = None
    """How many held-out images to look at, at most; by default as many as take some seconds, and at least 64."""
    task: str | None = None
    """What the model is for, by default what it was trained for; one in a file (mine.py:NAME) is to be given again."""
    data: str | None = None
    """Where the data is, by default where the run found it; a source in a file is to be given again."""
    device: str | None = None
    """cpu, cuda, ...; by default a GPU where there is one."""
    json: bool = False
    """Print where the report is, and from how many images, as one JSON document."""


def main(arguments: Sequence[str]) -> int:
    given = parse(Arguments, arguments, prog="vitlab report", description=DESCRIPTION)
    from vitlab.core.errors import Error

    if given.images is not None and given.images < 1:
        raise Error(f"--images must be at least 1, not {given.images}.")

    from vitlab import api

    with progress_bar("Images", given.images or 100) as progress:
        made = api.report(
            given.run, task=given.task, data=given.data, images=given.images, device=given.device, progress=progress
        )
    for sentence in made.missing:
        say(f"vitlab: {sentence}")
    if given.json:
        print_json({"report": str(made.path), "state": made.state, "images": made.images})
    else:
        print(one_line(f"Read {made.path}"))
    return 0

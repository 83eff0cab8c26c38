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

Every run ends with one. This writes it again, also for a run that is still running or was stopped; the page says so and
shows what there is so far. The numbers are measured again on held-out images.

Examples:
  vitlab report runs/digits
  vitlab report runs/pets --images 5000
"""


@dataclass(frozen=True)
class Arguments:
    run: Annotated[Positional[Path], arg(metavar="RUN")]
    """The run's folder."""
    images: int | None = None
    """The most held-out images to measure; by default as many as take some seconds, and at least 64."""
    task: str | None = None
    """The model's task, by default the one it was trained for; name a task in a file (mine.py:NAME) again."""
    data: str | None = None
    """Where the data is, by default where the run found it; name a source in a file again."""
    device: str | None = None
    """cpu, cuda, ...; by default a GPU if there is one."""
    json: bool = False
    """Print the path of the report and its number of images as one JSON document."""


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
        print(one_line(f"Written to {made.path}."))
    return 0

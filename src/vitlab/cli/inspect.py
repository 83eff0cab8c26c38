"""`vitlab inspect`: what a model learned and where it looks, as figures."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from vitlab.cli.parsing import parse
from vitlab.cli.terminal import print_json, print_table, progress_bar, say
from vitlab.core.words import one_line
from vitlab.weights.box import DEFAULT

DESCRIPTION = """Look inside a model: its filters and positions, how far its heads look, where it looks in images, and
how similar their patches are to it.

The folder --out, by default a new one, gets figures as PNG and SVG, the numbers as inspect.json, and inspect.html,
which shows and explains them all in one file. Averages are over the images, or over a data set with --data. Exit
status 1: some images could not be read.

Examples:
  vitlab inspect cat.jpg
  vitlab inspect cat.jpg --model B_16.npz
  vitlab inspect photos/ --model runs/pets/model --data pets --out inside
  vitlab inspect cat.jpg --model vit-b16-224.augreg-in21k --layers 1 6 12 --compare runs/pets --out inside
"""


@dataclass(frozen=True)
class Arguments:
    images: Annotated[Positional[tuple[Path, ...]], arg(metavar="IMAGES...")]
    """Image files, or folders to search for them; none are needed with --data."""
    model: Annotated[str, arg(metavar="SOURCE")] = DEFAULT
    """Where the weights come from: a run, a folder, a file, a checkpoint's name, hf-hub:owner/name, timm:name."""
    out: Annotated[Path | None, arg(metavar="DIR")] = None
    """The folder for the figures and the page; by default inspect, or inspect-2, ... if that exists."""
    data: Annotated[str | None, arg(metavar="D")] = None
    """A data set (a folder, a CSV, a name) to average over; its test split if it has one."""
    limit: int = 128
    """The most images to average over, evenly spread."""
    layers: tuple[int, ...] = ()
    """The layers whose heads to show and measure, from 1; by default all."""
    compare: Annotated[str | None, arg(metavar="SOURCE")] = None
    """Another checkpoint whose layers to compare with the model's."""
    show: int = 8
    """How many of the images to draw attention for."""
    batch_size: int = 8
    """How many images go through the model at once."""
    device: str | None = None
    """cpu, cuda, ...; by default a GPU if there is one."""
    json: bool = False
    """Print the numbers as one JSON document."""


def main(arguments: Sequence[str]) -> int:
    given = parse(Arguments, arguments, prog="vitlab inspect", description=DESCRIPTION)

    from vitlab.core.errors import Error

    for name, value, least in (
        ("--limit", given.limit, 1),
        ("--show", given.show, 0),
        ("--batch-size", given.batch_size, 1),
    ):
        if value < least:
            raise Error(f"{name} must be at least {least}, not {value}.")
    if not given.images and given.data is None:
        raise Error("Give at least one image or folder, or a data set (--data).")
    if given.out is not None and given.out.exists() and not given.out.is_dir():
        raise Error(f"{given.out} is a file; give the name of a folder to write (--out).")

    from vitlab import api
    from vitlab.core.files import free_path
    from vitlab.data.decoding import find_images
    from vitlab.inspection.write import numbers

    images, out = find_images(given.images), given.out or free_path(Path("inspect"))
    with progress_bar("Images", given.limit) as progress:
        seen = api.inspect(
            given.model,
            images,
            out=out,
            data=given.data,
            compare=given.compare,
            layers=given.layers or None,
            limit=given.limit,
            show=given.show,
            batch_size=given.batch_size,
            device=given.device,
            progress=progress,
        )
    for sentence in seen.unread:
        say(f"vitlab: skipped: {sentence}")
    for sentence in seen.findings.missing:
        say(f"vitlab: {sentence}")
    if given.json:
        print_json(numbers(seen.findings))
        if given.out is None:
            say(f"Written to {out}.")
    else:
        views = seen.findings.views
        rows = [[view.name, f"{share:.1%}", label] for view in views for label, share in view.classes[:1]]
        if rows:
            print_table(["image", ">probability", "class"], rows)
            print()
        figures = sum(file.suffix == ".png" for file in seen.files)
        print(one_line(f"{figures} figures as PNG and SVG, and inspect.json, are in {out}."))
        print(one_line(f"The page with all of them: {seen.files[-1]}"))
    return 1 if seen.unread else 0

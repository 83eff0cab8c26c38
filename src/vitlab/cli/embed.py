"""`vitlab embed`: the features of images, with their names, in a file."""

import os
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from vitlab.cli.parsing import parse
from vitlab.cli.terminal import print_json, progress_bar, say
from vitlab.core.words import count
from vitlab.weights.box import DEFAULT

DESCRIPTION = """Write the features of images to .npz or .parquet: `names` and `features`, one row per image.

Exit status 1: some images could not be read; they are left out and named.

Examples:
  vitlab embed photos/ photos.npz
  vitlab embed photos/ --model B_16.npz photos.npz
  vitlab embed photos/ 'one more.png' --model runs/pets --image-size 384 photos.parquet
"""


@dataclass(frozen=True)
class Arguments:
    paths: Annotated[Positional[tuple[Path, ...]], arg(metavar="IMAGES... OUT", help_behavior_hint="(required)")]
    """Image files or folders to search for them, and last the file to write, .npz or .parquet."""
    model: Annotated[str, arg(metavar="SOURCE")] = DEFAULT
    """Where the weights come from: a run, a folder, a file, a checkpoint's name, hf-hub:owner/name, timm:name."""
    image_size: int | None = None
    """The side in pixels; positions are adapted to it."""
    crops: Literal[1, 5] = 1
    """5: the centre and the corners of a larger picture, averaged."""
    flip: bool = False
    """Average with the mirror image."""
    batch_size: int = 32
    """How many images go through the model at once."""
    workers: int | None = None
    """Processes that decode; by default one per core, none for few images."""
    device: str | None = None
    """cpu, cuda, ...; by default a GPU if there is one."""
    precision: Literal["float32", "bf16"] = "float32"
    """The precision of the computation."""
    json: bool = False
    """Print what was written as one JSON document."""


def main(arguments: Sequence[str]) -> int:
    given = parse(Arguments, _options_first(arguments), prog="vitlab embed", description=DESCRIPTION)
    from vitlab.core.errors import Error

    if len(given.paths) < 2:
        raise Error("Give images or folders, and last the file to write: vitlab embed IMAGES... OUT.")
    *images, out = given.paths
    from vitlab.core.files import check_writable
    from vitlab.data.decoding import find_images
    from vitlab.inference.embed import check_ending, write_embedding

    check_ending(out)
    files = find_images(images)
    check_writable(out)
    from vitlab import api

    with progress_bar("Images", len(files), at_least=given.batch_size + 1) as progress:
        embedding = api.embed(
            given.model,
            files,
            image_size=given.image_size,
            crops=given.crops,
            flip=given.flip,
            batch_size=given.batch_size,
            workers=given.workers,
            device=given.device,
            precision=given.precision,
            progress=progress,
        )
    if int(os.environ.get("RANK", "0")):
        return 0  # of several processes one writes for all
    write_embedding(embedding, out)
    num, width = embedding.features.shape
    if given.json:
        print_json({"out": str(out), "images": num, "width": width, "unread": list(embedding.unread)})
    else:
        say(f"{count(num, 'image')}, {width} features each, written to {out}.")
    return 1 if embedding.unread else 0


def _options_first(arguments: Sequence[str]) -> list[str]:
    """The options before the paths: the parser takes paths in one row only, and OUT may come after --model."""
    flags = {f"--{field.name.replace('_', '-')}" for field in fields(Arguments) if field.type is bool} | {
        "-h",
        "--help",
    }
    options: list[str] = []
    paths: list[str] = []
    rest = deque(arguments)
    while rest:
        item = rest.popleft()
        if item == "--":
            paths += rest
            break
        if not item.startswith("-") or item == "-":
            paths.append(item)
            continue
        options.append(item)
        if item not in flags and "=" not in item and rest:
            options.append(rest.popleft())
    return [*options, *paths]

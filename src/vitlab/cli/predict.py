"""`vitlab predict`: the top classes of images."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import Positional, arg

from vitlab.cli.parsing import parse
from vitlab.cli.terminal import print_json, print_table, progress_bar, say

if TYPE_CHECKING:
    from vitlab.api import Prediction

DESCRIPTION = """The most probable classes of images. Exit status 1: some could not be read; 2: none could.

Examples:
  vitlab predict cat.jpg --model B_16.npz
  vitlab predict photos/ 'one more.png' --model runs/pets/model --top 1 --json
"""


@dataclass(frozen=True)
class Arguments:
    images: Annotated[Positional[tuple[Path, ...]], arg(metavar="IMAGES...", help_behavior_hint="(required)")]
    """Image files, and folders that are searched for them."""
    model: Annotated[str, arg(metavar="SOURCE")]
    """A checkpoint: a file or folder of any format that vitlab reads, hf-hub:owner/name or timm:name."""
    top: int = 5
    """How many classes to give for each image."""
    batch_size: int = 32
    """How many images go through the model at once."""
    json: bool = False
    """Print one JSON document instead of a table."""


def main(arguments: Sequence[str]) -> int:
    given = parse(Arguments, arguments, prog="vitlab predict", description=DESCRIPTION)

    from vitlab.core.errors import Error

    if not given.images:
        raise Error("Give at least one image or folder.")
    for name, value in (("--top", given.top), ("--batch-size", given.batch_size)):
        if value < 1:
            raise Error(f"{name} must be at least 1, not {value}.")

    from vitlab.data.decoding import find_images

    images = find_images(given.images)
    from vitlab import api

    model = api.load(given.model)
    with progress_bar("Images", len(images), at_least=given.batch_size + 1) as progress:
        answers = api.predict(model, images, given.top, batch_size=given.batch_size, progress=progress)

    unread = [answer for answer in answers if answer.error is not None]
    for answer in unread:
        say(f"vitlab: skipped: {answer.error}")
    if given.json:
        print_json([_plain(answer) for answer in answers])
    elif len(unread) < len(answers):
        print_table(["image", ">probability", "class"], _rows(answers))
    return 0 if not unread else 1 if len(unread) < len(answers) else 2


def _plain(answer: "Prediction") -> dict[str, Any]:
    if answer.error is not None:
        return {"image": answer.source, "error": answer.error}
    classes = [{"label": c.label, "index": c.index, "probability": c.probability} for c in answer.classes]
    return {"image": answer.source, "classes": classes}


def _rows(answers: Sequence["Prediction"]) -> list[list[str]]:
    """A line a class; the image's name on its first one."""
    return [
        ["" if place else answer.source or "", f"{scored.probability:.1%}", scored.label]
        for answer in answers
        for place, scored in enumerate(answer.classes)
    ]

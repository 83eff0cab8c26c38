"""`vitlab predict`: what a model says of images."""

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import Positional, arg

from vitlab.cli.parsing import parse
from vitlab.cli.terminal import print_json, print_table, progress_bar, say
from vitlab.core.words import one_line

if TYPE_CHECKING:
    from vitlab.api import Prediction
    from vitlab.core.preprocess import Preprocess

DESCRIPTION = """What a model says of images: the most probable classes, or as its task has it masks or numbers.

A model for segmentation says how much of each picture each class takes, and with --out writes the masks.
Exit status 1: some could not be read; 2: none could.

Examples:
  vitlab predict cat.jpg --model B_16.npz
  vitlab predict photos/ 'one more.png' --model runs/pets/model --top 1 --json
  vitlab predict street/ --model runs/camvid --out masks/
  vitlab predict field.jpg --model runs/areas --task mine.py:AREA
"""


@dataclass(frozen=True)
class Arguments:
    images: Annotated[Positional[tuple[Path, ...]], arg(metavar="IMAGES...", help_behavior_hint="(required)")]
    """Image files, and folders that are searched for them."""
    model: Annotated[str, arg(metavar="SOURCE")]
    """A checkpoint: a file or folder of any format that vitlab reads, hf-hub:owner/name or timm:name."""
    top: int = 5
    """How many classes to give for each image."""
    task: str | None = None
    """What the model is for, by default what it was trained for; one in a file (mine.py:NAME) is to be given again."""
    out: Path | None = None
    """Where to write the masks of a segmentation, as NAME.png of the picture's size with a colour per class."""
    batch_size: int = 32
    """How many images go through the model at once."""
    device: str | None = None
    """cpu, cuda, ...; by default a GPU where there is one."""
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
    from vitlab.core.devices import choose_device

    device = choose_device(given.device)
    model = api.load(given.model)
    with progress_bar("Images", len(images), at_least=given.batch_size + 1) as progress:
        answers = api.predict(
            model,
            images,
            given.top,
            task=given.task,
            batch_size=given.batch_size,
            device=device,
            progress=progress,
        )

    unread = [answer for answer in answers if answer.error is not None]
    for answer in unread:
        say(one_line(f"vitlab: skipped: {answer.error}"))
    if given.out is not None:
        _write_masks(answers, model.preprocess, given.out)
    if given.json:
        print_json([_plain(answer) for answer in answers])
    elif len(unread) < len(answers):
        print_table(*_table(answers))
    return 0 if not unread else 1 if len(unread) < len(answers) else 2


def _plain(prediction: "Prediction") -> dict[str, Any]:
    if prediction.answer is None:
        return {"image": prediction.source, "error": prediction.error}
    return {"image": prediction.source, **prediction.answer.plain()}


def _table(predictions: Sequence["Prediction"]) -> tuple[list[str], list[list[str]]]:
    """A line per class, number or part of a mask; the image's name on its first one."""
    answered = [(prediction, prediction.answer) for prediction in predictions if prediction.answer is not None]
    rows = [
        ["" if place else prediction.source or "", *cells]
        for prediction, answer in answered
        for place, cells in enumerate(answer.rows())
    ]
    return ["image", f">{answered[0][1].measure}", answered[0][1].what], rows


def _write_masks(predictions: Sequence["Prediction"], preprocess: "Preprocess", folder: Path) -> None:
    from vitlab.core.errors import Error
    from vitlab.core.files import atomic_file
    from vitlab.core.pictures import palette_image
    from vitlab.inference.masks import over_picture

    masks = {Path(p.source): (p.answer.mask, p.size) for p in predictions if p.source and p.answer and p.size}
    if any(mask is None for mask, _ in masks.values()):
        raise Error("--out is for masks, and this model gives none: leave it out.")
    for path, name in zip(masks, mask_names(list(masks)), strict=True):
        mask, size = masks[path]
        assert mask is not None
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(folder / name) as part:
            palette_image(over_picture(mask, preprocess, size)).save(part, format="PNG")


def mask_names(sources: Sequence[Path]) -> list[Path]:
    """NAME.png below the folder that the images share; NAME.jpg.png where two of them would be one file."""
    whole = [path.absolute() for path in sources]
    shared = os.path.commonpath([path.parent for path in whole]) if whole else ""
    inside = [path.relative_to(shared) for path in whole]
    plain = Counter(path.with_suffix("") for path in inside)
    return [
        path.with_suffix(".png") if plain[path.with_suffix("")] == 1 else path.with_name(f"{path.name}.png")
        for path in inside
    ]

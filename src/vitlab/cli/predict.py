"""`vitlab predict`: what a model says of images."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import Positional, arg

from vitlab.cli.parsing import parse
from vitlab.cli.terminal import print_json, print_table, progress_bar, say
from vitlab.weights.box import DEFAULT

if TYPE_CHECKING:
    from vitlab.api import Prediction
    from vitlab.core.preprocess import Preprocess

DESCRIPTION = """Predict the most probable classes of images, or masks or numbers if the model's task is another.

With --csv it writes a table. With --out it sorts copies of the pictures into folders by class, or, with --draw too,
writes each with the prediction below it. A segmentation model prints each class's share of each picture, and writes the
masks with --out. Exit status 1: some images could not be read; 2: none could.

Examples:
  vitlab predict cat.jpg
  vitlab predict cat.jpg --model B_16.npz
  vitlab predict photos/ 'one more.png' --model runs/pets --top 1 --json
  vitlab predict photos/ --model runs/pets --csv pets.csv --out sorted/
  vitlab predict street/ --model runs/camvid --out masks/
  vitlab predict field.jpg --model runs/areas --task mine.py:AREA
"""


@dataclass(frozen=True)
class Arguments:
    images: Annotated[Positional[tuple[Path, ...]], arg(metavar="IMAGES...", help_behavior_hint="(required)")]
    """Image files, or folders to search for them."""
    model: Annotated[str, arg(metavar="SOURCE")] = DEFAULT
    """Where the weights come from: a run, a folder, a file, a checkpoint's name, hf-hub:owner/name, timm:name."""
    top: int = 5
    """How many classes to print per image."""
    task: str | None = None
    """The model's task, by default the one it was trained for; name a task in a file (mine.py:NAME) again."""
    csv: Path | None = None
    """Write a table with one line per picture to this file."""
    out: Path | None = None
    """A folder for copies of the pictures, sorted by class; for segmentation, for the masks, as NAME.png."""
    draw: bool = False
    """With --out: write each picture with the prediction below it, or its mask over it, instead."""
    batch_size: int = 32
    """How many images go through the model at once."""
    device: str | None = None
    """cpu, cuda, ...; by default a GPU if there is one."""
    json: bool = False
    """Print one JSON document instead of a table."""


def main(arguments: Sequence[str]) -> int:
    given = parse(Arguments, arguments, prog="vitlab predict", description=DESCRIPTION)

    from vitlab.core.errors import Error

    if not given.images:
        raise Error("Give at least one image or folder.")
    if given.draw and given.out is None:
        raise Error("--draw is for what is written: give a folder with --out.")
    for name, value in (("--top", given.top), ("--batch-size", given.batch_size)):
        if value < 1:
            raise Error(f"{name} must be at least 1, not {value}.")

    from vitlab.data.decoding import find_images

    images = find_images(given.images)
    from vitlab import api
    from vitlab.core.devices import choose_device
    from vitlab.core.files import check_writable
    from vitlab.inference.files import write_csv

    device = choose_device(given.device)
    model = api.load(given.model)
    for place in (given.csv, given.out and given.out / ".picture"):  # hidden, as the folder of no class is
        if place is not None:
            check_writable(place, images)
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
        say(f"vitlab: skipped: {answer.error}")
    try:
        if given.csv is not None:
            write_csv(given.csv, answers)
        if given.out is not None:
            _write_pictures(answers, model.preprocess, given.out, draw=given.draw)
        if places := [str(place) for place in (given.csv, given.out) if place is not None]:
            say(f"Written to {' and '.join(places)}.")
    finally:  # answers that took long are shown even where they could not be written
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


def _write_pictures(predictions: Sequence["Prediction"], preprocess: "Preprocess", folder: Path, *, draw: bool) -> None:
    from vitlab.inference.files import write_drawn, write_masks, write_sorted

    if draw:
        write_drawn(folder, predictions, preprocess)
    elif any(prediction.answer and prediction.answer.kind == "mask" for prediction in predictions):
        write_masks(folder, predictions, preprocess)
    else:
        write_sorted(folder, predictions)

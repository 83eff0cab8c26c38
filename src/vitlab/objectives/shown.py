"""Pictures of what an objective predicts: data that a run writes into its folder and its report draws."""

from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np
from PIL import Image

from vitlab.core.errors import Error
from vitlab.core.files import atomic_folder
from vitlab.core.record import read_json, write_json
from vitlab.data.contract import Array

FOLDER = "predictions"  # in a run's
ABOUT = "predictions.json"


@final
@dataclass(frozen=True, kw_only=True)
class Shown:
    """Pictures of what an objective predicts, for people: a row per image, each picture with the words under it."""

    title: str
    words: str
    rows: tuple[tuple[tuple[str, Array], ...], ...]  # uint8 [H, W, 3]
    held_out: bool = True  # whether they are of held-out images


def write_shown(shown: Shown, run: Path, step: int) -> None:
    """The pictures as PNG files, and what they are, in a run's folder."""
    rows: list[list[dict[str, str]]] = []
    with atomic_folder(run / FOLDER) as partial:
        for i, row in enumerate(shown.rows):
            rows.append([])
            for j, (words, pixels) in enumerate(row):
                file = f"{i}-{j}.png"
                Image.fromarray(pixels).save(partial / file)
                rows[-1].append({"file": file, "words": words})
        told = {"step": step, "title": shown.title, "words": shown.words, "rows": rows, "held_out": shown.held_out}
        write_json(partial / ABOUT, told)


def read_shown(run: Path) -> tuple[Shown, int] | None:
    """What a run wrote, and after which step; None where it wrote nothing, and an error where that is damaged."""
    about = run / FOLDER / ABOUT
    if not about.is_file():
        return None
    told = read_json(about)
    try:
        rows = tuple(
            tuple((str(each["words"]), _pixels(about.parent / Path(each["file"]).name)) for each in row)
            for row in told["rows"]
        )
        words, held_out = str(told["words"]), bool(told.get("held_out", True))
        return Shown(title=str(told["title"]), words=words, rows=rows, held_out=held_out), int(told["step"])
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise Error(f"{about}: the pictures cannot be read ({error}).") from error


def _pixels(path: Path) -> Array:
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB"))

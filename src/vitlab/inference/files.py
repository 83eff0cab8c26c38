"""Predictions as files: a CSV, pictures sorted by their answer or with it drawn on them, masks."""

import csv
import filecmp
import os
import re
import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
from PIL import Image

from vitlab.core.errors import Error
from vitlab.core.files import atomic_file
from vitlab.core.pictures import palette_image
from vitlab.core.preprocess import Preprocess
from vitlab.core.words import one_line
from vitlab.data.decoding import read_image
from vitlab.inference.lettering import font_with, with_words
from vitlab.inference.masks import blend, over_picture
from vitlab.inference.predict import Prediction
from vitlab.tasks.contract import Answer

LARGEST: Final = 1024  # px, the longer side of a picture with its answer on it
UNSAFE: Final = re.compile(r'[\x00-\x1f\x7f/\\:*?"<>|]')  # in the name of a folder, on any system


def write_csv(path: Path, predictions: Sequence[Prediction]) -> None:
    """A line per picture: its classes, the most probable first, its numbers, or the share of each class of a mask."""
    rows = [{"image": prediction.source or "", **_cells(prediction)} for prediction in predictions]
    columns = list(dict.fromkeys(name for row in rows for name in row if name != "error"))
    columns += ["error"] if any("error" in row for row in rows) else []
    with atomic_file(path) as part, part.open("w", newline="", encoding="utf-8", errors="backslashreplace") as file:
        written = csv.DictWriter(file, columns, restval="")
        written.writeheader()
        written.writerows(rows)


def _cells(prediction: Prediction) -> dict[str, str | float]:
    answer = prediction.answer
    if answer is None:
        return {"error": one_line(prediction.error or "")}
    if answer.kind != "classes":
        return dict(answer.shares if answer.kind == "mask" else answer.numbers)
    found: dict[str, str | float] = {}
    for place, scored in enumerate(answer.classes, start=1):
        behind = "" if place == 1 else f" {place}"
        found |= {f"predicted{behind}": scored.label, f"probability{behind}": scored.probability}
    return found


def write_sorted(folder: Path, predictions: Sequence[Prediction]) -> None:
    """A copy of each picture in a folder of the name of its most probable class; nothing that is there is replaced."""
    answered = _answered(predictions)
    if any(answer.kind != "classes" for _, answer in answered):
        raise Error("Pictures are sorted by their class, and this model names none: have the answers drawn (--draw).")
    labels = {answer.classes[0].index: answer.classes[0].label for _, answer in answered if answer.classes}
    safe = {index: _safe(label) or f"class {index}" for index, label in labels.items()}
    shared = Counter(name.casefold() for name in safe.values())
    copies: dict[Path, Path] = {}
    for (source, answer), name in zip(answered, _below([source for source, _ in answered]), strict=True):
        if not answer.classes:
            continue  # of several labels none
        index = answer.classes[0].index
        place = safe[index] if shared[safe[index].casefold()] == 1 else f"{safe[index]} ({index})"
        copies[folder / place / name] = source
    there = {target for target in copies if target.exists()}
    for target in there:
        if not (target.is_file() and filecmp.cmp(copies[target], target, shallow=False)):
            raise Error(f"{target} is there already and is not {copies[target]}: choose another folder for the copies.")
    for target in copies.keys() - there:
        with atomic_file(target, synced=False) as part:
            shutil.copyfile(copies[target], part)


def write_drawn(folder: Path, predictions: Sequence[Prediction], preprocess: Preprocess) -> None:
    """Each picture as NAME.png with the answer below it; a mask is laid over the picture."""
    answered = _answered(predictions)
    names = png_names([source for source, _ in answered])
    _spare_pictures(predictions, folder, names)
    words = [one_line(answer.words()) for _, answer in answered]
    font = font_with(words)
    for (source, answer), name, text in zip(answered, names, words, strict=True):
        picture = read_image(source)
        if answer.mask is not None:
            pixels = np.asarray(picture)
            picture = Image.fromarray(blend(pixels, over_picture(answer.mask, preprocess, pixels.shape[:2])))
        picture.thumbnail((LARGEST, LARGEST))
        with atomic_file(folder / name, synced=False) as part:
            with_words(picture, text, font).save(part, format="PNG")


def write_masks(folder: Path, predictions: Sequence[Prediction], preprocess: Preprocess) -> None:
    """The mask of each picture as NAME.png of the picture's size."""
    masks = {Path(p.source): (p.answer.mask, p.size) for p in predictions if p.source and p.answer and p.size}
    names = png_names(list(masks))
    _spare_pictures(predictions, folder, names)
    for path, name in zip(masks, names, strict=True):
        mask, size = masks[path]
        assert mask is not None
        with atomic_file(folder / name, synced=False) as part:
            palette_image(over_picture(mask, preprocess, size)).save(part, format="PNG")


def png_names(sources: Sequence[Path]) -> list[Path]:
    """NAME.png below the folder that the images share; NAME.jpg.png where two of them would be one file."""
    inside = _below(sources)
    plain = Counter(path.with_suffix("") for path in inside)
    return [
        path.with_suffix(".png") if plain[path.with_suffix("")] == 1 else path.with_name(f"{path.name}.png")
        for path in inside
    ]


def _spare_pictures(predictions: Sequence[Prediction], folder: Path, names: Sequence[Path]) -> None:
    """Refuse to write over one of the pictures that were answered; what an earlier call wrote may be replaced."""
    pictures = {os.path.realpath(p.source) for p in predictions if p.source}
    for target in (folder / name for name in names):
        if os.path.realpath(target) in pictures:
            raise Error(f"{target} is one of the pictures and would be written over: choose another folder to write.")


def _below(sources: Sequence[Path]) -> list[Path]:
    """Paths below the folder that they share."""
    absolute = [path.absolute() for path in sources]
    shared = os.path.commonpath([path.parent for path in absolute]) if absolute else ""
    return [path.relative_to(shared) for path in absolute]


def _answered(predictions: Sequence[Prediction]) -> list[tuple[Path, Answer]]:
    """Each picture that has an answer, once."""
    return list({Path(p.source): p.answer for p in predictions if p.source and p.answer}.items())


def _safe(label: str) -> str:
    """A class's name as one folder's: no separators, no control characters, not hidden, not too long."""
    return UNSAFE.sub("_", label).strip(" .").encode()[:200].decode(errors="ignore")

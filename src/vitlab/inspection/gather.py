"""From files and data sets to findings: reads pictures as they are needed, and names those that cannot be read."""

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias, final

from PIL import Image

from vitlab.core.errors import Error, ImageError
from vitlab.core.pictures import reason, to_rgb
from vitlab.core.words import count, one_line
from vitlab.data.contract import DataSet, Split
from vitlab.data.decoding import Input, read_image, read_picture
from vitlab.data.open import open_data
from vitlab.data.places import evenly
from vitlab.inspection.examine import Findings, examine
from vitlab.inspection.view import Predicted
from vitlab.inspection.write import write
from vitlab.models.contract import Model

Predict: TypeAlias = Callable[[Sequence[Image.Image]], Sequence[Predicted]]


@dataclass(frozen=True)
class Inspection:
    """What was found, a sentence for each picture that could not be read, and the files that were written."""

    findings: Findings
    unread: tuple[str, ...] = ()
    files: tuple[Path, ...] = ()

    def __repr__(self) -> str:
        looked = count(len(self.findings.views), "picture")
        return one_line(f"<Inspection of {self.findings.model}: {looked}, averages over {self.findings.num_images:,}>")

    def _repr_html_(self) -> str:
        """What a notebook shows: the figures."""
        from vitlab.inspection.notebook import shown

        return shown(self)


def inspect_pictures(
    model: Model,
    name: str,
    items: Sequence[Input],
    *,
    out: Path | None = None,
    data: str | None = None,
    other: tuple[Model, str] | None = None,
    layers: Sequence[int] | None = None,
    limit: int = 128,
    num_shown: int = 8,
    batch_size: int = 8,
    predict: Predict | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Inspection:
    """Maps of the first `num_shown` items, averages over at most `limit` of the data set or else of the items.

    `layers` count from 0; files are written where `out` is given. `predict` tells what the objective that trained the
    model says of pictures.
    """
    for what, value, least in (("limit", limit, 1), ("batch size", batch_size, 1), ("number shown", num_shown, 0)):
        if value < least:
            raise Error(f"The {what} must be at least {least}, not {value}.")
    if not items and data is None:
        raise Error("Give at least one picture, or a data set.")
    reader = Reader()
    shown = list(itertools.islice(reader.items(items), num_shown))
    if items and num_shown and not shown:
        raise ImageError(_none(reader))
    if data is None:
        chosen = [items[place] for place in evenly(len(items), limit)]
        pictures, total = reader.items(chosen), len(chosen)
    else:
        part, split = _part(open_data(data, val_fraction=0))
        data = f"{data} ({part})"
        places = evenly(len(split), limit).tolist()
        pictures, total = reader.split(split, places), len(places)
    findings = examine(
        model,
        name,
        shown,
        (picture for _, picture in pictures),
        data=data,
        layers=layers,
        other=other,
        batch_size=batch_size,
        seen=None if progress is None else lambda done: progress(done, total),
    )
    if not findings.num_images:
        raise ImageError(_none(reader))
    if predict is not None and shown:
        said = predict([picture for _, picture in shown])
        views = [replace(view, predicted=each) for view, each in zip(findings.views, said, strict=True)]
        findings = replace(findings, views=tuple(views))
    files = [] if out is None else write(findings, out)
    return Inspection(findings, tuple(reader.unread), tuple(files))


@final
class Reader:
    """Pictures with their names, one at a time; `unread` has a sentence for each that could not be read."""

    def __init__(self) -> None:
        self.unread: dict[str, None] = {}  # in order, each once, however often it was tried

    def items(self, items: Iterable[Input]) -> Iterator[tuple[str, Image.Image]]:
        """What was given: paths, PIL images, arrays."""
        for number, item in enumerate(items, start=1):
            try:
                if isinstance(item, str | os.PathLike):
                    yield os.fspath(item), read_image(item)
                else:
                    yield f"picture {number}", to_rgb(item)
            except ImageError as error:
                self.unread[str(error)] = None

    def split(self, split: Split, places: Iterable[int]) -> Iterator[tuple[str, Image.Image]]:
        """Some of a data set."""
        for place in places:
            where = split.images.where(place)
            try:
                yield where, read_picture(split.images.read(place), where)
            except ImageError as error:
                self.unread[str(error)] = None
            except OSError as error:
                self.unread[f"Cannot read {where}: {reason(error)}."] = None


def _part(dataset: DataSet) -> tuple[str, Split]:
    """The part that the model was least likely trained on."""
    name = next(name for name in ("test", "val", "train") if name in dataset.splits)
    return name, dataset.splits[name]


def _none(reader: Reader) -> str:
    first, *more = reader.unread
    return first if not more else f"None of {len(reader.unread)} pictures can be read. {first}"

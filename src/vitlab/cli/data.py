"""`vitlab data`: what a data set holds, and what is wrong with it."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import Positional, arg

from vitlab.cli.parsing import parse
from vitlab.cli.terminal import print_json, progress_bar
from vitlab.core.words import duration, one_line
from vitlab.weights.box import DEFAULT

if TYPE_CHECKING:
    from vitlab.data.copies import Pair, Place
    from vitlab.evaluation.examination import Examination

DESCRIPTION = """What a data set holds, as training reads and splits it, and what is wrong with it.

Copies have the same bytes, or look the same as small thumbnails; cropped and mirrored ones are found by a model's
features. A copy in another split is a leak: the score there is too high, since the model was trained on that picture.
If copies have different labels, one label is wrong. A label is likely wrong if a classifier on the features, which
did not see the image, is confident of another class. Outliers are the 1% of the images that are farthest from all
others. Exit status 1: some images cannot be read.

Examples:
  vitlab data photos/
  vitlab data photos/ --page photos.html --csv photos.csv
  vitlab data photos/ --model runs/mine
  vitlab data photos/ --no-features
  vitlab data cifar10 --no-look --json
"""
SHOWN = 5  # of each kind, on a terminal
COLUMNS: tuple[str, ...] = (
    "problem",
    "image",
    "split",
    "label",
    "score",
    "predicted",
    "copy of",
    "its split",
    "its label",
    "detail",
)


@dataclass(frozen=True)
class Arguments:
    data: Annotated[Positional[str], arg(metavar="DATA")]
    """A folder of class folders, a CSV or a data set's name; see docs/data.md."""
    model: Annotated[str, arg(metavar="SOURCE")] = DEFAULT
    """The model whose features find wrong labels, outliers and cropped copies: any checkpoint that vitlab reads."""
    no_features: bool = False
    """Only look for unreadable files and whole copies, which is faster."""
    most: int = 10_000
    """The most images, evenly spread, whose features are computed, so that large sets take minutes."""
    no_look: bool = False
    """Only count, without decoding any image."""
    near: float = 0.95
    """The correlation from which two pictures are called copies; above 1 only identical files are."""
    page: Path | None = None
    """Write an HTML page with thumbnails to this file."""
    csv: Path | None = None
    """Write all findings to this file, as a table."""
    json: bool = False
    """Print one JSON document."""
    batch_size: int = 64
    """How many images go through the model at once."""
    device: str | None = None
    """cpu, cuda, ...; by default a GPU if there is one."""


def main(arguments: Sequence[str]) -> int:
    given = parse(Arguments, arguments, prog="vitlab data", description=DESCRIPTION)
    from vitlab.core.errors import Error

    for name, value in (("--near", given.near), ("--most", given.most), ("--batch-size", given.batch_size)):
        if not value > 0:
            raise Error(f"{name} must be above 0, not {value}.")
    if given.no_look and (given.csv is not None or given.page is not None):
        name = "--csv" if given.csv is not None else "--page"
        raise Error(f"{name} is for what is found by looking, and --no-look does not look: leave one of them out.")
    _check_places(given)
    if given.model != DEFAULT and (given.no_look or given.no_features):
        less = "--no-look" if given.no_look else "--no-features"
        raise Error(f"--model is whose features are computed, and {less} computes none: leave one of them out.")
    found = _counted(given.data) if given.no_look else _examined(given)
    if given.csv is not None:
        _write(given.csv, found)
    if given.json:
        print_json(_plain(found))
    else:
        for line in [*found.description.lines(), *_lines(found)]:
            print(one_line(line))
        for title, path in (("as a page with thumbnails", given.page), ("as a table", given.csv)):
            if path is not None:
                print(one_line(f"{title}: {path}"))
    return int(bool(found.description.unreadable))


def _check_places(given: Arguments) -> None:
    """Refuse files that cannot be written, or would be written over, before anything is looked at."""
    from vitlab.core.errors import Error
    from vitlab.core.files import check_writable

    written = [path for path in (given.page, given.csv) if path is not None]
    for path in written:
        check_writable(path, [given.data])
    if len(written) == 2 and written[0].resolve() == written[1].resolve():
        raise Error(f"--page and --csv are both {given.csv}: give two files.")


def _examined(given: Arguments) -> "Examination":
    from vitlab import api

    return api.examine_data(
        given.data,
        None if given.no_features else given.model,
        near=given.near,
        most=given.most,
        page=given.page,
        batch_size=given.batch_size,
        device=given.device,
        stage=_bar,
    )


def _counted(data: str) -> "Examination":
    from vitlab.data.open import describe
    from vitlab.evaluation.examination import Examination
    from vitlab.training.plan import open_parts
    from vitlab.training.recipe import DataChoice, Recipe

    return Examination(describe(open_parts(Recipe(data=DataChoice(source=data)))))


@contextlib.contextmanager
def _bar(title: str, total: int) -> Iterator[Callable[[int, int], None] | None]:
    with progress_bar(title, total, at_least=500) as progress:
        yield progress


def _plain(found: "Examination") -> dict[str, Any]:
    """The description's fields, and beside them what was found."""
    plain = asdict(found)
    return {**plain.pop("description"), **plain}


def _lines(found: "Examination") -> list[str]:
    """What was found in words, what is worse first in each kind."""
    if not found.description.looked_at:
        return []
    lines = _copies(found)
    if found.labels is not None:
        labels = found.labels
        lines.append(
            f"labels: {len(labels.suspects):,} of {labels.judged:,} {'is' if len(labels.suspects) == 1 else 'are'}"
            f" likely wrong, by the features of {found.model}, which agree with {labels.agreement:.1%}"
        )
        lines += _first(
            [
                f"{_named(each.place)} looks like {each.predicted} ({each.predicted_probability:.0%})"
                for each in labels.suspects
            ]
        )
    if found.num_features:
        far = "one" if len(found.outliers) == 1 else f"{len(found.outliers):,}"
        lines.append(f"outliers: the {far} of {found.num_features:,} farthest from all others")
        lines += _first([f"{_named(each.place)}, {each.times:.1f} times as far as usual" for each in found.outliers])
    return [*lines, *found.notes, f"looked at in {duration(found.seconds)}"]


def _copies(found: "Examination") -> list[str]:
    pairs = found.copies
    if not pairs:
        return ["copies: none were found"]
    exact = sum(pair.kind == "exact" for pair in pairs)
    near = sum(pair.kind == "near" for pair in pairs)
    copies = "image is a copy of another" if len(pairs) == 1 else "images are copies of others"
    cut = f", {len(pairs) - exact - near:,} cropped or mirrored" if found.num_features else ""
    lines = [f"copies: {len(pairs):,} {copies}, {exact:,} exactly and {near:,} nearly{cut}"]
    for title, some in (
        ("in another part too (a leak)", found.leaks),
        ("under another label too", found.disagreeing),
    ):
        if some:
            lines.append(f"{title}: {len(some):,} of them")
            lines += _first([_words(pair) for pair in some])
    return lines


def _first(items: Sequence[str]) -> list[str]:
    lines = [f"  {item}" for item in items[:SHOWN]]
    more = len(items) - SHOWN
    return [*lines, f"  and {more:,} more (--page or --csv FILE has them)"] if more > 0 else lines


def _words(pair: "Pair") -> str:
    alike = "" if pair.kind == "exact" else f", {pair.similarity:.0%} alike"
    cut = f" {pair.kind}" if pair.kind in ("cropped", "mirrored") else ""
    return f"{_named(pair.second)} is a{cut} copy of {_named(pair.first)}{alike}"


def _named(place: "Place") -> str:
    return f"{place.where} ({place.split}{'' if place.label is None else f', {place.label}'})"


def _write(path: Path, found: "Examination") -> None:
    """A line per problem; `score` is the likeness of copies, the margin of labels, the distance of outliers."""
    import csv

    from vitlab.core.files import atomic_file

    with (
        atomic_file(path) as part,
        part.open("w", newline="", encoding="utf-8", errors="backslashreplace") as file,
    ):
        table = csv.DictWriter(file, COLUMNS, restval="")
        table.writeheader()
        table.writerows(_rows(found))


def _rows(found: "Examination") -> Iterator[dict[str, str | None]]:
    for item in found.description.unreadable:
        yield {"problem": "unreadable", "image": item.where, "split": item.split, "detail": one_line(item.reason)}
    for pair in found.copies:
        first = {"copy of": pair.first.where, "its split": pair.first.split, "its label": pair.first.label}
        yield {
            "problem": "copy",
            **_cells(pair.second),
            "score": f"{pair.similarity:.4f}",
            **first,
            "detail": pair.kind,
        }
    for each in () if found.labels is None else found.labels.suspects:
        yield {"problem": "label", **_cells(each.place), "score": f"{each.margin:.4f}", "predicted": each.predicted}
    for each in found.outliers:
        yield {"problem": "outlier", **_cells(each.place), "score": f"{each.distance:.4f}"}


def _cells(place: "Place") -> dict[str, str | None]:
    return {"image": place.where, "split": place.split, "label": place.label}

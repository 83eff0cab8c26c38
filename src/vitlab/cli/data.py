"""`vitlab data`: what a data set holds, and what is wrong with it."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import Positional, arg

from vitlab.cli.parsing import parse
from vitlab.cli.terminal import print_json, progress_bar
from vitlab.core.words import one_line

if TYPE_CHECKING:
    from vitlab.data.copies import Pair, Place

DESCRIPTION = """What a data set holds, as training reads and divides it: classes, counts, unreadable files, and copies.

Copies are pictures of the same bytes, or that look the same when made small. A copy in another part is a leak: what is
measured there was learned by heart. Copies with different labels have a wrong one. Exit status 1: some images cannot be
read.

Examples:
  vitlab data photos/
  vitlab data photos/ --csv copies.csv
  vitlab data cifar10 --no-look --json
"""
SHOWN = 5  # pairs of each kind, on a terminal


@dataclass(frozen=True)
class Arguments:
    data: Annotated[Positional[str], arg(metavar="DATA")]
    """A folder of class folders, a CSV, a data set's name: see docs/data.md."""
    look: bool = True
    """Decode every image, to find what cannot be read and copies; --no-look only counts."""
    near: float = 0.95
    """How alike two pictures are that are called copies: a correlation, at most 1; above 1 only equal files are."""
    csv: Path | None = None
    """Write a table of all copies to this file."""
    json: bool = False
    """Print one JSON document."""


def main(arguments: Sequence[str]) -> int:
    given = parse(Arguments, arguments, prog="vitlab data", description=DESCRIPTION, config=())
    from vitlab.core.errors import Error
    from vitlab.data.copies import find_copies
    from vitlab.data.open import describe
    from vitlab.training.plan import open_parts
    from vitlab.training.recipe import DataChoice, Recipe

    if not given.near > 0:
        raise Error(f"--near must be above 0, not {given.near}.")
    if given.csv is not None and not given.look:
        raise Error("--csv is for copies, which --no-look does not look for: leave one of them out.")
    dataset = open_parts(Recipe(data=DataChoice(source=given.data)))
    description = describe(dataset, look=given.look)
    pairs: list[Pair] = []
    if given.look:
        with progress_bar("Looking for copies", sum(description.sizes.values()), at_least=500) as progress:
            pairs = find_copies(dataset, near=given.near, progress=progress)
    if given.csv is not None:
        _write(given.csv, pairs)
    if given.json:
        print_json({**asdict(description), "copies": [asdict(pair) for pair in pairs]})
    else:
        for line in [*description.lines(), *(_lines(pairs) if given.look else [])]:
            print(one_line(line))
    return int(bool(description.unreadable))


def _lines(pairs: Sequence["Pair"]) -> list[str]:
    """Copies in words, what is worse first."""
    if not pairs:
        return ["copies: none were found"]
    exact = sum(pair.kind == "exact" for pair in pairs)
    copies = "image is a copy of another" if len(pairs) == 1 else "images are copies of others"
    lines = [f"copies: {len(pairs):,} {copies}, {exact:,} exactly and {len(pairs) - exact:,} nearly"]
    leaks = [pair for pair in pairs if pair.leaks]
    wrong = [pair for pair in pairs if pair.disagrees]
    for title, found in (("in another part too (a leak)", leaks), ("under another label too", wrong)):
        if found:
            lines.append(f"{title}: {len(found):,} of them")
            lines += [f"  {_words(pair)}" for pair in found[:SHOWN]]
            if len(found) > SHOWN:
                lines.append(f"  and {len(found) - SHOWN:,} more (--csv FILE lists them)")
    return lines


def _words(pair: "Pair") -> str:
    alike = "" if pair.kind == "exact" else f", {pair.similarity:.0%} alike"
    return f"{_named(pair.second)} is a copy of {_named(pair.first)}{alike}"


def _named(place: "Place") -> str:
    return f"{place.where} ({place.split}{'' if place.label is None else f', {place.label}'})"


def _write(path: Path, pairs: Sequence["Pair"]) -> None:
    import csv

    from vitlab.core.files import atomic_file

    columns = ["kind", "similarity", "first", "first split", "first label", "second", "second split", "second label"]
    with atomic_file(path) as part, part.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(columns)
        for pair in pairs:
            one, two = pair.first, pair.second
            table.writerow(
                [pair.kind, f"{pair.similarity:.4f}", one.where, one.split, one.label, two.where, two.split, two.label]
            )

"""`vitlab data --page`: what a data set holds and what is wrong with it, with thumbnails, as one file."""

from collections.abc import Sequence
from importlib.resources import files

import numpy as np

from vitlab.core.markup import Html, tag
from vitlab.core.thumbnails import shrunk
from vitlab.core.words import count, duration, percent, short
from vitlab.data.contract import DataSet
from vitlab.data.copies import Pair, Place
from vitlab.evaluation.examination import FEWEST_OF_CLASS, Examination, Labels
from vitlab.evaluation.outliers import NEIGHBOURS
from vitlab.inspection.document import document
from vitlab.reporting.drawn import drawn
from vitlab.reporting.glossary import Glossary
from vitlab.reporting.pictures import picture_at
from vitlab.reporting.sections import section, table
from vitlab.reporting.summary import tile
from vitlab.tasks.sections import Block, Figure, Folded, Pictures, Section, Span, Table, Text, Words

MOST_SHOWN = 60  # pictures or pairs of a kind
MOST_CLASSES = 40  # rows of a table that is not folded
NO_TERMS = Glossary({})


def data_page(found: Examination, dataset: DataSet) -> str:
    """The whole page."""
    parts: list[tuple[str, str, list[Html]]] = []
    if found.labels is not None:
        parts.append(("Labels that are likely wrong", "labels", _suspects(found.labels, found.model or "", dataset)))
    for title, name, pairs, words in _kinds_of_copies(found):
        if pairs:
            parts.append((title, name, _copies(pairs, words, dataset)))
    if found.num_features:
        parts.append(("Unlike all others", "outliers", _outliers(found, dataset)))
    if found.description.unreadable:
        parts.append(("What cannot be read", "unreadable", _unreadable(found)))
    if found.description.counts:
        parts.append(("Class by class", "classes", _classes(found)))
    parts.append(("The data", "data", _facts(found)))
    contents = tag("nav", *(tag("a", title, href=f"#{name}") for title, name, _ in parts), aria_label="Contents")
    body: list[str] = [tag("header", *_head(found), contents)]
    body += [section(title, name, content) for title, name, content in parts]
    style = "".join(
        files("vitlab.reporting").joinpath(name).read_text(encoding="utf-8") for name in ("report.css", "data.css")
    )
    return document(f"{found.description.name}: what is in the data", body, style)


def _head(found: Examination) -> list[Html]:
    description, total = found.description, sum(found.description.sizes.values())
    tiles = [("images", f"{total:,}", ", ".join(f"{name} {size:,}" for name, size in description.sizes.items()))]
    if description.counts:
        largest = description.imbalance
        uneven = f"the largest has {largest:.1f} times the images of the smallest" if largest and largest > 1 else ""
        tiles.append(("classes", f"{len(description.classes):,}", uneven))
    tiles.append(("cannot be read", f"{len(description.unreadable):,}", ""))
    leaks = f"{len(found.leaks):,} between parts" if len(description.sizes) > 1 else ""
    tiles.append(("copies", f"{len(found.copies):,}", leaks))
    if found.labels is not None:
        tiles.append(("suspected labels", f"{len(found.labels.suspects):,}", f"of {found.labels.judged:,}"))
    if found.num_features:
        tiles.append(("unlike all others", f"{len(found.outliers):,}", f"the farthest of {found.num_features:,}"))
    return [
        tag("h1", f"{short(description.name)}: what is in the data"),
        tag("p", "What to look at before a model is trained on it, the worst first in each part.", class_="lead"),
        tag("dl", *(tile(*each) for each in tiles), class_="tiles"),
    ]


def _suspects(labels: Labels, model: str, dataset: DataSet) -> list[Html]:
    words = (
        f"A classifier on the features of {short(model)}, asked about each picture without having seen it, agrees with"
        f" {percent(labels.agreement)} of the {labels.judged:,} labels."
    )
    if not labels.suspects:
        return _drawn(Text(f"{words} None is suspected."))
    words += (
        " Here it says another class. Not all of these are mistakes: look at each, the surest first. Percentages are"
        " how sure it is."
    )
    cards: list[Figure] = []
    for each in labels.suspects[:MOST_SHOWN]:
        caption: Words = (
            "labelled ",
            Span(short(each.place.label or "", 30), "wrong"),
            "\nlooks like ",
            Span(short(each.predicted, 30), "strong"),
            Span(f" ({each.predicted_probability:.0%})", "faint"),
            "\n",
            Span(_short_name(each.place), "faint"),
        )
        cards += _card(dataset, each.place, caption)
    return _drawn(Text(words), Pictures(rows=(tuple(cards),)), *_more(len(labels.suspects)))


def _kinds_of_copies(found: Examination) -> list[tuple[str, str, Sequence[Pair], str]]:
    """Each pair once, under what is worst about it."""
    wrong = [pair for pair in found.disagreeing if not pair.leaks]
    rest = [pair for pair in found.copies if not pair.leaks and not pair.disagrees]
    return [
        (
            "Copies in two parts: leaks",
            "leaks",
            found.leaks,
            "A score on a picture that the model has learned from is too high. Leave one of each pair out.",
        ),
        ("Copies with two labels", "two-labels", wrong, "One label of each pair at least is wrong."),
        ("Other copies", "copies", rest, "They count twice, and do no other harm."),
    ]


def _copies(pairs: Sequence[Pair], words: str, dataset: DataSet) -> list[Html]:
    ordered = sorted(pairs, key=lambda pair: not pair.disagrees)  # stable
    boxes: list[Html] = []
    for pair in ordered[:MOST_SHOWN]:
        alike = pair.kind if pair.kind == "exact" else f"{pair.kind}, {pair.similarity:.0%} alike"
        cards: list[Figure] = []
        for place, more in ((pair.first, ()), (pair.second, ("\n", Span(alike, "faint")))):
            style = "wrong" if pair.disagrees else "strong"
            label = () if place.label is None else (" ", Span(short(place.label, 30), style))
            caption = (place.split, *label, "\n", Span(_short_name(place), "faint"), *more)
            cards += _card(dataset, place, caption)
        boxes += _drawn(Pictures(rows=(tuple(cards),)))
    return [*_drawn(Text(words)), tag("div", *boxes, class_="pairs"), *_drawn(*_more(len(pairs)))]


def _outliers(found: Examination, dataset: DataSet) -> list[Html]:
    words = (
        f"The 1% of the pictures whose features are farthest from those of their {NEIGHBOURS} nearest, compared with"
        " the median picture. Some may not belong here, some are rare and precious."
    )
    cards: list[Figure] = []
    for each in found.outliers[:MOST_SHOWN]:
        label = () if each.place.label is None else (Span(short(each.place.label, 30), "strong"), "\n")
        caption = (*label, f"{each.times:.1f} times as far\n", Span(_short_name(each.place), "faint"))
        cards += _card(dataset, each.place, caption)
    return _drawn(Text(words), Pictures(rows=(tuple(cards),)), *_more(len(found.outliers)))


def _unreadable(found: Examination) -> list[Html]:
    items = found.description.unreadable
    lines = [tag("li", item.reason) for item in items[:MOST_SHOWN]]
    return [tag("ul", *lines), *_drawn(*_more(len(items)))]


def _classes(found: Examination) -> list[Html]:
    description, suspected = found.description, dict[str, int]()
    for each in found.labels.suspects if found.labels is not None else ():
        suspected[each.place.label or ""] = suspected.get(each.place.label or "", 0) + 1
    per_split = description.counts
    totals = [sum(counts[k] for counts in per_split.values()) for k in range(len(description.classes))]
    order = sorted(range(len(totals)), key=lambda k: (-totals[k], k))
    head = ("class", "images", *per_split, *(("suspected labels",) if found.labels is not None else ()))
    rows = tuple(
        (
            short(description.classes[k]),
            f"{totals[k]:,}",
            *(f"{counts[k]:,}" for counts in per_split.values()),
            *((f"{suspected.get(description.classes[k], 0):,}",) if found.labels is not None else ()),
        )
        for k in order
    )
    whole = Table(head=head, rows=rows)
    few = [description.classes[k] for k in order if 0 < totals[k] < FEWEST_OF_CLASS]
    blocks: list[Block] = [whole if len(rows) <= MOST_CLASSES else Folded(f"All {len(rows):,} classes", (whole,))]
    if few and found.labels is not None:
        words = f"{count(len(few), 'class', 'classes')} with fewer than {FEWEST_OF_CLASS} images"
        blocks.append(Text(f"{words}: their labels were not judged.", faint=True))
    return _drawn(*blocks)


def _facts(found: Examination) -> list[Html]:
    description, rows = found.description, list[tuple[str, str]]()
    for name, size in description.sizes.items():
        rows.append((name, count(size, "image")))
    if description.pictures is not None:
        for name in ("smallest", "median", "largest"):
            width, height = getattr(description.pictures, name)
            rows.append((f"{name} picture", f"{width:,} x {height:,} pixels"))
    if found.model is not None:
        rows.append(("features of", f"{short(found.model)}, {count(found.num_features, 'image')}"))
    rows.append(("looked at in", duration(found.seconds)))
    return [table(rows), *_drawn(*(Text(note) for note in (*description.notes, *found.notes)))]


def _card(dataset: DataSet, place: Place, caption: Words) -> list[Figure]:
    """The picture with its caption; none where it cannot be read any more."""
    picture = picture_at(dataset.splits[place.split], place.index)
    if picture is None:
        return []
    label = "" if place.label is None else f"{short(place.label, 30)}: "
    alt = f"{label}{short(place.where)}"
    return [Figure(pixels=np.asarray(shrunk(picture)), caption=caption, alt=alt, hover=short(place.where, 200))]


def _short_name(place: Place) -> str:
    return short(place.where.replace("\\", "/").rsplit("/", 1)[-1], 30)


def _more(total: int) -> list[Block]:
    left = total - MOST_SHOWN
    return [Text(f"And {left:,} more: --csv FILE lists all.", faint=True)] if left > 0 else []


def _drawn(*blocks: Block) -> list[Html]:
    return drawn(Section("", blocks), NO_TERMS)

"""The sections of a report about the model's answers: confusions, pictures, classes, certainty, what is inside."""

from collections.abc import Sequence

from vitlab.inspection.document import panel_markup
from vitlab.reporting.charts import reliability_chart
from vitlab.reporting.confusion import MOST_DRAWN, largest, matrix
from vitlab.reporting.facts import Facts
from vitlab.reporting.glossary import term
from vitlab.reporting.inside import Inside
from vitlab.reporting.markup import Html, tag
from vitlab.reporting.measure import Answer, Measured
from vitlab.reporting.pictures import picture_at, thumbnail
from vitlab.reporting.words import count, listed, percent, short

MOST_CLASSES = 30  # that are listed; of more, the ends, and the rest behind a click
ENDS = 10
MOST_LISTED = 1000
MOST_SAID = 4  # labels of one picture


def confusions(facts: Facts) -> list[Html]:
    """What is taken for what."""
    measured = facts.measured
    assert measured is not None
    drawn = matrix(measured.confusion, measured.per_class_counts, facts.classes)
    table = largest(measured.confusion, measured.per_class_counts, facts.classes)
    parts: list[Html] = []
    if drawn is not None:
        words = (
            "Each row is a kind of picture, each column what the model took it for; the stronger the colour, the larger"
            " the share of the row. Blue squares on the diagonal are right, red ones are mistakes."
        )
        parts.append(tag("p", term("confusion matrix", "How to read it"), f": {words[0].lower()}{words[1:]}"))
        parts.append(tag("figure", tag("div", drawn, class_="scrolled", tabindex="0")))
    else:
        parts.append(
            tag(
                "p",
                f"With more than {MOST_DRAWN} classes a matrix cannot be read; these are the commonest mistakes.",
            )
        )
    parts.append(table or tag("p", "It made no mistake on these pictures."))
    return parts


def examples(facts: Facts) -> list[Html]:
    """The answers it was surest of, right and wrong, as pictures."""
    measured = facts.measured
    assert measured is not None
    several = facts.multi_label
    kinds = (
        ("Right" if several else "Right, and surest of it", measured.best, "None was right."),
        ("Wrong, and furthest off" if several else "Wrong, and surest of it", measured.worst, "None was wrong."),
    )
    parts = [
        tag(
            "p",
            "Look at the mistakes first: some are hard for people too, some show what the model has not understood, and"
            " some are pictures with a wrong label. Percentages are how sure the model was.",
        )
    ]
    for title, answers, otherwise in kinds:
        parts.append(tag("h3", title))
        shown = [card for answer in answers if (card := _card(measured, answer)) is not None]
        parts.append(tag("div", *shown, class_="pictures") if shown else tag("p", otherwise))
    return parts


def classes(facts: Facts) -> list[Html]:
    """Every class: its share of the training pictures, and how well it is told."""
    dataset, measured = facts.dataset, facts.measured
    assert dataset is not None
    train = dataset.splits.get("train")
    counts = [0] * dataset.num_classes if train is None else train.counts(dataset.num_classes).tolist()
    there = [amount for amount in counts if amount]
    words = f"How many training pictures each {'label' if facts.multi_label else 'class'} has"
    words += ", and how well it is told apart." if measured is not None else "."
    if there:
        times = max(there) / min(there)
        words += (
            f" The largest has {times:.1f} times as many as the smallest."
            if len(set(there)) > 1
            else " All have equally many."
        )
    order = sorted(range(len(counts)), key=lambda k: (-counts[k], k))
    right = "average precision" if facts.multi_label else "right of the held-out pictures"
    head = tag(
        "tr",
        tag("th", "label" if facts.multi_label else "class", scope="col"),
        tag("th", "training pictures", scope="col"),
        tag("th", right, scope="col") if measured is not None else None,
    )

    def table(chosen: Sequence[int]) -> Html:
        most = max(there, default=1)
        rows = [_class_row(dataset.classes[k], counts[k], most, measured, k, several=facts.multi_label) for k in chosen]
        return tag("table", tag("thead", head), tag("tbody", *rows), class_="classes")

    parts = [tag("p", words)]
    if len(order) <= MOST_CLASSES:
        return [*parts, table(order)]
    listed_ = order[:MOST_LISTED]
    parts += [
        tag("h3", f"The {ENDS} with the most training pictures"),
        table(order[:ENDS]),
        tag("h3", f"The {ENDS} with the fewest"),
        table(order[-ENDS:]),
    ]
    if measured is not None:
        told = [k for k in order if measured.per_class[k] is not None]
        worst = sorted(told, key=lambda k: (measured.per_class[k] or 0.0, k))[:ENDS]
        parts += [tag("h3", f"The {ENDS} told apart worst"), table(worst)]
    more = f"All {len(order):,}" if len(listed_) == len(order) else f"The first {MOST_LISTED:,} of {len(order):,}"
    parts.append(tag("details", tag("summary", f"{more} classes"), table(listed_)))
    return parts


def certainty(measured: Measured) -> list[Html]:
    """Whether its percentages can be believed."""
    sure = sum(confidence * amount for confidence, _, amount in measured.reliability) / measured.num
    right = measured.numbers["accuracy"].value
    label = f"How sure it was and how often it was right: {percent(sure)} sure on average, right {percent(right)}."
    words = (
        f"On average it was {percent(sure)} sure of its answers, and right {percent(right)} of the time. Each disc is a"
        " group of pictures of which it was about equally sure, larger for more of them: on the dashed line it is right"
        " as often as it says, below it is too sure of itself, above too modest."
    )
    chart = tag("figure", reliability_chart(measured.reliability, label=label))
    return [tag("p", words), tag("div", chart, class_="charts")]


def inside(found: Inside) -> list[Html]:
    """What inspect shows."""
    parts: list[Html] = []
    if found.looked:
        parts.append(tag("h3", "Where it looked"))
        parts.append(
            tag(
                "p",
                "The picture as the model sees it; beside it, yellow is where it looked (",
                term("attention"),
                " followed back through all layers), and on the right what spoke for its answer.",
            )
        )
        parts.append(tag("div", *(Html(panel_markup(panel)) for panel in found.looked), class_="looked"))
    for title, panel in found.sections:
        parts += [tag("h3", title), Html(panel_markup(panel))]
    if found.num_images and any(title == "How far it looks" for title, _ in found.sections):
        parts.append(tag("p", f"Averages are over {count(found.num_images, 'held-out picture')}.", class_="faint"))
    if found.missing:
        parts.append(tag("p", " ".join(found.missing), class_="faint"))
    return parts


def answer_words(answer: Answer) -> str:
    """What it said and what is right, as a caption."""
    said = listed([f"{short(name, 20)} ({share:.0%})" for name, share in answer.said], 4) or "nothing"
    truth = listed([short(name, 30) for name in answer.truth], 4) or "nothing of these"
    return f"It said {said}; it is {truth}."


def _card(measured: Measured, answer: Answer) -> Html | None:
    picture = picture_at(measured.split, answer.place)
    if picture is None:
        return None
    small = thumbnail(picture)
    where = measured.split.images.where(answer.place)
    truth = listed(answer.truth, 4) or "nothing of these"
    image = tag(
        "img",
        src=small.source,
        alt=f"{truth} ({short(where)})",
        title=short(where, 200),
        width=small.width,
        height=small.height,
        class_="tiny" if small.tiny else None,
    )
    mark = tag("span", "✓ " if answer.right else "✗ ", class_=f"mark {'right' if answer.right else 'wrong'}")
    caption: list[str] = [mark, "said " if answer.said else "said nothing"]
    for place, (name, share) in enumerate(answer.said[:MOST_SAID]):
        caption += [
            ", " if place else "",
            tag("strong", short(name, 30)),
            tag("span", f" ({share:.0%})", class_="faint"),
        ]
    if not answer.right:
        caption += [tag("br"), "is ", tag("strong", truth)]
    return tag("figure", tag("div", image, class_="frame"), tag("figcaption", *caption))


def _class_row(name: str, amount: int, most: int, measured: Measured | None, k: int, *, several: bool) -> Html:
    cells = [tag("th", short(name), scope="row"), tag("td", _bar(amount / most, f"{amount:,}", "share"))]
    if measured is not None:
        share, seen = measured.per_class[k], measured.per_class_counts[k]
        of = f"{percent(share)}" if share is not None and several else ""
        if share is not None and not several:
            of = f"{round(share * seen):,} of {seen:,}"
        cells.append(tag("td", "none held out" if share is None else _bar(share, of, "right")))
    return tag("tr", *cells)


def _bar(share: float, words: str, kind: str) -> Html:
    return tag("div", tag("span", tag("i", style=f"width:{100 * share:.1f}%")), tag("b", words), class_=f"bar {kind}")

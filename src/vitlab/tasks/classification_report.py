"""What a report says of a classifier: its numbers, confusions, pictures, classes, and whether it can be believed."""

from collections.abc import Sequence

from vitlab.core.words import count, listed, percent, short
from vitlab.data.contract import DataSet
from vitlab.tasks.classification_results import ClassesTested, Number, confused, rightness
from vitlab.tasks.report import looked_at, seen_words
from vitlab.tasks.results import Example, ReportContext
from vitlab.tasks.sections import (
    Bar,
    Block,
    Figure,
    Folded,
    Heading,
    Matrix,
    Opening,
    Pictures,
    Reliability,
    Section,
    Span,
    Table,
    Text,
    Tile,
    Words,
)

MOST_DRAWN = 100  # classes of a matrix; of more, the largest confusions alone are shown
MOST_ROWS = 12  # of the largest confusions
MOST_CLASSES = 30  # that are listed; of more, the ends, and the rest behind a click
ENDS = 10
MOST_LISTED = 1000
MOST_SAID = 4  # labels of one picture
NAMES = {  # a measured number in the table, where its name alone would not do
    "accuracy": "accuracy: right answers",
    "top-5": "right answer among the first five",
    "mAP": "mean average precision (mAP)",
}
TERMS = {
    "accuracy": "How many of the answers are right, of all pictures that were asked about.",
    "all labels right": "Pictures for which every label was given that belongs to them, and no other.",
    "balanced accuracy": "The share of right answers for each class by itself, then the mean over the classes: a rare"
    " class counts as much as a common one.",
    "calibration error": "How far what the model says of its own certainty is from how often it is right. At 0% it is"
    " right nine times in ten where it says that it is 90% sure.",
    "class": "One of the kinds of pictures that are to be told apart.",
    "confusion matrix": "A table of what pictures are, row by row, and what the model took them for, column by column.",
    "log loss": "A penalty for wrong answers, the higher the surer the model was of them; lower is better.",
    "mAP": "Mean average precision: for each label, how well the pictures that have it are ranked before those that do"
    " not, then the mean over the labels. 100% is perfect.",
    "top-5": "How often the right answer is among the model's first five.",
}


def several_labels(context: ReportContext) -> bool:
    """Whether images have several labels, as far as the data is there to say so."""
    return context.dataset is not None and context.dataset.multi_label


def counts_labels(context: ReportContext) -> bool:
    """Whether the run's own accuracy counts single labels, and not pictures."""
    return context.loss.kind == "sigmoid" or several_labels(context)


def opening(context: ReportContext) -> Opening:
    """What it tells apart, and how often it is right."""
    several, classes = several_labels(context), context.classes
    title = f"telling {count(len(classes), 'kind')} of pictures apart" if classes else "a vision model"
    learned = "to name what is in a picture" if several else "to tell pictures apart"
    sentence, tiles = _reached(context)
    found = details(context)
    if found is not None and found.guess is not None:
        tiles.append(Tile("without looking", percent(found.guess), "one answer for all, at best"))
    return Opening(
        title=f"naming {count(len(classes), 'thing')} in pictures" if several else title,
        learned=learned + (f" ({listed(classes)})" if classes else ""),
        reached=sentence,
        tiles=tuple(tiles),
        learned_from=f"pictures of {count(len(classes), 'class', 'classes')}",
    )


def sections(context: ReportContext) -> list[Section]:
    """In the order of the page; without a model, the classes alone."""
    found, parts = details(context), list[Section]()
    if found is not None:
        parts += [_numbers(context, found), _pictures(context)]
        if found.confusion:
            parts.append(_confusions(context, found))
    if context.dataset is not None:
        parts.append(_classes(context, context.dataset, found))
    if found is not None and found.reliability:
        parts.append(_certainty(found))
    return parts


def claimed(example: Example, *, several: bool) -> list[tuple[str, float]]:
    """What was said of a picture: its class, or every label that is likelier than not."""
    said = [(each.label, each.probability) for each in example.answer.classes]
    return [(name, share) for name, share in said if share > 0.5] if several else said[:1]


def caption(example: Example, context: ReportContext) -> str:
    """What it said and what is right."""
    names = [f"{short(name, 20)} ({share:.0%})" for name, share in claimed(example, several=several_labels(context))]
    return f"It said {listed(names, 4) or 'nothing'}; it is {_truth(example)}."


def details(context: ReportContext) -> ClassesTested | None:
    """What the examiner found, where there was a model to look at."""
    if context.tested is None:
        return None
    assert isinstance(context.tested.details, ClassesTested)
    return context.tested.details


def _accuracy(context: ReportContext) -> tuple[Number, str, int] | None:
    """The number that the run is told by, the part that it is of, and how many pictures."""
    found, reached = details(context), context.reached
    if context.tested is not None and found is not None and counts_labels(context):
        name = "mAP" if "mAP" in found.numbers else "accuracy"
        return found.numbers[name], context.tested.part, context.tested.num
    if reached is None or "accuracy" not in reached.scores:
        return None
    value, num = float(reached.scores["accuracy"]), reached.count
    plain = counts_labels(context) or not num
    return Number(value=value) if plain else rightness(round(value * num), num), reached.part, num


def _reached(context: ReportContext) -> tuple[Words, list[Tile]]:
    found = _accuracy(context)
    if found is None:
        return (), []
    number, part, num = found
    value, ends = Span(percent(number.value), "strong"), _interval(number)
    between = ""
    if number.low is not None and number.high is not None:
        low, high = percent(number.low), percent(number.high)
        between = f"; with other such pictures it would most likely be between {low} and {high}"
    more = ", ".join([*([] if ends is None else [ends]), *([count(num, "picture")] if num else [])])
    if context.tested is not None and several_labels(context):
        sentence: Words = (f" On {seen_words(num, part)} it reached ", value, " ", _term("mAP"), f"{between}.")
        return sentence, [Tile((_term("mAP"),), value.text, more)]
    if counts_labels(context) and context.tested is None:
        sentence = (f" On {seen_words(0, part)}, ", value, " of its answers on single labels were right.")
        return sentence, [Tile("labels right", value.text, more)]
    right = f"it was right {count(round(number.value * num), 'time')}" if num else "it was right"
    return (f" Shown {seen_words(num, part)}, {right}: ", value, f"{between}."), [
        Tile("right answers", value.text, more)
    ]


def _numbers(context: ReportContext, found: ClassesTested) -> Section:
    """Every measured number with its interval; accuracy is the run's own, where it scored the same pictures."""
    assert context.tested is not None
    numbers, own = dict(found.numbers), _accuracy(context)
    if own is not None and "accuracy" in numbers and own[1:] == (context.tested.part, context.tested.num):
        numbers["accuracy"] = own[0]
    rows = tuple((_named(name), _value(each), _interval(each) or "not known") for name, each in numbers.items())
    blocks: list[Block] = [
        Text(looked_at(context.tested)),
        Table(head=("measure", "value", (_term("95% interval"),)), rows=rows),
    ]
    if found.guess is not None:
        words = f"one and the same answer for all would be right {percent(found.guess)} of the time at best."
        blocks.append(Text(f"For comparison: {words}", faint=True))
    if own is not None and own[2] > context.tested.num:
        words = f"The run itself measured {percent(own[0].value)} on all {own[2]:,} when it ended."
        blocks.append(Text(words, faint=True))
    return Section("How well it does", tuple(blocks))


def _pictures(context: ReportContext) -> Section:
    """The answers it was surest of, right and wrong."""
    assert context.tested is not None
    several = several_labels(context)
    words = (
        "Look at the mistakes first: some are hard for people too, some show what the model has not understood, and"
        " some are pictures with a wrong label. Percentages are how sure the model was."
    )
    blocks: list[Block] = [Text(words)]
    for right, title, examples, otherwise in (
        (True, "Right" if several else "Right, and surest of it", context.tested.best, "None was right."),
        (
            False,
            "Wrong, and furthest off" if several else "Wrong, and surest of it",
            context.tested.worst,
            "None was wrong.",
        ),
    ):
        shown = tuple(_card(example, right=right, several=several) for example in examples)
        blocks += [Heading(title), Pictures(rows=(shown,)) if shown else Text(otherwise)]
    return Section("Its best and its worst answers", tuple(blocks))


def _card(example: Example, *, right: bool, several: bool) -> Figure:
    said, truth = claimed(example, several=several), _truth(example)
    words: list[str | Span] = [
        Span("✓ ", "right") if right else Span("✗ ", "wrong"),
        "said " if said else "said nothing",
    ]
    for place, (name, share) in enumerate(said[:MOST_SAID]):
        words += [", " if place else "", Span(short(name, 30), "strong"), Span(f" ({share:.0%})", "faint")]
    if not right:
        words += ["\nis ", Span(truth, "strong")]
    alt = f"{truth} ({short(example.where)})"
    return Figure(pixels=example.picture, caption=tuple(words), alt=alt, hover=short(example.where, 200))


def _truth(example: Example) -> str:
    return listed([each.label for each in example.truth.classes], 4) or "nothing of these"


def _confusions(context: ReportContext, found: ClassesTested) -> Section:
    """What is taken for what."""
    names, blocks = context.classes, list[Block]()
    if len(names) <= MOST_DRAWN:
        words = (
            ": each row is a kind of picture, each column what the model took it for; the stronger the colour, the"
            " larger the share of the row. Blue squares on the diagonal are right, red ones are mistakes."
        )
        blocks.append(Text((Span("How to read it", term="confusion matrix"), words)))
        blocks.append(Matrix(classes=names, confusion=found.confusion, counts=found.per_class_counts))
    else:
        words = f"With more than {MOST_DRAWN} classes a matrix cannot be read; these are the commonest mistakes."
        blocks.append(Text(words))
    rows = tuple(
        (short(names[truth], 40), short(names[said], 40), f"{amount:,}", percent(share))
        for truth, said, amount, share in confused(found.confusion, found.per_class_counts, MOST_ROWS)
    )
    head = ("it is", "it said", "times", "of these pictures")
    table = Table(caption="The largest confusions", head=head, rows=rows, names=2)
    blocks.append(table if rows else Text("It made no mistake on these pictures."))
    return Section("What it confuses", tuple(blocks))


def _classes(context: ReportContext, dataset: DataSet, found: ClassesTested | None) -> Section:
    """Every class: its share of the training pictures, and how well it is told."""
    several, train = several_labels(context), dataset.splits.get("train")
    counts = [0] * dataset.num_classes if train is None else train.counts(dataset.num_classes).tolist()
    there = [amount for amount in counts if amount]
    word = "label" if several else "class"
    words = f"How many training pictures each {word} has"
    words += ", and how well it is told apart." if found is not None else "."
    if there and len(set(there)) > 1:
        words += f" The largest has {max(there) / min(there):.1f} times as many as the smallest."
    elif there:
        words += " All have equally many."
    order, most = sorted(range(len(counts)), key=lambda k: (-counts[k], k)), max(there, default=1)
    right = "average precision" if several else "right of the held-out pictures"
    head = (word, "training pictures", *(() if found is None else (right,)))

    def table(chosen: Sequence[int]) -> Table:
        rows = tuple(
            (
                short(dataset.classes[k]),
                Bar(counts[k] / most, f"{counts[k]:,}"),
                *(() if found is None else (_told_apart(found, k, several=several),)),
            )
            for k in chosen
        )
        return Table(head=head, rows=rows)

    blocks: list[Block] = [Text(words)]
    if len(order) <= MOST_CLASSES:
        return Section("Class by class", (*blocks, table(order)))
    if len(set(counts)) > 1:
        blocks += [
            *(Heading(f"The {ENDS} with the most training pictures"), table(order[:ENDS])),
            *(Heading(f"The {ENDS} with the fewest"), table(order[-ENDS:])),
        ]
    if found is not None:
        known = [k for k in order if found.per_class[k] is not None]
        worst = sorted(known, key=lambda k: (found.per_class[k] or 0.0, k))[:ENDS]
        blocks += [Heading(f"The {ENDS} told apart worst"), table(worst)]
    shown = order[:MOST_LISTED]
    more = f"All {len(order):,}" if len(shown) == len(order) else f"The first {MOST_LISTED:,} of {len(order):,}"
    return Section("Class by class", (*blocks, Folded(f"{more} classes", (table(shown),))))


def _told_apart(found: ClassesTested, k: int, *, several: bool) -> Words | Bar:
    share, seen = found.per_class[k], found.per_class_counts[k]
    if share is None:
        return "none held out"
    return Bar(share, percent(share) if several else f"{round(share * seen):,} of {seen:,}", right=True)


def _certainty(found: ClassesTested) -> Section:
    """Whether its percentages can be believed."""
    sure, right = percent(mean_confidence(found)), percent(found.numbers["accuracy"].value)
    words = (
        f"On average it was {sure} sure of its answers, and right {right} of the time. Each disc is a"
        " group of pictures of which it was about equally sure, larger for more of them: on the dashed line it is right"
        " as often as it says, below it is too sure of itself, above too modest."
    )
    label = f"How sure it was and how often it was right: {sure} sure on average, right {right}."
    return Section("Can its certainty be trusted?", (Text(words), Reliability(bins=found.reliability, label=label)))


def mean_confidence(found: ClassesTested) -> float:
    """How sure it was, on average."""
    num = sum(amount for _, _, amount in found.reliability)
    return sum(confidence * amount for confidence, _, amount in found.reliability) / num


def _term(name: str) -> Span:
    return Span(name, term=name)


def _named(name: str) -> Words:
    first = name.removeprefix("top-")
    shown = NAMES.get(name, f"right answer among the first {first}" if first != name else name)
    return (Span(shown, term="top-5" if first != name else name),)


def _value(found: Number) -> str:
    return percent(found.value) if found.percent else f"{found.value:.3f}"


def _interval(found: Number) -> str | None:
    if found.low is None or found.high is None:
        return None
    return f"{percent(found.low)} to {percent(found.high)}" if found.percent else f"{found.low:.3f} to {found.high:.3f}"

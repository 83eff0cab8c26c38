"""What a report says of any task: its scores, and its best and worst answers."""

import os

from vitlab.core.words import count
from vitlab.tasks.results import Example, Reached, ReportContext, Tested
from vitlab.tasks.sections import Figure, Opening, Pictures, Section, Span, Table, Text, Tile, Words

PARTS = {"test": "test", "val": "validation", "train": "training"}
NOT_SHOWN = ("score", "count")  # one of the others over again, and how many images there are


def seen_words(amount: int, part: str) -> str:
    """'400 pictures that it had never seen'."""
    kept = "was kept apart" if amount == 1 else "were kept apart"
    seen = "it had never seen" if part == "test" else kept
    return f"{count(amount, 'picture') if amount else 'pictures'} that {seen}"


def plain_opening(title: str, learned: str, reached: Reached | None, words: str) -> Opening:
    """The scores in the words of the task."""
    if reached is None or not words:
        return Opening(title=title, learned=learned)
    sentence = (f" On {seen_words(reached.count, reached.part)} it reached ", Span(words, "strong"), ".")
    first, _, rest = words.partition(", ")
    name, _, value = first.rpartition(" ")
    more = [*([rest] if rest else []), count(reached.count, "picture")]
    return Opening(title=title, learned=learned, reached=sentence, tiles=(Tile(name, value, ", ".join(more)),))


def looked_at(tested: Tested, what: str = "Measured for this report on ") -> Words:
    """How many pictures were looked at."""
    amount = f"all {tested.of:,} " if tested.num == tested.of else f"{tested.num:,} of the {tested.of:,} "
    pictures = f"{PARTS[tested.part]} pictures"
    unread = f" {tested.unread:,} could not be read." if tested.unread else ""
    more = "" if tested.complete else " They were chosen evenly; more are looked at with --images."
    return (what, amount, Span(pictures, term=pictures), f".{unread}{more}")


def score_section(context: ReportContext, shares: frozenset[str]) -> Section:
    """Every score: the run's own of its test part, where it has them."""
    tested, reached = context.tested, context.reached
    assert tested is not None
    assert reached is not None
    words = looked_at(tested)
    if reached is context.logged:
        rest = f" What follows is from {tested.num:,} of them, chosen evenly; more are looked at with --images."
        test = Span("test pictures", term="test pictures")
        words = (f"Measured when the run ended, on {reached.count:,} ", test, "." if tested.complete else f".{rest}")
    names = [name for name in reached.scores if name not in NOT_SHOWN]
    if set(names) <= {"loss"}:
        names.insert(0, "score")
    rows = tuple((name, score_words(name, reached.scores[name], shares)) for name in names)
    return Section("How well it does", (Text(words), Table(head=("measure", "value"), rows=rows)))


def score_words(name: str, value: float, shares: frozenset[str]) -> str:
    """A score as it is shown."""
    return f"{value:.1%}" if name in shares else f"{value:.4g}"


def answer_section(tested: Tested) -> Section:
    """The best and the worst answers; of masks the picture, what it is and what was said side by side."""
    rows: list[tuple[Figure, ...]] = []
    for title, examples in (("Best", tested.best), ("Worst", tested.worst)):
        figures = [_figures(title, example) for example in examples]
        if figures and len(figures[0]) == 1:
            rows.append(tuple(figure for (figure,) in figures))
        else:
            rows += figures
    words = "Look at the worst first: some are hard for people too, and some are pictures with a wrong label."
    masks = [example.answer for example in (*tested.best, *tested.worst) if example.answer.mask is not None]
    if masks:
        words += " Pixels that count for nothing show the picture itself."
    pictures = Pictures(rows=tuple(rows), legend=masks[0].labels if masks else ())
    return Section("Its best and its worst answers", (Text(words), pictures))


def _figures(title: str, example: Example) -> tuple[Figure, ...]:
    if example.answer.mask is None:
        caption = f"{title}: said {example.answer.words()}; is {example.truth.words()}."
        return (Figure(pixels=example.pixels, caption=caption),)
    name = os.path.basename(example.where)  # noqa: PTH119  it may be no path
    return (
        Figure(pixels=example.pixels, caption=f"{title}: {name}"),
        Figure(pixels=example.pixels, caption="as it is labelled", mask=example.truth.mask),
        Figure(pixels=example.pixels, caption=f"as predicted (score {example.score:.2f})", mask=example.answer.mask),
    )

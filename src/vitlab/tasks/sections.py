"""What a report says of a model's answers, as data: tables, words and pictures, which reporting draws."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias, final

from torch import Tensor

from vitlab.data.contract import Array
from vitlab.tasks.answer import Answer

Scores: TypeAlias = dict[str, float]
PARTS = {"test": "test", "val": "validation", "train": "training"}
UNTOLD = ("score", "count")  # one of the others over again, and how many images there are


@final
@dataclass(frozen=True, kw_only=True)
class Figure:
    """A picture, the colours of a mask over it where there is one, and words under it."""

    pixels: Array  # uint8 [H, W, 3], as the model saw it
    caption: str
    mask: Array | None = None  # class numbers uint8 [H, W]


@final
@dataclass(frozen=True, kw_only=True)
class Section:
    """A part of a report: paragraphs, a table whose rows begin with their names, rows of pictures side by side."""

    title: str
    words: tuple[str, ...] = ()
    head: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    figures: tuple[tuple[Figure, ...], ...] = ()
    legend: tuple[str, ...] = ()  # the names of the masks' classes, by their numbers


@final
@dataclass(frozen=True, kw_only=True)
class Example:
    """A held-out image, what it is and what the model said of it; its score is that of the image by itself."""

    where: str
    pixels: Array  # uint8 [H, W, 3], as the model saw it
    target: Tensor
    answer: Answer
    score: float


@final
@dataclass(frozen=True, kw_only=True)
class Tested:
    """A model over a part of a data set: the scores of all images, the sums that made them, and some answers."""

    part: str  # 'test' or 'val'
    of: int  # images of the whole part
    num: int  # images that were looked at and could be read
    scores: Scores
    sums: Tensor
    labels: tuple[str, ...]  # the model's, where it has any
    best: tuple[Example, ...] = ()
    worst: tuple[Example, ...] = ()

    @property
    def whole(self) -> bool:
        return self.num == self.of


def score_section(tested: Tested, shares: frozenset[str]) -> Section:
    """Every score."""
    amount = f"all {tested.of:,}" if tested.whole else f"{tested.num:,} of the {tested.of:,}"
    words = f"Measured for this report on {amount} {PARTS[tested.part]} pictures."
    if not tested.whole:
        words += " They were chosen evenly; more are looked at with --images."
    told = [name for name in tested.scores if name not in UNTOLD]
    if set(told) <= {"loss"}:
        told.insert(0, "score")
    rows = tuple((name, score_words(name, tested.scores[name], shares)) for name in told)
    return Section(title="How well it does", words=(words,), head=("measure", "value"), rows=rows)


def score_words(name: str, value: float, shares: frozenset[str]) -> str:
    """A score as it is shown."""
    return f"{value:.1%}" if name in shares else f"{value:.4g}"


def answer_section(tested: Tested, truth: Callable[[Tensor, Answer], Answer]) -> Section:
    """The best and the worst answers; of masks the picture, what it is and what was said side by side."""
    rows: list[tuple[Figure, ...]] = []
    for title, examples in (("Best", tested.best), ("Worst", tested.worst)):
        figures = [_figures(title, example, truth(example.target, example.answer)) for example in examples]
        if figures and len(figures[0]) == 1:
            rows.append(tuple(figure for (figure,) in figures))
        else:
            rows += figures
    words = "Look at the worst first: some are hard for people too, and some are pictures with a wrong label."
    masks = [example.answer for example in (*tested.best, *tested.worst) if example.answer.mask is not None]
    if masks:
        words += " Pixels that count for nothing show the picture itself."
    return Section(
        title="Its best and its worst answers",
        words=(words,),
        figures=tuple(rows),
        legend=masks[0].labels if masks else (),
    )


def _figures(title: str, example: Example, truth: Answer) -> tuple[Figure, ...]:
    if example.answer.mask is None:
        caption = f"{title}: said {example.answer.words()}; is {truth.words()}."
        return (Figure(pixels=example.pixels, caption=caption),)
    return (
        Figure(pixels=example.pixels, caption=f"{title}: {example.where}"),
        Figure(pixels=example.pixels, caption="as it is labelled", mask=truth.mask),
        Figure(pixels=example.pixels, caption=f"as predicted (score {example.score:.2f})", mask=example.answer.mask),
    )

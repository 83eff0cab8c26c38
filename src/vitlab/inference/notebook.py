"""How predictions show themselves in a notebook: each picture, small, beside what the model says of it."""

from collections import Counter
from collections.abc import Sequence

from vitlab.core import notebook
from vitlab.core.errors import ImageError
from vitlab.core.markup import Html, tag
from vitlab.core.pictures import class_color, palette_image
from vitlab.core.thumbnails import thumbnail
from vitlab.core.words import count, short
from vitlab.data.decoding import read_image
from vitlab.inference.predict import MOST_SHOWN, Prediction
from vitlab.tasks.contract import Answer

MOST_ROWS = 5  # of an answer


def shown(prediction: Prediction) -> Html:
    """One picture."""
    return tag("div", _figure(prediction, MOST_ROWS), style="max-width:30rem")


def shown_list(predictions: Sequence[Prediction]) -> Html:
    """The first pictures side by side, and how many there are of each most probable class."""
    grid = "display:grid;grid-template-columns:repeat(auto-fill,minmax(19rem,1fr));gap:.8em"
    figures = [_figure(prediction, 3) for prediction in predictions[:MOST_SHOWN]]
    left = len(predictions) - len(figures)
    return tag(
        "div",
        notebook.faint(_summary(predictions)),
        tag("div", *figures, style=grid),
        notebook.faint(f"… and {left:,} more") if left else None,
    )


def _summary(predictions: Sequence[Prediction]) -> str:
    """'12 pictures: 7 cat, 5 dog; 1 could not be read.'"""
    first = Counter(prediction.classes[0].label for prediction in predictions if prediction.classes)
    most = ", ".join(f"{amount:,} {short(label, 30)}" for label, amount in first.most_common(4))
    others = sum(first.values()) - sum(amount for _, amount in first.most_common(4))
    unread = sum(prediction.error is not None for prediction in predictions)
    return (
        count(len(predictions), "picture")
        + (f": {most}" if most else "")
        + (f" and {others:,} of other classes" if others else "")
        + (f"; {unread:,} could not be read" if unread else "")
        + "."
    )


def _figure(prediction: Prediction, most: int) -> Html:
    name = short(prediction.source or "a picture", 60)
    answer = prediction.answer
    said = notebook.line(prediction.error or "no answer") if answer is None else _rows(answer, most)
    return tag(
        "div",
        tag("div", *_pictures(prediction, name), style="flex:none;display:flex;gap:.3em"),
        tag("div", notebook.faint(name) if prediction.source else None, said, style="min-width:0"),
        style="display:flex;gap:.8em;align-items:flex-start;overflow-wrap:break-word",
    )


def _pictures(prediction: Prediction, name: str) -> list[Html]:
    """The picture, from its file where it has one that can still be read, and the mask where the answer is one."""
    small = prediction.small
    if small is None and prediction.source is not None and prediction.error is None:
        try:
            small = thumbnail(read_image(prediction.source))
        except ImageError:
            small = None
    found = [] if small is None else [notebook.image(small, name)]
    if prediction.answer is not None and prediction.answer.mask is not None:
        mask = thumbnail(palette_image(prediction.answer.mask).convert("RGB"))
        found.append(notebook.image(mask, f"the class of each pixel of {name}"))
    return found


def _rows(answer: Answer, most: int) -> Html:
    """The most probable classes with bars, the shares of a mask's classes in its colours, or numbers."""
    if answer.kind == "mask":
        colors = {name: class_color(i) for i, name in enumerate(answer.labels)}
        rows = [[value, _square(colors[name]), short(name)] for value, name in answer.rows()[:most]]
    elif answer.kind == "classes":
        shares = [scored.probability for scored in answer.classes]
        rows = [
            [value, notebook.bar(share), short(name)]
            for (value, name), share in zip(answer.rows()[:most], shares, strict=False)
        ]
    else:
        return notebook.table([">", ""], [[value, short(name)] for value, name in answer.rows()[:most]])
    return notebook.table([">", "", ""], rows) if rows else notebook.line("none of its classes")


def _square(color: tuple[int, int, int]) -> Html:
    style = f"display:inline-block;width:.8em;height:.8em;background:rgb{color};border:{notebook.LINE}"
    return tag("span", style=style)

"""How a run learned: loss, scores and learning rate from what it logged."""

from collections.abc import Sequence

from vitlab.core.markup import Html, tag
from vitlab.core.words import number, percent
from vitlab.objectives.collapse import CHANCE, TITLES
from vitlab.reporting.charts import Curve, Form, Point, line_chart
from vitlab.reporting.facts import Facts
from vitlab.reporting.glossary import term
from vitlab.reporting.learning import end, jump

SMALL = 0.01  # the largest learning rate below which all are written with an exponent


def curves(facts: Facts) -> list[Html]:
    """The charts, and what to look for in them."""
    epoch = facts.epoch_steps
    across = "passes over the training pictures" if epoch else "steps"

    def points(name: str) -> list[Point]:
        return [(step / (epoch or 1), value) for step, value in facts.record.series(name)]

    charts: list[Html] = []
    for title, name, form in (("Loss: lower is better", "loss", number), *_scores(facts)):
        found = [
            Curve("on training pictures", "b", points(name)),
            Curve("on validation pictures", "a", points(f"val {name}"), dots=True),
        ]
        if name == "loss" and any(found[1].points == points(f"val {other}") for _, other, _ in _scores(facts)):
            found.pop()  # a score over again, which has a chart of its own
        selects = len(found) > 1 and bool(found[1].points) and found[1].points == points("val score")
        chosen = facts.record.best if selects else None
        best = None if chosen is None else (chosen["step"] / (epoch or 1), float(chosen["val score"]))
        if drawn := [curve for curve in found if curve.points]:
            charts.append(_chart(title, drawn, across, form, best, last=facts.record.field("keep") == "last"))
    if len(lrs := points("lr")) > 1:  # one point is no course
        form = small_form(max(value for _, value in lrs))
        charts.append(_chart("Learning rate", [Curve("learning rate", "c", lrs, end=False)], across, form, None))
    if not charts:
        return [tag("p", "Nothing was logged yet.")]
    words = [
        *("Each ", term("step"), " changes the model a little so that the ", term("loss"), " falls."),
        " The line that matters is the one on pictures that it does not learn from." if points("val loss") else "",
    ]
    words += [f" {sentence}" for sentence in (_higher(facts), _unmixed(facts)) if sentence]
    return [tag("p", *words), tag("div", *charts, class_="charts")]


def _higher(facts: Facts) -> str:
    """Why the loss on training pictures ended above that on validation pictures, where it did and there is a reason."""
    losses, held_out = facts.record.series("loss"), facts.record.series("val loss")
    if not facts.harder or not losses or not held_out or end(losses) <= held_out[-1][1]:
        return ""
    reached = f"{number(end(losses))} against {number(held_out[-1][1])}"
    return (
        f"That the loss on training pictures ends higher ({reached}) is as it should be: {' and '.join(facts.harder)}."
    )


def _unmixed(facts: Facts) -> str:
    """That pictures were no longer mixed from some step on, and what the loss on training pictures did there."""
    ended = facts.mixed_steps
    if not ended or facts.record.step <= ended:
        return ""
    place = f"pass {ended / facts.epoch_steps:.3g}" if facts.epoch_steps else f"step {ended:,}"
    text = f"After {place} training pictures were no longer blended with each other (augmentation.mix_until)"
    found = jump(facts.record.series("loss"), ended)
    if found is None:
        return f"{text}."
    before, after = found
    did = "which makes them easier: the loss on them drops" if after < before else "and the loss on them rises"
    return f"{text}, {did} from {number(before)} to {number(after)} there."


def _scores(facts: Facts) -> list[tuple[str, str, Form]]:
    """Title, name and form of what is drawn besides the loss: all that the task logged."""
    shares, told, headless = facts.purpose.shares, facts.context, facts.purpose.headless
    names = dict.fromkeys(
        name.removeprefix("val ")
        for line in facts.record.lines
        for name in line
        if name.startswith("val ") or name in shares
    )
    kept = [name for name in names if name not in ("loss", "score", "count", CHANCE)]
    if headless:  # what selects is the loss
        return [(TITLES.get(name, name.capitalize()), name, _percent if name in shares else number) for name in kept]
    titled = [(facts.purpose.task.curve_title(name, told), name) for name in kept or ["score"]]
    return [(title, name, _percent if name in shares else number) for title, name in titled]


def _chart(
    title: str, found: Sequence[Curve], across: str, form: Form, best: Point | None, *, last: bool = False
) -> Html:
    """A figure; `last` is whether the run keeps the model of its last step, and not the best one."""
    key = tag("ul", *(tag("li", curve.name, class_=curve.style) for curve in found), class_="key")
    courses = [f"{curve.name}: from {form(curve.points[0][1])} to {form(curve.points[-1][1])}." for curve in found]
    drawn = line_chart(found, label=f"{title}. {' '.join(courses)}", x_label=across, form=form, mark=best)
    told = "" if best is None else percent(best[1]) if form is _percent else form(best[1])
    kept = "; the model is that of the last step" if last else ""
    caption = tag("figcaption", f"Best on validation pictures: {told}, in the ring{kept}.") if best else None
    return tag("figure", tag("h3", title), key if len(found) > 1 else None, drawn, caption)


def small_form(largest: float) -> Form:
    """How the values of one axis are written, all alike: '5e-4' where the largest is small, else '0.05'."""
    if largest >= SMALL:
        return lambda value: f"{value:.3g}"

    def exponent(value: float) -> str:
        digits, _, power = f"{value:.1e}".partition("e")
        return f"{digits.removesuffix('.0')}e{int(power)}" if value else "0"

    return exponent


def _percent(value: float) -> str:
    return f"{100 * value:.3g}%"

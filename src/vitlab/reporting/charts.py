"""Charts as <svg> elements in the colours of the page: small ones, so that their words can be read on a phone."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from vitlab.core.markup import Html, join, tag
from vitlab.core.words import count

WIDTH, HEIGHT = 400, 230
LEFT, RIGHT, TOP, BOTTOM = 46, 46, 12, 34
MOST_POINTS = 300  # of a line: more cannot be seen
CLOSEST = 12.0  # between two labels at the ends of lines
BESIDE, LETTER = 6, 8  # from the end of a line to its label, and a letter's width there, at most

Point = tuple[float, float]
Form = Callable[[float], str]


@dataclass(frozen=True)
class Curve:
    """A line of a chart; `style` is the class that colours it, `dots` marks its points, `end` tells its last value."""

    name: str
    style: str
    points: Sequence[Point]
    dots: bool = False
    end: bool = True


@dataclass(frozen=True)
class Scale:
    """From values to places; the ticks are round numbers that hold all values between them."""

    ticks: tuple[float, ...]
    start: float
    end: float

    def place(self, value: float) -> float:
        low, high = self.ticks[0], self.ticks[-1]
        return self.start + (value - low) / (high - low) * (self.end - self.start)


def line_chart(curves: Sequence[Curve], *, label: str, x_label: str, form: Form, mark: Point | None = None) -> Html:
    """Curves over one axis, the last value of each at its end; `mark` is a point with a ring around it."""
    drawn = [dataclasses.replace(curve, points=thinned(curve.points)) for curve in curves if curve.points]
    assert drawn
    xs = [x for curve in drawn for x, _ in curve.points]
    ys = [y for curve in drawn for _, y in curve.points]
    longest = max((len(form(curve.points[-1][1])) for curve in drawn if curve.end), default=0)
    across = Scale(ticks(min(0.0, *xs), max(xs), 5), LEFT, WIDTH - max(RIGHT, BESIDE + LETTER * longest))
    upward = Scale(ticks(min(ys), max(ys), 5), HEIGHT - BOTTOM, TOP)
    parts = [*_axes(across, upward, x_label, form)]
    for curve in drawn:
        places = [(across.place(x), upward.place(y)) for x, y in curve.points]
        parts.append(
            tag("polyline", class_=f"curve {curve.style}", points=" ".join(f"{x:.1f},{y:.1f}" for x, y in places))
        )
        if curve.dots or len(places) == 1:
            parts += [
                tag(
                    "circle", tag("title", f"{curve.name}: {form(y)}"), class_=f"dot {curve.style}", cx=px, cy=py, r=2.6
                )
                for (px, py), (_, y) in zip(places, curve.points, strict=True)
            ]
    if mark is not None:
        parts.append(tag("circle", class_="ring", cx=across.place(mark[0]), cy=upward.place(mark[1]), r=6))
    parts += _ends([curve for curve in drawn if curve.end], across, upward, form)
    return _svg(parts, label)


def reliability_chart(bins: Sequence[tuple[float, float, int]], *, label: str) -> Html:
    """How often it was right (upwards) for how sure it was (across), a disc for each bin, larger for more images."""
    across = Scale((0, 0.25, 0.5, 0.75, 1), LEFT + 8, WIDTH - RIGHT)
    upward = Scale((0, 0.25, 0.5, 0.75, 1), HEIGHT - BOTTOM, TOP)
    parts = [*_axes(across, upward, "how sure it was", _percent)]
    beside = f"translate(9 {(upward.start + upward.end) / 2:.1f}) rotate(-90)"
    parts.append(tag("text", "how often it was right", class_="axis", text_anchor="middle", transform=beside))
    parts.append(tag("line", class_="guide", x1=across.start, y1=upward.start, x2=across.end, y2=upward.end))
    most = max((amount for _, _, amount in bins), default=1)
    for sure, right, amount in bins:
        words = f"{count(amount, 'picture')}: {sure:.0%} sure, right {right:.0%} of the time"
        disc = {"cx": across.place(sure), "cy": upward.place(right), "r": 3 + 8 * math.sqrt(amount / most)}
        parts.append(tag("circle", tag("title", words), class_="disc", **disc))
    return _svg(parts, label)


def ticks(low: float, high: float, about: int) -> tuple[float, ...]:
    """Round numbers, evenly apart, from at most `low` to at least `high`."""
    if high <= low:
        low, high = (low - 0.5, high + 0.5) if low == 0 else (low - abs(low) / 2, high + abs(high) / 2)
    raw = (high - low) / about
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return tuple(step * place for place in range(first, last + 1))


def tick_labels(values: Sequence[float], form: Form) -> list[str]:
    """The values as `form` has them; where two would read the same, with as many decimals as tell them apart."""
    labels = [form(value) for value in values]
    if len(set(labels)) == len(labels):
        return labels
    scale, unit = (100, "%") if labels[0].endswith("%") else (1, "")
    exact = max(abs(value) for value in values) * scale * 1e-9
    for decimals in range(12):
        found = [f"{scale * value:.{decimals}f}" for value in values]
        if all(abs(float(text) - scale * value) <= exact for text, value in zip(found, values, strict=True)):
            return [f"{text}{unit}" for text in found]
    return labels


def thinned(points: Sequence[Point], most: int = MOST_POINTS) -> list[Point]:
    """At most so many points: means of equal runs of them, and the last as it is."""
    if len(points) <= most:
        return list(points)
    size = math.ceil((len(points) - 1) / (most - 1))
    parts = [points[start : min(start + size, len(points) - 1)] for start in range(0, len(points) - 1, size)]
    means = [(sum(x for x, _ in part) / len(part), sum(y for _, y in part) / len(part)) for part in parts]
    return [*means, points[-1]]


def _axes(across: Scale, upward: Scale, x_label: str, form: Form) -> list[Html]:
    parts: list[Html] = []
    for value, words in zip(upward.ticks, tick_labels(upward.ticks, form), strict=True):
        y = upward.place(value)
        parts.append(tag("line", class_="grid", x1=across.start, x2=across.end, y1=y, y2=y))
        parts.append(tag("text", words, x=across.start - 6, y=y + 4, text_anchor="end"))
    for value in across.ticks:
        words = _percent(value) if across.ticks[-1] == 1 else f"{value:,.10g}"
        parts.append(tag("text", words, x=across.place(value), y=upward.start + 16, text_anchor="middle"))
    parts.append(
        tag("text", x_label, class_="axis", x=(across.start + across.end) / 2, y=HEIGHT - 3, text_anchor="middle")
    )
    return parts


def _ends(curves: Sequence[Curve], across: Scale, upward: Scale, form: Form) -> list[Html]:
    """The last value of each curve beside its end, moved apart where two would overlap."""
    ends = sorted(((upward.place(c.points[-1][1]), c) for c in curves), key=lambda end: end[0])
    places = [place for place, _ in ends]
    for i in range(1, len(places)):
        places[i] = max(places[i], places[i - 1] + CLOSEST)
    over = max(max(places, default=0) - (HEIGHT - BOTTOM), 0)
    return [
        tag(
            "text",
            form(c.points[-1][1]),
            class_=f"end {c.style}",
            x=across.place(c.points[-1][0]) + BESIDE,
            y=y - over + 4,
        )
        for y, (_, c) in zip(places, ends, strict=True)
    ]


def _svg(parts: list[Html], label: str) -> Html:
    return tag("svg", join(parts), class_="chart", role="img", aria_label=label, viewBox=f"0 0 {WIDTH} {HEIGHT}")


def _percent(value: float) -> str:
    return f"{100 * value:.10g}%"

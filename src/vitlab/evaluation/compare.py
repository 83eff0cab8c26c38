"""Models side by side as in the paper's table 2: a row per data set, a column per model, the cost in the last row."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitlab.core.files import atomic_file
from vitlab.core.words import one_line
from vitlab.evaluation.contract import KNOWN, KNOWN_WORDS, EvaluationError, Metric, Result
from vitlab.evaluation.published.tables import MAIN_ROWS, Edition, published_columns, published_notes
from vitlab.evaluation.results import figure, markdown, number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# a result's cost, its row's name, and what the figure is divided by; the last that any model has is the last row
COSTS = (
    ("parameters", "Parameters (M)", 1e6),
    ("flops", "GFLOPs per image", 1e9),
    ("exaflops", "Training exaFLOPs", 1.0),
    ("device_days", "Training device-days", 1.0),
    ("core_days", "TPUv3-core-days", 1.0),
)
NOTHING = "–"
MAIN = "5-shot"  # of several metrics, what a figure shows; else the first


@dataclass(frozen=True)
class Row:
    """What one line compares: one protocol, one data set, one metric."""

    data: str
    protocol: str
    metric: str

    @property
    def label(self) -> str:
        return f"{self.data}, {self.metric if self.protocol in self.metric else f'{self.protocol} {self.metric}'}"


@dataclass(frozen=True)
class Column:
    """A model's results; those of the paper are marked as published."""

    model: str
    metrics: Mapping[Row, Metric]
    cost: Mapping[str, float]
    published: bool = False

    @property
    def title(self) -> str:
        return f"{self.model}, published" if self.published else self.model


@dataclass(frozen=True)
class Comparison:
    """Columns over common rows, and what has to be said about them."""

    rows: tuple[Row, ...]
    columns: tuple[Column, ...]
    main: tuple[Row, ...] = ()  # of several metrics of one protocol on one data set, what a figure shows
    labels: Mapping[Row, str] = field(default_factory=dict)  # the paper's names, where a row is one of its
    notes: tuple[str, ...] = ()

    def label(self, row: Row) -> str:
        return self.labels.get(row, row.label)

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Column names and lines, in percent; a cell without a result is a dash, and cost comes last."""
        lines = [[self.label(row), *(_cell(column.metrics.get(row)) for column in self.columns)] for row in self.rows]
        for name, label, unit in COSTS:
            found = [column.cost.get(name) for column in self.columns]
            if any(value is not None for value in found):
                lines.append([label, *(NOTHING if value is None else number(value / unit) for value in found)])
        return ["", *(f">{column.title}" for column in self.columns)], lines

    def markdown(self) -> str:
        """The table and its notes, to paste."""
        return "\n\n".join([markdown(*self.table()), *map(one_line, self.notes)])

    def __repr__(self) -> str:
        return self.markdown()

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        from vitlab.evaluation.notebook import shown_comparison

        return shown_comparison(self)


def compare(results: Sequence[Result], *, published: Edition | None = None) -> Comparison:
    """Results of one or several models; two for the same model, data and protocol are refused."""
    if not results and published is None:
        raise EvaluationError("There is nothing to compare: give at least one result, or --published.")
    cells: dict[str, dict[Row, Metric]] = {}
    costs: dict[str, dict[str, float]] = {}
    main: dict[Row, None] = {}
    notes: list[str] = []
    for result in results:
        column = cells.setdefault(result.model, {})
        known = costs.setdefault(result.model, {})
        if result.protocol == "cost":  # what was asked for goes before what other protocols note beside
            known.update(result.cost)
            continue
        costs[result.model] = {**result.cost, **known}
        found = {Row(result.data, result.protocol, name): metric for name, metric in result.metrics.items()}
        if found.keys() & column.keys():
            raise EvaluationError(
                f"Two results are of {result.protocol} on {result.data} with the model {result.model}: name the models"
                " apart (--name) or leave one out."
            )
        column.update(found)
        main[next((row for row in found if row.metric == MAIN), next(iter(found)))] = None
        if result.counts.get("images", 0) < result.settings.get("images in all", 0):
            some, all_of_them = result.counts["images"], result.settings["images in all"]
            notes.append(f"{result.model}: {result.protocol} over {some:,} of {all_of_them:,} images.")
        if result.settings.get(KNOWN):
            notes.append(f"{result.model}: {result.protocol} on {result.data} is no finding: {KNOWN_WORDS}")
    rows = sorted(dict.fromkeys(row for column in cells.values() for row in column), key=_blocks(cells))
    columns = [Column(model, metrics, costs[model]) for model, metrics in cells.items()]
    if published is None:
        return Comparison(tuple(rows), tuple(columns), tuple(main), notes=tuple(notes))
    comparison = _with_published(rows, columns, tuple(main), published)
    return dataclasses.replace(comparison, notes=(*notes, *comparison.notes))


def _blocks(cells: Mapping[str, Mapping[Row, Metric]]) -> Callable[[Row], int]:
    """Rows of one protocol on one data set stand together, also where models have other metrics of it."""
    order = dict.fromkeys((row.data, row.protocol) for column in cells.values() for row in column)
    places = {key: place for place, key in enumerate(order)}
    return lambda row: places[row.data, row.protocol]


def draw(comparison: Comparison) -> "Figure":
    """The results as dots with their spreads, and beside them accuracy against cost where two models have one."""
    from matplotlib.figure import Figure

    priced = _priced(comparison)
    height = 1.6 + 0.42 * max(len(comparison.main), 3) + 0.2 * len(comparison.columns)
    drawing = Figure(figsize=(11.5 if priced else 7.5, height), layout="constrained")
    axes = drawing.subplots(1, 2 if priced else 1, squeeze=False, width_ratios=[3, 2] if priced else [1])[0]
    styles = {column.title: _style(place, column.published) for place, column in enumerate(comparison.columns)}
    _draw_rows(axes[0], comparison, styles)
    if priced:
        _draw_cost(axes[1], priced, styles)
    handles, titles = axes[0].get_legend_handles_labels()
    drawing.legend(handles, titles, loc="outside lower center", ncols=min(len(titles), 3), frameon=False, fontsize=9)
    return drawing


def save_figure(comparison: Comparison, path: Path) -> None:
    """The figure as .png or .svg, whole or not at all."""
    if path.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise EvaluationError(f"A figure's name ends in .png, .svg or .pdf, not '{path.name}'.")
    with atomic_file(path) as partial:
        draw(comparison).savefig(partial, dpi=150, format=path.suffix[1:].lower())


def _with_published(rows: list[Row], columns: list[Column], main: tuple[Row, ...], edition: Edition) -> Comparison:
    """The paper's rows first, in its order, each where a measured one belongs into it."""
    papers = published_columns(edition)
    homes: dict[str, Row] = {}
    labels: dict[Row, str] = {}
    for name, row in MAIN_ROWS.items():
        candidates = [
            measured
            for protocol in row.protocols
            for measured in rows
            if measured.protocol == protocol and measured.data == row.data and row.metric in (None, measured.metric)
        ]
        if any(name in paper.metrics for paper in papers):
            homes[name] = candidates[0] if candidates else Row(row.data, row.protocols[0], row.metric or "top-1")
            labels[homes[name]] = row.label
    shown = [*homes.values(), *(row for row in rows if row not in labels)]
    added = [
        Column(
            paper.model,
            {homes[name]: metric for name, metric in paper.metrics.items()},
            {} if paper.core_days is None else {"core_days": paper.core_days},
            published=True,
        )
        for paper in papers
    ]
    notes = (f"Published figures: {papers[0].source}.", *published_notes(edition))
    kept = [row for row in shown if row in labels or row in main]
    return Comparison(tuple(shown), (*columns, *added), tuple(kept), labels, notes)


def _cell(metric: Metric | None) -> str:
    return NOTHING if metric is None else figure(metric, percent_sign=False)


def _priced(comparison: Comparison) -> tuple[str, list[tuple[Column, float, float]]] | None:
    """A cost that two models or more have, and for each of those the cost and its mean over the rows all of them have.

    Only fractions count; the dearest kind of cost goes first: what training took says more than what an image takes.
    """
    for name, label, unit in reversed(COSTS):
        columns = [column for column in comparison.columns if column.cost.get(name)]
        common = [
            row
            for row in comparison.main
            if all(row in column.metrics and column.metrics[row].unit == "fraction" for column in columns)
        ]
        if len(columns) > 1 and common:
            over = comparison.label(common[0]) if len(common) == 1 else f"mean of {len(common)} rows"
            points = [
                (column, column.cost[name] / unit, sum(column.metrics[row].value for row in common) / len(common))
                for column in columns
            ]
            return f"{label}\n{over}", points
    return None


def _style(place: int, published: bool) -> dict[str, Any]:
    color, marker = f"C{place % 10}", "osD^vPX"[place % 7]
    return {"color": color, "marker": marker, "markerfacecolor": "white" if published else color, "markersize": 7}


def _draw_rows(axes: "Axes", comparison: Comparison, styles: Mapping[str, dict[str, Any]]) -> None:
    """One line per row, models a little apart from each other so that none hides another."""
    num = len(comparison.columns)
    rows = [
        row
        for row in comparison.main
        if all(row not in column.metrics or column.metrics[row].unit == "fraction" for column in comparison.columns)
    ]
    for place, column in enumerate(comparison.columns):
        shift = 0.0 if num == 1 else 0.5 * (place / (num - 1) - 0.5)
        found = [(at + shift, column.metrics[row]) for at, row in enumerate(rows) if row in column.metrics]
        axes.errorbar(
            [100 * metric.value for _, metric in found],
            [at for at, _ in found],
            xerr=[100 * (metric.spread or 0.0) for _, metric in found],
            linestyle="none",
            label=column.title,
            capsize=2,
            **styles[column.title],
        )
    axes.set_yticks(range(len(rows)), [comparison.label(row) for row in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlabel("percent (bars: spread)")
    axes.grid(axis="x", alpha=0.3)
    for line in range(1, len(rows)):
        axes.axhline(line - 0.5, color="0.85", linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)


def _draw_cost(
    axes: "Axes", priced: tuple[str, list[tuple[Column, float, float]]], styles: Mapping[str, dict[str, Any]]
) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    label, points = priced
    name, over = label.split("\n")
    for column, price, value in points:
        axes.plot(price, 100 * value, linestyle="none", **styles[column.title])
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.tick_params(axis="x", labelrotation=30)  # five figures do not stand beside each other
    axes.margins(0.15)
    axes.set_xlabel(f"{name} (log)")
    axes.set_ylabel(f"percent, {over}")
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)

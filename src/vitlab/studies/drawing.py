"""The figures of studies: dots with their spread for rows, lines with theirs along a size or a cost."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from vitlab.core.words import number
from vitlab.studies.findings import Sample

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def dots(samples: Mapping[str, Sample], *, label: str, published: Mapping[str, float] | None = None) -> "Figure":
    """A line per row: each seed, the mean with its standard deviation, and the paper's own beside where there is one.

    What the paper has was measured otherwise, so that it has an axis of its own.
    """
    from matplotlib.figure import Figure

    known = {place: published[row] for place, row in enumerate(samples) if row in published} if published else {}
    height = 1.1 + 0.34 * len(samples)
    figure = Figure(figsize=(9.5 if known else 7.0, height), layout="constrained")
    axes = figure.subplots(1, 2 if known else 1, squeeze=False, sharey=True, width_ratios=[3, 2] if known else [1])[0]
    draw_dots(axes[0], samples, label)
    if known:
        values = [100 * value for value in known.values()]
        axes[1].plot(values, list(known), "D", color="C1", markerfacecolor="white")
        axes[1].set_xlabel("percent, published")
        axes[1].grid(axis="x", alpha=0.3)
        axes[1].spines[["top", "right"]].set_visible(False)
    return figure


def draw_dots(axes: "Axes", samples: Mapping[str, Sample], label: str) -> None:
    for place, found in enumerate(samples.values()):
        seeds = [100 * value for value in found.values]  # equal ones are darker
        axes.plot(seeds, [place - 0.22] * len(seeds), ".", color="k", alpha=0.4, markersize=9, markeredgewidth=0)
        axes.errorbar(100 * found.mean, place, xerr=100 * (found.deviation or 0.0), fmt="o", color="C0", capsize=3)
    axes.set_yticks(range(len(samples)), list(samples))
    axes.set_ylim(len(samples) - 0.5, -0.5)
    axes.set_xlabel(f"{label}\n(grey: single seeds; bar: standard deviation)")
    axes.grid(axis="x", alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def lines(
    panels: Mapping[str, Mapping[str, Sequence[tuple[float, Sample]]]],
    *,
    across: str | Mapping[str, str],
    label: str = "percent",
    joined: bool = True,
) -> "Figure":
    """A panel per measure, in it a line per family along a logarithmic axis; bars are standard deviations.

    `across` names the axis, of each panel where they differ. Where points are not `joined` there are no lines.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    figure = Figure(figsize=(1.0 + 4.2 * len(panels), 3.8), layout="constrained")
    for axes, (title, series) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True):
        for place, (name, points) in enumerate(series.items()):
            axes.errorbar(
                [x for x, _ in points],
                [100 * found.mean for _, found in points],
                yerr=[100 * (found.deviation or 0.0) for _, found in points],
                marker="osD^vPX"[place % 7],
                linestyle="-" if joined else "",
                capsize=3,
                label=name,
            )
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 3)))  # more would run into each other
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set_xlabel(across if isinstance(across, str) else across[title])
        axes.set_ylabel(label)
        axes.set_title(title, fontsize=10)
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize=9)
    return figure


def bars(groups: Mapping[str, Mapping[str, Sample]], *, label: str) -> "Figure":
    """Bars side by side: a group per measure, in it one bar per row, with standard deviations."""
    from matplotlib.figure import Figure

    rows = list(dict.fromkeys(row for group in groups.values() for row in group))
    figure = Figure(figsize=(2.0 + 0.35 * len(groups) * (len(rows) + 1), 3.8), layout="constrained")
    axes = figure.subplots()
    width = 0.8 / max(len(rows), 1)
    for column, row in enumerate(rows):
        found = [(place, group[row]) for place, group in enumerate(groups.values()) if row in group]
        axes.bar(
            [place + (column - (len(rows) - 1) / 2) * width for place, _ in found],
            [100 * each.mean for _, each in found],
            width,
            yerr=[100 * (each.deviation or 0.0) for _, each in found],
            capsize=2,
            label=row,
        )
    axes.set_xticks(range(len(groups)), list(groups))
    axes.set_ylabel(label)
    axes.grid(axis="y", alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside right upper", frameon=False, fontsize=9)
    return figure

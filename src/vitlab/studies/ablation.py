"""A study in which one thing at a time differs from a base: a table of rows, dots, and what was found."""

from collections.abc import Mapping, Sequence

from vitlab.core.words import flops, millions
from vitlab.studies.context import Context, Trained, samples
from vitlab.studies.contract import StudyResult, Table
from vitlab.studies.drawing import dots
from vitlab.studies.findings import Sample, against
from vitlab.training.recipe import Recipe

NOTHING = "–"
PUBLISHED = "The published column is from other data by another protocol: compare its order, not its values."


def ablation(
    context: Context,
    rows: Mapping[str, Recipe],
    *,
    base: str,
    title: str,
    published: Mapping[str, float] | None = None,
) -> StudyResult:
    """Every row with every seed, scored on test; `published` are the paper's own fractions by row."""
    runs = context.over_seeds(rows)
    return ablated(context, runs, samples(runs), base=base, title=title, published=published)


def ablated(
    context: Context,
    runs: Mapping[str, Sequence[Trained]],
    found: Mapping[str, Sample],
    *,
    base: str,
    title: str,
    published: Mapping[str, float] | None = None,
) -> StudyResult:
    """The result from the runs of each row and their scores."""
    papers = published or {}
    lines = [
        [
            row,
            millions(context.parameters(runs[row][0])),
            flops(context.flops(runs[row][0])),
            each.percent(),
            *([f"{100 * papers[row]:.2f}" if row in papers else NOTHING] if papers else []),
        ]
        for row, each in found.items()
    ]
    columns = ["", ">parameters", ">FLOPs per image", ">test %", *([">published %"] if papers else [])]
    scores = {row: each.to_json() for row, each in found.items()}
    numbers = {"test accuracy": scores, "base": base, "published": dict(papers)}
    findings = against(base, found)
    if len(papers) > 1:
        findings.append(PUBLISHED)
    figure = dots(found, label="test accuracy, percent", published=papers)
    return StudyResult(tables=(Table(title, columns, lines),), findings=findings, figure=figure, numbers=numbers)

"""`vitlab study leaderboard`: both leaderboards with our models, recipes and scores beside them; trains nothing."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitlab.studies.contract import Study, StudyResult, Table

if TYPE_CHECKING:
    from vitlab.studies.boards import BoardRow
    from vitlab.studies.context import Context

NOT_RUN = "not run here"
STYLE = "body{font:15px system-ui;margin:2rem}td,th{padding:.3em .8em;text-align:left;border-bottom:1px solid #ccc}"


@dataclass(frozen=True, kw_only=True)
class LeaderboardOptions:
    """The leaderboards of CIFAR-100 and ImageNet, and beside each row our model: parameters, FLOPs, recipes, score."""

    results: tuple[str, ...] = ()
    """Results of `vitlab evaluate` (--out FILE.json): a score whose model (--name) is the row's model or recipe."""
    html: str | None = None
    """Also write the tables to this HTML file."""


def run(context: "Context", options: LeaderboardOptions) -> StudyResult:
    from vitlab.core.files import atomic_file
    from vitlab.evaluation.published.tables import published_table
    from vitlab.evaluation.results import read_result
    from vitlab.studies.boards import BOARDS, board_rows

    results = [read_result(Path(path)) for path in options.results]
    tables, findings, numbers = list[Table](), list[str](), dict[str, Any]()
    for data in context.wanted(list(BOARDS)):
        rows, published = board_rows(data, results), published_table(BOARDS[data])
        tables.append(_table(published.title, rows))
        findings += [row.why for row in rows if row.why]
        findings += [f"{row.method}: {row.missing}" for row in rows if row.missing]
        numbers[data] = [_numbers(row) for row in rows]
    findings.append(
        "The sources of published figures are in docs/published.md. FLOPs are counted here: two per multiply-add, for"
        " one image at the resolution of the fine-tuning."
    )
    result = StudyResult(tables=tables, findings=findings, numbers=numbers)
    if options.html is not None:
        with atomic_file(Path(options.html)) as partial:
            partial.write_text(page(result), encoding="utf-8")
    return result


def page(result: StudyResult) -> str:
    """The tables and what is said of them as a page that stands alone."""
    from vitlab.core.markup import Html, tag
    from vitlab.inspection.document import document

    def row(kind: str, cells: Sequence[str]) -> Html:
        return tag("tr", *(tag(kind, cell) for cell in cells))

    parts: list[str] = [tag("h1", "Leaderboards")]
    for table in result.tables:
        head = row("th", [name.lstrip(">") for name in table.columns])
        parts += [tag("h2", table.title), tag("table", head, *(row("td", cells) for cells in table.rows))]
    parts += [tag("p", finding) for finding in result.findings]
    return document("Leaderboards", parts, STYLE)


def _table(title: str, rows: "list[BoardRow]") -> Table:
    from vitlab.core.words import flops
    from vitlab.evaluation.results import figure
    from vitlab.studies.boards import PARAMETERS, in_millions

    lines: list[list[str]] = []
    for row in rows:
        stated = row.published.get(PARAMETERS)
        spread = row.published["top-1"].spread
        lines.append(
            [
                str(row.rank),
                row.method,
                f"{row.published['top-1'].value:.2f}" + ("" if spread is None else f" ± {spread:.2f}"),
                "–" if stated is None else f"{stated.value:,.10g}M",
                row.ours.model,
                "–" if row.count is None else in_millions(row.count.parameters),
                "–" if row.count is None else f"{flops(row.count.flops)} at {row.count.side} px",
                ", then ".join(row.ours.recipes) or "–",
                NOT_RUN if row.measured is None else figure(row.measured),
            ]
        )
    columns = [
        ">#",
        "method",
        ">top-1 %",
        ">parameters, published",
        "our model",
        ">parameters here",
        ">FLOPs",
        "recipes",
        ">measured here",
    ]
    return Table(title, columns, lines)


def _numbers(row: "BoardRow") -> dict[str, Any]:
    return {
        "method": row.method,
        "published": {
            column: {
                "value": figure.value,
                "spread": figure.spread,
                "source": figure.source.cite,
                "place": figure.place,
            }
            for column, figure in row.published.items()
        },
        "model": row.ours.model,
        "recipes": list(row.ours.recipes),
        "parameters": None if row.count is None else row.count.parameters,
        "flops": None if row.count is None else row.count.flops,
        "image_size": None if row.count is None else row.count.side,
        "why": row.why,
        "measured": None if row.measured is None else row.measured.value,
    }


STUDY = Study(
    name="leaderboard",
    summary="the leaderboards of CIFAR-100 and ImageNet beside our models, recipes and scores",
    options=LeaderboardOptions,
    run=run,
    scales=(),
    seeds=1,
    examples=("", "--json", "--only imagenet --html leaderboard.html", "--results b16-cifar100.json"),
    published="the leaderboards as Papers with Code had them",
)

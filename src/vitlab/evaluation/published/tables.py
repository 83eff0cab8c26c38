"""Published figures, each with its source: the paper's tables in both versions, and the leaderboards.

A table is a file beside this one. A cell is a value, a value with its spread, nothing, or an object that says what is
not the table's own: another source, another place in it, or that the figure is from memory. `python docs/published.py`
makes docs/published.md of them.
"""

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Literal, TypeAlias

from vitlab.core.errors import unknown_name
from vitlab.data.sources.published.vtab import GROUPS
from vitlab.evaluation.contract import Metric

Edition: TypeAlias = Literal["v1", "v2"]
ROOM = files("vitlab.evaluation.published")
CORE_DAYS = "core-days"  # the row of a main table that is no accuracy
TABLES = (  # in the order of the page
    "vit-v2-main",
    "vit-v1-main",
    "vit-v2-models",
    "vit-v2-data",
    "vit-v2-vtab",
    "vit-v2-data-size",
    "vit-v2-scaling",
    "vit-v2-positions",
    "vit-v2-optimizers",
    "vit-v2-self-supervision",
    "vit-v2-objectnet",
    "vit-v2-pretraining",
    "vit-v2-finetuning",
    "leaderboard-cifar100",
    "leaderboard-imagenet",
)


@dataclass(frozen=True)
class Source:
    """A paper or a page, and in which public text its figures were seen."""

    cite: str
    seen: str


@dataclass(frozen=True)
class Figure:
    """A number as it is printed; what is from memory no test may rest on."""

    value: float
    spread: float | None
    source: Source
    place: str
    from_memory: bool = False


@dataclass(frozen=True)
class Table:
    """A table of figures by row and column, in the paper's order."""

    name: str
    title: str
    source: Source
    place: str
    unit: str  # percent, fraction or number
    spread_of: str
    row_units: Mapping[str, str]  # of rows whose unit is another
    column_units: Mapping[str, str]  # likewise
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    figures: Mapping[tuple[str, str], Figure]
    notes: tuple[str, ...]

    def unit_of(self, row: str, column: str) -> str:
        return self.row_units.get(row) or self.column_units.get(column) or self.unit

    def row(self, name: str) -> dict[str, Figure]:
        """The figures of a row by column, those that there are."""
        return {column: self.figures[name, column] for column in self.columns if (name, column) in self.figures}

    @property
    def remarks(self) -> tuple[str, ...]:
        """The notes, and which figures no public text states."""
        named = {row: [column for column, figure in self.row(row).items() if figure.from_memory] for row in self.rows}
        found = "; ".join(f"{row} of {', '.join(columns)}" for row, columns in named.items() if columns)
        memory = f"From memory, since no public text that states them was found: {found}."
        return (*self.notes, memory) if found else self.notes

    def column(self, name: str) -> dict[str, Figure]:
        """The figures of a column by row, those that there are."""
        return {row: self.figures[row, name] for row in self.rows if (row, name) in self.figures}


@dataclass(frozen=True)
class PublishedRow:
    """A row of the paper's main table: its data set, and the protocols whose results belong into it."""

    label: str
    data: str
    protocols: tuple[str, ...] = ("finetune", "accuracy")
    metric: str | None = None  # the only one that belongs there; None: the first of a result


@dataclass(frozen=True)
class PublishedColumn:
    """A model of the paper's main table; `core_days` are TPUv3-core-days of pre-training."""

    model: str
    metrics: Mapping[str, Metric]  # by row
    core_days: float | None
    source: str


MAIN_ROWS = {
    "imagenet": PublishedRow("ImageNet", "imagenet"),
    "imagenet real": PublishedRow("ImageNet ReaL", "imagenet", ("real",)),
    "cifar10": PublishedRow("CIFAR-10", "cifar10"),
    "cifar100": PublishedRow("CIFAR-100", "cifar100"),
    "pets": PublishedRow("Oxford-IIIT Pets", "pets"),
    "flowers102": PublishedRow("Oxford Flowers-102", "flowers102"),
    "vtab": PublishedRow("VTAB (19 tasks)", "vtab", ("vtab",), "mean"),
}


@functools.cache
def published_table(name: str) -> Table:
    """The table of that name."""
    if name not in TABLES:
        raise unknown_name("published table", name, TABLES)
    document = _read(name)
    columns: tuple[str, ...] = tuple(document["columns"])
    figures = {
        (row, column): _figure(cell, document)
        for row, cells in document["rows"].items()
        for column, cell in zip(columns, cells, strict=True)
        if cell is not None
    }
    return Table(
        name=name,
        title=document["title"],
        source=published_sources()[document["source"]],
        place=document["place"],
        unit=document["unit"],
        spread_of=document.get("spread", ""),
        row_units=document.get("row_units", {}),
        column_units=document.get("column_units", {}),
        rows=tuple(document["rows"]),
        columns=columns,
        figures=figures,
        notes=tuple(document.get("notes", ())),
    )


@functools.cache
def published_sources() -> dict[str, Source]:
    """Every source by its short name."""
    return {name: Source(**source) for name, source in _read("sources").items()}


def published_columns(edition: Edition) -> list[PublishedColumn]:
    """The models of one edition of the paper, with what its main table prints for each."""
    table = published_table(f"vit-{edition}-main")
    days = table.row(CORE_DAYS)
    return [
        PublishedColumn(
            column,
            {row: _metric(figure, table) for row, figure in table.column(column).items() if row != CORE_DAYS},
            days[column].value if column in days else None,
            f"{table.source.cite}, {table.place}",
        )
        for column in table.columns
    ]


def published_notes(edition: Edition) -> tuple[str, ...]:
    """What has to be said of an edition's main table."""
    return published_table(f"vit-{edition}-main").remarks


def group_means(model: str) -> dict[str, float]:
    """The means of a model's VTAB tasks by group, in percent, as the paper's figure 2 draws them."""
    tasks = published_table("vit-v2-vtab").column(model)
    return {group: sum(tasks[task].value for task in members) / len(members) for group, members in GROUPS.items()}


def published_study(study: str) -> dict[str, float]:
    """What the paper has for the rows of a study, as fractions; nothing where it has no such table."""
    if study == "self-supervision":
        sizes, masked = published_table("vit-v2-data-size"), published_table("vit-v2-self-supervision")
        percent = {
            "from scratch": sizes.figures["ImageNet: imagenet", "ViT-B/16"],
            "supervised": sizes.figures["JFT-300M: imagenet", "ViT-B/16"],
            "masked patches": masked.figures["self-supervised", "imagenet"],
        }
        return {row: figure.value / 100 for row, figure in percent.items()}
    if study != "positions":
        return {}
    table = published_table("vit-v2-positions")
    places = {"stem": "stem", "every layer": "every layer", "shared": "every layer, shared"}
    named = {f"{row}, {places[column]}": figure.value for (row, column), figure in table.figures.items()}
    named["none"] = named.pop("none, stem")
    named["relative, every layer"] = named.pop("relative, stem")  # offsets act on attention, in every layer
    return named


def _figure(cell: Any, document: Mapping[str, Any]) -> Figure:
    if isinstance(cell, list):
        value, spread = cell
        cell = {"value": value, "spread": spread}
    elif not isinstance(cell, dict):
        cell = {"value": cell}
    return Figure(
        value=float(cell["value"]),
        spread=cell.get("spread"),
        source=published_sources()[cell.get("source", document["source"])],
        place=cell.get("place", document["place"]),
        from_memory=cell.get("basis") == "memory",
    )


def _metric(figure: Figure, table: Table) -> Metric:
    if figure.spread is None:
        return Metric(value=figure.value / 100, count=1, spread=None, spread_of="")
    return Metric(value=figure.value / 100, count=3, spread=figure.spread / 100, spread_of=table.spread_of)


def _read(name: str) -> dict[str, Any]:
    return json.loads((ROOM / f"{name}.json").read_text(encoding="utf-8"))

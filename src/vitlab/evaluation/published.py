"""The paper's own table of results, shipped as data, to stand beside measured ones."""

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Literal, TypeAlias

from vitlab.evaluation.contract import Metric

Edition: TypeAlias = Literal["v1", "v2"]


@dataclass(frozen=True)
class PublishedRow:
    """A row of the paper's table: its data set, and the protocols whose results belong into it."""

    label: str
    data: str
    protocols: tuple[str, ...]
    metric: str | None = None  # the only one that belongs there; None: the first of a result


@dataclass(frozen=True)
class PublishedColumn:
    """A model of the paper's table; `core_days` are TPUv3-core-days of pre-training."""

    model: str
    metrics: Mapping[str, Metric]  # by row
    core_days: float | None
    source: str
    note: str = ""


def published_rows() -> dict[str, PublishedRow]:
    """The rows of the table, in its order."""
    rows: dict[str, dict[str, Any]] = _document()["rows"]
    return {
        name: PublishedRow(row["label"], row["data"], tuple(row["protocols"]), row.get("metric"))
        for name, row in rows.items()
    }


def published_columns(edition: Edition) -> list[PublishedColumn]:
    """The models of one edition of the paper, with what it prints for each."""
    chosen = _document()["editions"][edition]
    return [
        PublishedColumn(
            column["model"],
            {row: _metric(values, chosen["spread"]) for row, values in column["percent"].items()},
            column["core_days"],
            chosen["source"],
            column.get("note", ""),
        )
        for column in chosen["columns"]
    ]


def _metric(values: list[float], spread_of: str) -> Metric:
    value, spread = values[0] / 100, values[1] / 100 if len(values) > 1 else None
    count = 3 if spread is not None else 1
    return Metric(value=value, count=count, spread=spread, spread_of="" if spread is None else spread_of)


@functools.cache
def _document() -> dict[str, Any]:
    return json.loads((files("vitlab.evaluation") / "published.json").read_text(encoding="utf-8"))

"""Results as JSON files and back, and as tables that can be pasted into Markdown."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vitlab.core.config import from_dict
from vitlab.core.errors import ConfigError, Error
from vitlab.core.record import read_json, write_json
from vitlab.core.words import one_line
from vitlab.evaluation.contract import KNOWN, KNOWN_WORDS, EvaluationError, Metric, Result

FORMAT = "vitlab result 1"
MOST_WORDS = 3  # metrics on one line


def result_to_dict(result: Result) -> dict[str, Any]:
    """The result as JSON values; a number that is not finite becomes null, which a metric's value may not be."""
    for name, metric in result.metrics.items():
        if not math.isfinite(metric.value):
            what = f"{result.protocol} on {result.data}" if result.data else result.protocol
            raise EvaluationError(f"{what}: {name} is {metric.value}, which is no result.")
    fields = {field.name: _plain(getattr(result, field.name)) for field in dataclasses.fields(result)}
    return {"format": FORMAT, **fields}


def result_from_dict(data: Mapping[str, Any], *, where: str) -> Result:
    """A result from JSON values, with unknown fields and wrong types refused."""
    fields = dict(data)
    if fields.pop("format", None) != FORMAT:
        raise ConfigError(f"{where} is no result of vitlab's: its 'format' is not '{FORMAT}'.")
    metrics = fields.get("metrics")
    if not isinstance(metrics, Mapping) or not metrics:
        raise ConfigError(f"{where}: metrics must be a table with at least one metric.")
    fields["metrics"] = {
        name: from_dict(Metric, _table(metric, f"{where}: {name}"), where=f"{where}: {name}")
        for name, metric in metrics.items()
    }
    return from_dict(Result, fields, where=where)


def write_result(result: Result, path: Path) -> None:
    """The result as a JSON file, whole or not at all."""
    write_json(path, result_to_dict(result))


def read_result(path: Path) -> Result:
    """A result that `write_result` wrote, or one sentence on what is wrong with the file."""
    try:
        return result_from_dict(read_json(path), where=str(path))
    except ConfigError:
        raise
    except Error as error:
        raise EvaluationError(str(error)) from error


def figure(metric: Metric, *, percent_sign: bool = True) -> str:
    """A value with its spread: '88.55 ± 0.04%' for a fraction, '137 ± 2' for a number."""
    if metric.unit == "fraction":
        text = f"{100 * metric.value:.2f}"
        if metric.spread is not None:
            text += f" ± {100 * metric.spread:.2f}"
        return text + ("%" if percent_sign else "")
    text = number(metric.value)
    return text if metric.spread is None else f"{text} ± {number(metric.spread)}"


def number(value: float) -> str:
    """Whole numbers as they are, others to four figures, without an exponent where it can be read without one."""
    if float(value).is_integer() and abs(value) < 1e15:
        return f"{int(value)}"
    if 1e-4 <= abs(value) < 1e15:
        digits = max(3 - math.floor(math.log10(abs(value))), 0)
        return f"{value:.{digits}f}"
    return f"{value:.3g}"


def result_title(result: Result) -> str:
    """'B_16.npz: fewshot on pets (test), 12.3 s'."""
    split = result.settings.get("split")
    where = f" on {result.data}" + (f" ({split})" if split else "") if result.data else ""
    return one_line(f"{result.model}: {result.protocol}{where}, {result.seconds:.1f} s")


def result_words(result: Result) -> str:
    """On one line: what was measured, and the first metrics."""
    shown = [f"{name} {figure(metric)}" for name, metric in list(result.metrics.items())[:MOST_WORDS]]
    more = f" and {len(result.metrics) - MOST_WORDS} more" if len(result.metrics) > MOST_WORDS else ""
    return one_line(f"{result.protocol} of {result.model} on {result.data or 'no data'}: {', '.join(shown)}{more}")


def result_table(result: Result) -> tuple[list[str], list[list[str]]]:
    """Column names and a line per metric; spreads only where there are any."""
    columns, rows = ["metric", ">value", ">count", "spread"], result_rows(result)
    return (columns, rows) if any(row[3] for row in rows) else (columns[:3], [row[:3] for row in rows])


def result_notes(result: Result) -> list[str]:
    """What has to be said of a result: what was chosen and on what, and what its figures are not."""
    chosen: dict[str, list[str]] = {}
    for name, choice in result.selected.items():
        chosen.setdefault(choice["on"], []).append(f"{name} {choice['value']}")
    notes = [f"Chosen on {where}: {', '.join(choices)}." for where, choices in chosen.items()]
    if result.settings.get(KNOWN):
        notes.append(f"This is no few-shot finding: {KNOWN_WORDS}")
    matched = result.settings.get("classes_matched", "by name")
    notes += [] if matched == "by name" else [f"Classes were matched {matched}."]
    notes += [note for note in result.settings.get("notes", ()) if not note.startswith("Read as ")]
    return [one_line(note) for note in notes]


def result_rows(result: Result) -> list[list[str]]:
    """A line per metric: its name, its value with spread, what it is over, and what the spread is of."""
    return [[name, figure(metric), str(metric.count), metric.spread_of] for name, metric in result.metrics.items()]


def markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown that can be read as it is; a column whose name begins with '>' is set to the right."""
    names = [name.lstrip(">") for name in columns]
    right = [name.startswith(">") for name in columns]
    cells = [[one_line(" ".join(cell.split("\n"))).replace("|", "\\|") for cell in row] for row in [names, *rows]]
    widths = [max(max(map(len, column)), 3) for column in zip(*cells, strict=True)]
    rule = ["-" * (width - 1) + ":" if end else "-" * width for width, end in zip(widths, right, strict=True)]
    return "\n".join(_line(row, widths, right) for row in [cells[0], rule, *cells[1:]])


def _line(row: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    placed = (
        cell.rjust(width) if end else cell.ljust(width) for cell, width, end in zip(row, widths, right, strict=True)
    )
    return f"| {' | '.join(placed)} |"


def _table(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ConfigError(f"{where} must be a table of value, count, ..., not {value!r}.")
    return value


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist())
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    assert value is None or isinstance(value, str | bool | int | float), f"{type(value)} has no place in JSON"
    return value

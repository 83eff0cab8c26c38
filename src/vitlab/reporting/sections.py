"""The sections of a report about the run: its cost, how it was made, what comes next."""

import json
import statistics
from collections.abc import Sequence

from vitlab.core.markup import Html, join, tag
from vitlab.core.words import command, duration, flops, millions, number
from vitlab.evaluation.cost import Spent, exaflops
from vitlab.reporting.advice import Note
from vitlab.reporting.facts import Facts
from vitlab.reporting.glossary import Glossary, anchor, term
from vitlab.reporting.record import RunRecord


def cost(facts: Facts) -> list[Html]:
    """Time, speed, arithmetic and device."""
    spent, record = facts.spent, facts.record
    rows: list[tuple[str, str]] = []
    if spent is not None and spent.images:
        rows.append(("time", duration(spent.seconds)))
        rows.append(("pictures looked at, repeats included", f"{spent.images:,}"))
        if facts.epoch_steps:
            passes = term("epoch", "passes over the training pictures (epochs)")
            rows.append((passes, number(record.step / facts.epoch_steps)))
    speeds = [speed for _, speed in record.series("images per second")]
    if speeds:
        rows.append(("speed in training", f"{statistics.median(speeds):,.0f} pictures per second"))
    rows.append(("device", record.device))
    if facts.model_cost is not None:
        rows.append((term("parameters", "size of the model (parameters)"), millions(facts.model_cost["parameters"])))
        rows.append((term("FLOPs", "arithmetic for one picture"), flops(facts.model_cost["flops"])))
        if spent is not None and spent.images:
            rows.append((term("FLOPs", "arithmetic of the training"), _arithmetic(facts.model_cost["flops"], spent)))
    return [table(rows)]


def how(facts: Facts) -> list[Html]:
    """The command, the environment and the recipe, to do it again."""
    record = facts.record
    parts: list[Html] = []
    if record.command:
        parts += [tag("p", "The exact command:"), tag("pre", command(*record.command))]
        if (processes := record.environment.get("processes", 1)) != 1:
            parts.append(tag("p", f"It was started on {processes} processes (torchrun)."))
    if rows := _environment(record):
        parts.append(tag("details", tag("summary", "The environment"), table(rows), class_="printed"))
    recipe = json.dumps(record.recipe, indent=2, ensure_ascii=False)
    parts.append(tag("details", tag("summary", "The complete recipe"), tag("pre", recipe)))
    if facts.notes:
        lines = [tag("li", line) for line in facts.notes]
        parts.append(tag("details", tag("summary", "How the data was understood"), tag("ul", *lines)))
    return parts


def noted(found: Sequence[Note]) -> Html:
    """What stands out, a box each."""
    return tag(
        "ul",
        *(tag("li", note.text, None if note.command is None else tag("pre", note.command)) for note in found),
        class_="notes",
    )


def steps(found: Sequence[Note]) -> Html:
    """What to do next, a command each."""
    parts: list[Html] = []
    for note in found:
        parts += [tag("dt", note.text), tag("dd", tag("pre", note.command or ""))]
    return tag("dl", *parts, class_="steps")


def explained(glossary: Glossary) -> Html:
    """All terms."""
    parts: list[Html] = []
    for name, words in glossary.terms.items():
        parts += [tag("dt", name, id=anchor(name)), tag("dd", words)]
    words = f"{len(glossary.terms)} terms, each in a sentence"
    return tag("details", tag("summary", words), tag("dl", *parts, class_="terms"), class_="printed")


def _arithmetic(forward: float, spent: Spent) -> str:
    whole = exaflops(forward, spent.images)
    return f"{flops(whole * 1e18)} ({number(whole)} exaFLOPs)"


def table(rows: Sequence[tuple[str, str]]) -> Html:
    """Names and values beside them."""
    lines = [tag("tr", tag("th", name, scope="row"), tag("td", value)) for name, value in rows]
    return tag("table", tag("tbody", *lines), class_="plain")


def _environment(record: RunRecord) -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    for name, value in record.environment.items():
        if name in ("command", "recipe") or value in (None, [], {}):  # which are shown by themselves
            continue
        if isinstance(value, dict):
            value = ", ".join(f"{key} {version}" for key, version in value.items() if version)
        elif isinstance(value, list):
            value = ", ".join(str(item) for item in value)
        rows.append((name, str(value)))
    return rows


def section(title: str, name: str, parts: Sequence[str]) -> Html:
    """A section with its heading, to which the contents lead."""
    return tag("section", tag("h2", title, id=name), join(list(parts), "\n"), aria_labelledby=name)

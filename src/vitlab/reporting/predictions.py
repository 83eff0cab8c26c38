"""The pictures of its predictions that a run wrote, and what its features are like: sections of the report."""

from vitlab.core.errors import Error
from vitlab.objectives import collapse
from vitlab.objectives.shown import Shown, read_shown
from vitlab.reporting.record import RunRecord
from vitlab.tasks.sections import Figure, Pictures, Remark, Section, Text


def last_scores(record: RunRecord) -> dict[str, float]:
    """What was logged at the last evaluation."""
    lines = [line for line in record.lines if isinstance(line.get("val score"), int | float)]
    found = lines[-1] if lines else {}
    return {name[4:]: value for name, value in found.items() if name.startswith("val ") and value is not None}


def collapse_remarks(record: RunRecord) -> list[Remark]:
    """What is wrong with the features at the end of the run."""
    return [Remark(sentence) for sentence in collapse.alarms(last_scores(record)).values()]


def objective_sections(record: RunRecord, missing: list[str]) -> list[Section]:
    """What an objective shows of its predictions, and what the features are like; what cannot be read is `missing`."""
    found: list[Section] = []
    try:
        if (shown := read_shown(record.folder)) is not None:
            found.append(_drawn(*shown))
    except Error as error:
        missing.append(str(error))
    if sentences := collapse.described(last_scores(record)):
        found.append(Section("What its features are like", tuple(Text(sentence) for sentence in sentences)))
    return found


def _drawn(shown: Shown, step: int) -> Section:
    rows = tuple(tuple(Figure(pixels=pixels, caption=words) for words, pixels in row) for row in shown.rows)
    when = f"These pictures were held out, and this was at step {step:,}." if shown.held_out else f"Step {step:,}."
    words = f"{shown.words} {when}"
    return Section(shown.title, (Text(words), Pictures(rows=rows)))

"""The pictures of its predictions that a run wrote, and what its features are like: sections of the report."""

import math

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
    """What is wrong with the features at the end of the run, and whether they got worse."""
    found = [Remark(sentence) for sentence in collapse.alarms(last_scores(record)).values()]
    both = _before_and_after(record)
    if both is not None and both[1] < both[0] - _error(record, both[0]):
        found.append(
            Remark(
                f"The nearest training pictures name the class of {both[1]:.1%} of held-out pictures, and of"
                f" {both[0]:.1%} before the run: by this measure the model that it started from is the better one."
                " Fewer epochs, a lower learning rate or another method may help; what counts is how well it is"
                " fine-tuned."
            )
        )
    return found


def neighbours_said(record: RunRecord) -> str | None:
    """How often nearest neighbours name the class, in a line; None where there are no labels."""
    if (both := _before_and_after(record)) is not None:
        return f"{collapse.KNN}: {both[0]:.2%} before, {both[1]:.2%} after"
    last = last_scores(record).get(collapse.KNN)
    return None if last is None else f"{collapse.KNN}: {last:.2%}"


def _before_and_after(record: RunRecord) -> tuple[float, float] | None:
    """How often nearest neighbours name the class, where it was measured before the first step too."""
    found = record.series(f"val {collapse.KNN}")
    return (found[0][1], found[-1][1]) if len(found) > 1 and found[0][0] == 0 else None


def _error(record: RunRecord, share: float) -> float:
    """The standard error of a share of held-out pictures; the true one is less, the pictures being the same."""
    counts = record.series("val count")
    return math.sqrt(share * (1 - share) / max(counts[-1][1], 1)) if counts else 0.0


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

"""The head of a report: what was trained on what in plain words, how far it is, and the numbers that matter."""

import statistics

from vitlab.core.markup import Html, tag
from vitlab.core.words import count, duration, millions, percent, short
from vitlab.objectives import OBJECTIVES
from vitlab.reporting.drawn import plain, spoken
from vitlab.reporting.facts import Facts
from vitlab.reporting.glossary import Glossary, term
from vitlab.tasks.report import plain_opening
from vitlab.tasks.sections import Opening

STATES = {
    "done": ("done", "finished"),
    "early": ("done", "finished early: it stopped getting better"),
    "under way": ("open", "training is under way"),
    "unfinished": ("open", "stopped before its end"),
}


def summary(facts: Facts, glossary: Glossary) -> list[Html]:
    """The title, a few sentences, and the numbers that matter."""
    kind, words = STATES[facts.record.state]
    opening = _opening(facts)
    parts = [
        tag("p", words, class_=f"state {kind}"),
        tag("h1", f"{facts.title}: {opening.title}"),
        tag("p", _trained(facts, opening), spoken(opening.reached, glossary), class_="lead"),
    ]
    if facts.record.state in ("under way", "unfinished"):
        parts += _progress(facts)
    return [*parts, tag("dl", *_tiles(facts, opening, glossary), class_="tiles")]


def opened(facts: Facts) -> tuple[str, str]:
    """The title and the first sentences without markup."""
    opening = _opening(facts)
    return f"{facts.title}: {opening.title}", f"{_trained(facts, opening)}{plain(opening.reached)}"


def _opening(facts: Facts) -> Opening:
    """As the task has it; of a model without a head, the loss that its objective reached."""
    if not facts.purpose.headless:
        return facts.purpose.task.opening(facts.context)
    reached = facts.context.reached
    words = "" if reached is None or "loss" not in reached.scores else f"loss {reached.scores['loss']:.4g}"
    learned = f"to describe pictures by numbers ({objective_words(facts)})"
    return plain_opening("features of pictures", learned, reached, words)


def objective_words(facts: Facts) -> str:
    """The name of the objective, with what it is where that is known."""
    name = str(facts.record.field("objective.name", "supervised"))
    known = {kind.name: kind.summary for kind in OBJECTIVES}
    plain = name.removeprefix("given:").rsplit(":", 1)[-1]
    return f"{name}: {known[name]}" if name in known else f"by the objective {plain}"


def _trained(facts: Facts, opening: Opening) -> str:
    record = facts.record
    model = short(str(record.field("model.source", "a model")), 50)
    data = short(str(record.data.get("name") or record.field("data.source", "its data")), 50)
    begun = " that had been trained before" if record.pretrained else ""
    kind = "picture" if facts.purpose.headless or not facts.purpose.task.target else "labelled picture"
    amount = f"{count(facts.num_train, kind)} of " if facts.num_train else ""
    verb = {"under way": "is learning", "unfinished": "was learning"}.get(record.state, "learned")
    return f"A vision model ({model}){begun} {verb} {opening.learned} from {amount}{data}."


def _progress(facts: Facts) -> list[Html]:
    record, total = facts.record, facts.total_steps
    if not total:
        return [tag("p", f"{count(record.step, 'step was', 'steps were')} logged so far.")]
    words = f"Step {record.step:,} of {total:,} ({percent(min(record.step / total, 1))})"
    paces = [pace for _, pace in record.series("seconds per step")]
    if record.state == "under way" and paces:
        words += f"; about {duration((total - record.step) * statistics.median(paces))} left"
    return [tag("progress", value=record.step, max=total, aria_label=words), tag("p", f"{words}.")]


def _tiles(facts: Facts, opening: Opening, glossary: Glossary) -> list[Html]:
    tiles = [tile(spoken(each.name, glossary), each.value, each.more) for each in opening.tiles]
    if facts.num_train:
        tiles.append(tile("learned from", f"{facts.num_train:,}", opening.learned_from))
    if facts.spent is not None and facts.spent.images:
        tiles.append(tile("training took", duration(facts.spent.seconds), facts.record.device))
    if facts.model_cost is not None:
        tiles.append(tile(term("parameters", "size"), millions(facts.model_cost["parameters"]), "parameters"))
    return tiles


def tile(name: str, value: str, more: str) -> Html:
    """A number that matters."""
    value_and_more = tag("dd", tag("div", value, class_="big"), tag("div", more, class_="small"))
    return tag("div", tag("dt", name), value_and_more, class_="tile")

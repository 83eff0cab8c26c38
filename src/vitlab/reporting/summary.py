"""The head of a report: what was trained on what in plain words, how far it is, and the numbers that matter."""

import statistics

from vitlab.objectives import OBJECTIVES
from vitlab.reporting.facts import Facts, Headline
from vitlab.reporting.glossary import term
from vitlab.reporting.markup import Html, tag
from vitlab.reporting.words import count, duration, listed, millions, percent, short

STATES = {
    "done": ("done", "finished"),
    "early": ("done", "finished early: it stopped getting better"),
    "under way": ("open", "training is under way"),
    "unfinished": ("open", "stopped before its end"),
}
SEEN = {"test": "pictures that it had never seen", "val": "pictures that were kept apart"}


def summary(facts: Facts) -> list[Html]:
    """The title, a few sentences, and the numbers that matter."""
    kind, words = STATES[facts.record.state]
    told = [_trained(facts), *_told(facts)]
    parts = [
        tag("p", words, class_=f"state {kind}"),
        tag("h1", f"{facts.title}: {_what(facts)}"),
        tag("p", *told, class_="lead"),
    ]
    if facts.record.state in ("under way", "unfinished"):
        parts += _progress(facts)
    return [*parts, tag("dl", *_tiles(facts), class_="tiles")]


def _what(facts: Facts) -> str:
    if facts.purpose.headless:
        return "features of pictures"
    if not facts.purpose.tells_classes:
        return facts.purpose.summary
    if facts.multi_label:
        return f"naming {count(len(facts.classes), 'thing')} in pictures"
    return f"telling {count(len(facts.classes), 'kind')} of pictures apart" if facts.classes else "a vision model"


def _told(facts: Facts) -> list[str]:
    """How well it does, in a sentence."""
    if facts.purpose.tells_classes:
        return [] if facts.headline is None else _reached(facts.headline)
    best = facts.reached
    if best is None or not best.words:
        return []
    shown = f"{best.count:,} {SEEN[best.part]}" if best.count else SEEN[best.part]
    return [f" On {shown} it reached ", tag("strong", best.words), "."]


def _task(facts: Facts) -> tuple[str, str]:
    """What it learned to do, and what from."""
    if facts.purpose.headless:
        return f"to describe pictures by numbers ({objective_words(facts)})", "picture"
    if not facts.purpose.tells_classes:
        return f"to say {facts.purpose.summary}", "labelled picture"
    task = "to name what is in a picture" if facts.multi_label else "to tell pictures apart"
    return task + (f" ({listed(facts.classes)})" if facts.classes else ""), "labelled picture"


def objective_words(facts: Facts) -> str:
    """The name of the objective, with what it is where that is known."""
    name = str(facts.record.field("objective.name", "supervised"))
    known = {kind.name: kind.summary for kind in OBJECTIVES}
    plain = name.removeprefix("given:").rsplit(":", 1)[-1]
    return f"{name}: {known[name]}" if name in known else f"by the objective {plain}"


def _trained(facts: Facts) -> str:
    record = facts.record
    model = short(str(record.field("model.source", "a model")), 50)
    data = short(str(record.data.get("name") or record.field("data.source", "its data")), 50)
    begun = " that had been trained before" if record.field("model.pretrained") else ""
    task, kind = _task(facts)
    amount = f"{count(facts.num_train, kind)} of " if facts.num_train else ""
    verb = {"under way": "is learning", "unfinished": "was learning"}.get(record.state, "learned")
    return f"A vision model ({model}){begun} {verb} {task} from {amount}{data}."


def _reached(best: Headline) -> list[str]:
    value, low, high = best.number.value, best.number.low, best.number.high
    between = ""
    if low is not None and high is not None:
        between = f"; with other such pictures it would most likely be between {percent(low)} and {percent(high)}"
    strong = tag("strong", percent(value))
    if best.name == "mAP":
        return [f" On {best.count:,} {SEEN[best.part]} it reached ", strong, " ", term("mAP"), f"{between}."]
    if best.name == "labels":
        return [f" On {SEEN[best.part]}, ", strong, " of its answers on single labels were right."]
    right = f"it was right {count(round(value * best.count), 'time')}" if best.count else "it was right"
    shown = f"{best.count:,} {SEEN[best.part]}" if best.count else SEEN[best.part]
    return [f" Shown {shown}, {right}: ", strong, f"{between}."]


def _progress(facts: Facts) -> list[Html]:
    record, total = facts.record, facts.total_steps
    if not total:
        return [tag("p", f"{count(record.step, 'step was', 'steps were')} logged so far.")]
    words = f"Step {record.step:,} of {total:,} ({percent(min(record.step / total, 1))})"
    paces = [pace for _, pace in record.series("seconds a step")]
    if record.state == "under way" and paces:
        words += f"; about {duration((total - record.step) * statistics.median(paces))} left"
    return [tag("progress", value=record.step, max=total, aria_label=words), tag("p", f"{words}.")]


def _tiles(facts: Facts) -> list[Html]:
    tiles: list[Html] = []
    best = facts.headline if facts.purpose.tells_classes else None
    if best is not None:
        name = {"mAP": term("mAP"), "labels": "labels right"}.get(best.name, "right answers")
        low, high = best.number.low, best.number.high
        more = [] if low is None or high is None else [f"{percent(low)} to {percent(high)}"]
        more += [count(best.count, "picture")] if best.count else []
        tiles.append(_tile(name, percent(best.number.value), ", ".join(more)))
    if not facts.purpose.tells_classes and (reached := facts.reached) is not None and reached.words:
        first, _, rest = reached.words.partition(", ")
        name, _, value = first.rpartition(" ")
        more = [rest] if rest else []
        tiles.append(_tile(name, value, ", ".join([*more, count(reached.count, "picture")])))
    if facts.measured is not None and facts.measured.guess is not None:
        tiles.append(_tile("without looking", percent(facts.measured.guess), "one answer for all, at best"))
    if facts.num_train:
        kinds = f" of {count(len(facts.classes), 'class', 'classes')}" if facts.purpose.tells_classes else ""
        tiles.append(_tile("learned from", f"{facts.num_train:,}", f"pictures{kinds}"))
    if facts.spent is not None and facts.spent.images:
        tiles.append(_tile("training took", duration(facts.spent.seconds), facts.record.device))
    if facts.model_cost is not None:
        tiles.append(_tile(term("parameters", "size"), millions(facts.model_cost["parameters"]), "parameters"))
    return tiles


def _tile(name: str, value: str, more: str) -> Html:
    told = tag("dd", tag("div", value, class_="big"), tag("div", more, class_="small"))
    return tag("div", tag("dt", name), told, class_="tile")

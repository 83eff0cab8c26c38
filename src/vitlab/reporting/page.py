"""`report.html`: the sections of a report in their order, one file that refers to nothing outside it."""

from importlib.resources import files

from vitlab.inspection.document import document
from vitlab.reporting import answers, sections
from vitlab.reporting.advice import next_steps, notes
from vitlab.reporting.curves import curves
from vitlab.reporting.drawn import drawn
from vitlab.reporting.facts import Facts
from vitlab.reporting.markup import Html, tag
from vitlab.reporting.summary import summary


def page(facts: Facts) -> str:
    """The whole page."""
    found: list[tuple[str, str, list[Html]]] = []
    classes, purpose = facts.purpose.tells_classes, facts.purpose
    advised = notes(
        facts.record, facts.dataset if classes else None, facts.measured, scores_are_shares="score" in purpose.shares
    )
    if advised:
        found.append(("What stands out", "notable", [sections.noted(advised)]))
    found.append(("How it learned", "curves", curves(facts)))
    if facts.measured is not None:
        found.append(("How well it does", "numbers", sections.numbers(facts)))
        found.append(("Its best and its worst answers", "answers", answers.examples(facts)))
        if facts.measured.confusion:
            found.append(("What it confuses", "confusion", answers.confusions(facts)))
    if facts.tested is not None:
        for place, section in enumerate(purpose.task.sections(facts.tested)):
            found.append((section.title, f"task-{place}", drawn(section)))
    if facts.dataset is not None and classes:
        found.append(("Class by class", "classes", answers.classes(facts)))
    if facts.measured is not None and facts.measured.reliability:
        found.append(("Can its certainty be trusted?", "certainty", answers.certainty(facts.measured)))
    if facts.inside is not None:
        found.append(("Inside the model", "inside", answers.inside(facts.inside)))
    found.append(("What it cost", "cost", sections.cost(facts)))
    found.append(("How to do it again", "again", sections.how(facts)))
    looked_at = facts.measured or facts.tested
    steps = next_steps(facts.record, looked_at, has_model=facts.model_cost is not None, purpose=purpose)
    found.append(("What to do next", "next", [sections.steps(steps)]))
    if facts.missing:
        found.append(("What is not here, and why", "missing", [tag("p", sentence) for sentence in facts.missing]))
    found.append(("The terms", "terms", [sections.glossary()]))
    contents = tag("nav", *(tag("a", title, href=f"#{name}") for title, name, _ in found), aria_label="Contents")
    parts: list[str] = [tag("header", *summary(facts), contents)]
    parts += [sections.section(title, name, content) for title, name, content in found]
    version = facts.record.environment.get("packages", {}).get("vitlab")
    made = f"Made by vitlab{f' {version}' if version else ''} from the run's folder {facts.record.folder}."
    parts.append(tag("footer", tag("p", made)))
    style = files("vitlab.reporting").joinpath("report.css").read_text(encoding="utf-8")
    return document(f"{facts.title}: a run's report", parts, style)

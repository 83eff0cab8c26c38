"""`report.html`: the sections of a report in their order, one file that refers to nothing outside it."""

from importlib.resources import files

from vitlab.core.markup import Html, tag
from vitlab.inspection.document import document
from vitlab.reporting import sections
from vitlab.reporting.advice import next_steps, notes
from vitlab.reporting.curves import curves
from vitlab.reporting.drawn import drawn
from vitlab.reporting.facts import Facts
from vitlab.reporting.glossary import Glossary
from vitlab.reporting.inside import drawn_inside
from vitlab.reporting.predictions import collapse_remarks
from vitlab.reporting.summary import summary


def page(facts: Facts) -> str:
    """The whole page."""
    purpose, context, glossary = facts.purpose, facts.context, Glossary.of(facts.purpose.terms)
    found: list[tuple[str, str, list[Html]]] = []
    remarks = collapse_remarks(facts.record) if purpose.headless else purpose.task.remarks(context)
    shares = "score" in purpose.shares
    advised = notes(facts.record, remarks, tested=facts.tested, mixed=facts.mixed_steps, scores_are_shares=shares)
    if advised:
        found.append(("What stands out", "notable", [sections.noted(advised)]))
    found.append(("How it learned", "curves", curves(facts)))
    of_task = [] if purpose.headless else purpose.task.sections(context)
    for place, section in enumerate([*of_task, *facts.shown]):
        found.append((section.title, f"task-{place}", drawn(section, glossary)))
    if facts.inside is not None:
        found.append(("Inside the model", "inside", drawn_inside(facts.inside)))
    found.append(("What it cost", "cost", sections.cost(facts)))
    found.append(("How to do it again", "again", sections.how(facts)))
    steps = next_steps(facts.record, facts.tested, has_model=facts.model_cost is not None, purpose=purpose)
    found.append(("What to do next", "next", [sections.steps(steps)]))
    if facts.missing:
        found.append(("What is not here, and why", "missing", [tag("p", sentence) for sentence in facts.missing]))
    found.append(("The terms", "terms", [sections.explained(glossary)]))
    contents = tag("nav", *(tag("a", title, href=f"#{name}") for title, name, _ in found), aria_label="Contents")
    parts: list[str] = [tag("header", *summary(facts, glossary), contents)]
    parts += [sections.section(title, name, content) for title, name, content in found]
    version = facts.record.environment.get("packages", {}).get("vitlab")
    made = f"Made by vitlab{f' {version}' if version else ''} from the run's folder {facts.record.folder}."
    parts.append(tag("footer", tag("p", made)))
    style = files("vitlab.reporting").joinpath("report.css").read_text(encoding="utf-8")
    return document(f"{facts.title}: a run's report", parts, style)

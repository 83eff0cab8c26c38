"""`report.html`: the sections of a report in their order, one file that refers to nothing outside it."""

from importlib.resources import files

from vitlab.inspection.document import document
from vitlab.reporting import answers, sections
from vitlab.reporting.advice import next_steps, notes
from vitlab.reporting.curves import curves
from vitlab.reporting.facts import Facts
from vitlab.reporting.markup import Html, tag
from vitlab.reporting.summary import summary


def page(facts: Facts) -> str:
    """The whole page."""
    found: list[tuple[str, str, list[Html]]] = []
    advised = notes(facts.record, facts.dataset, facts.measured)
    if advised:
        found.append(("What stands out", "notable", [sections.noted(advised)]))
    found.append(("How it learned", "curves", curves(facts)))
    if facts.measured is not None:
        found.append(("How well it does", "numbers", sections.numbers(facts)))
        found.append(("Its best and its worst answers", "answers", answers.examples(facts)))
        if facts.measured.confusion:
            found.append(("What it confuses", "confusion", answers.confusions(facts)))
    if facts.dataset is not None:
        found.append(("Class by class", "classes", answers.classes(facts)))
    if facts.measured is not None and facts.measured.reliability:
        found.append(("Can its certainty be trusted?", "certainty", answers.certainty(facts.measured)))
    if facts.inside is not None:
        found.append(("Inside the model", "inside", answers.inside(facts.inside)))
    found.append(("What it cost", "cost", sections.cost(facts)))
    found.append(("How to do it again", "again", sections.how(facts)))
    steps = next_steps(facts.record, facts.measured, has_model=facts.model_cost is not None)
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

"""The terms of a report, each in a sentence that needs no other term."""

from collections.abc import Mapping
from dataclasses import dataclass

from vitlab.core.markup import Html, tag

TERMS: dict[str, str] = {
    "95% interval": "The range in which the true value most likely lies. A number from few pictures is uncertain: with"
    " other pictures of the same kind it would have come out a little differently.",
    "attention": "How much each patch of a picture counts for another one, and in the end for the answer.",
    "epoch": "One pass over all training pictures.",
    "FLOPs": "Additions and multiplications: the work that a computer has to do. An exaFLOP is a billion billion.",
    "held-out pictures": "Pictures that were kept apart and not learned from. Only they can tell whether a model"
    " understood something or learned it by heart.",
    "learning rate": "How large the steps are by which the model is changed. It usually rises at the beginning, and"
    " falls towards the end so that the model settles.",
    "loss": "The number that training makes smaller: how wrong the answers are, and how sure of them the model was.",
    "parameters": "The numbers inside the model that training adjusts.",
    "patch": "A small square of the picture. The model cuts a picture into patches and compares them with each other.",
    "step": "One change of the model, after looking at a handful of pictures.",
    "test pictures": "Held-out pictures that were looked at only once, when training was over.",
    "validation pictures": "Held-out pictures by which the best state of the model was chosen. Numbers on them are"
    " therefore a little flattering.",
}


@dataclass(frozen=True)
class Glossary:
    """The terms of every run and those of its task."""

    terms: Mapping[str, str]

    @classmethod
    def of(cls, more: Mapping[str, str]) -> "Glossary":
        return cls(dict(sorted({**TERMS, **more}.items(), key=lambda item: item[0].lower())))

    def term(self, name: str, shown: str | None = None) -> Html:
        """A term with its explanation on hover, and a way to the list of them; one that is not in it, as it is."""
        if name not in self.terms:
            return tag("span", shown or name)
        return tag("a", tag("abbr", shown or name, title=self.terms[name]), class_="term", href=f"#{anchor(name)}")


def term(name: str, shown: str | None = None) -> Html:
    """A term of every run's."""
    return Glossary(TERMS).term(name, shown)


def anchor(name: str) -> str:
    """The name of a term's place on the page."""
    return f"term-{''.join(c if c.isalnum() else '-' for c in name.lower())}"

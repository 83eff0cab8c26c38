"""What a model says of an image, in a form that tables, JSON and pages can show."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, final

from vitlab.data.contract import Array

MOST_SHOWN = 4  # classes or numbers in a line of words


@final
@dataclass(frozen=True)
class Scored:
    """A class and its probability; a class without a name is called by its index."""

    label: str
    index: int
    probability: float


@final
@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a model says of an image: classes, the most probable first; numbers by name; or a class for each pixel."""

    classes: tuple[Scored, ...] = ()
    numbers: Mapping[str, float] = field(default_factory=dict)
    mask: Array | None = None  # uint8 [H, W], at the size that the model saw
    labels: tuple[str, ...] = ()  # the names of a mask's classes

    @property
    def shares(self) -> dict[str, float]:
        """How much of the picture each class of a mask takes, the most first; those that occur."""
        assert self.mask is not None
        found = {name: float((self.mask == i).mean()) for i, name in enumerate(self.labels)}
        return dict(sorted(((name, share) for name, share in found.items() if share), key=lambda item: -item[1]))

    def plain(self) -> dict[str, Any]:
        """As JSON has it; a mask by the shares of its classes."""
        if self.mask is not None:
            return {"shares": self.shares}
        if self.numbers:
            return {"numbers": dict(self.numbers)}
        return {"classes": [{"label": c.label, "index": c.index, "probability": c.probability} for c in self.classes]}

    @property
    def kind(self) -> Literal["classes", "numbers", "mask"]:
        """Which of the three it is."""
        return "mask" if self.mask is not None else "numbers" if self.numbers else "classes"

    def words(self) -> str:
        """On one line."""
        return ", ".join(f"{name} {value}" for value, name in self.rows()[:MOST_SHOWN]) or "nothing"

    @property
    def measure(self) -> str:
        """What the first column of `rows` is."""
        return "share" if self.mask is not None else "value" if self.numbers else "probability"

    @property
    def what(self) -> str:
        """What the second column of `rows` is."""
        return "number" if self.numbers else "class"

    def rows(self) -> list[list[str]]:
        """As a table has it."""
        if self.mask is not None:
            return [[f"{share:.1%}", name] for name, share in self.shares.items()]
        if self.numbers:
            return [[f"{value:.4g}", name] for name, value in self.numbers.items()]
        return [[f"{c.probability:.1%}", c.label] for c in self.classes]

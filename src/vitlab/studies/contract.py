"""What a study is, and what it gives: a grid of recipes that makes a table, a figure, and sentences on both.

Nothing heavy is imported: the command line shows studies without torch.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, final

from vitlab.core.errors import Error

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from vitlab.studies.context import Context

ScaleName: TypeAlias = Literal["digits", "cifar", "tiny-imagenet", "imagenet"]
SCALES: tuple[ScaleName, ...] = ("digits", "cifar", "tiny-imagenet", "imagenet")


class StudyError(Error):
    """What keeps a study from being made as asked."""


@final
@dataclass(frozen=True)
class Table:
    """Column names and lines of text; a column whose name begins with '>' is set to the right."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


@final
@dataclass(frozen=True, kw_only=True)
class StudyResult:
    """What a study gives; `cost`, `failed` and `settings` are filled in by whoever runs it."""

    tables: Sequence[Table]
    findings: Sequence[str]  # sentences that follow from the numbers, each with how sure it is
    figure: "Figure | None" = None
    numbers: Mapping[str, Any] = field(default_factory=dict)  # what the tables show, as JSON values
    study: str = ""
    scale: str = ""
    cost: Mapping[str, float] = field(default_factory=dict)  # runs, seconds, exaflops
    failed: Mapping[str, str] = field(default_factory=dict)  # cells without a result, and why
    settings: Mapping[str, Any] = field(default_factory=dict)  # seeds, data, options

    def markdown(self) -> str:
        """Tables, findings and what failed, to paste."""
        from vitlab.evaluation.results import markdown

        parts: list[str] = []
        for table in self.tables:
            parts += [f"**{table.title}**", markdown(table.columns, table.rows)]
        parts += list(self.findings)
        parts += [f"No result: {name} ({why})." for name, why in self.failed.items()]
        return "\n\n".join(parts)

    def __repr__(self) -> str:
        return self.markdown()


@final
@dataclass(frozen=True, kw_only=True)
class Study:
    """A grid of runs with a question. The file of one ends with it, and imports what is heavy when it runs.

    `run` is given a `vitlab.studies.context.Context`, which trains and measures, and the options, checked.
    """

    name: str
    summary: str  # for the list of studies
    options: type  # a frozen dataclass with defaults; its docstring and its fields' are the help
    run: "Callable[[Context, Any], StudyResult]"
    scales: tuple[str, ...] = SCALES  # none: it trains nothing, and has no scale
    seeds: int = 3  # where nothing else is asked for
    examples: tuple[str, ...] = ()  # what follows `vitlab study NAME`
    published: str = ""  # what of the paper it stands beside, in words

"""What a report says of a task, as data: words, tables, charts and pictures, which reporting draws."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias, final

from vitlab.data.contract import Array


@final
@dataclass(frozen=True)
class Span:
    """Some words with an emphasis or a sign, or with their explanation: `term` is a name of the glossary's."""

    text: str
    style: Literal["strong", "faint", "right", "wrong"] | None = None
    term: str = ""


Words: TypeAlias = str | tuple[str | Span, ...]  # a line break is a line break


@final
@dataclass(frozen=True)
class Bar:
    """A cell of a table that is drawn: a share, what stands beside it, and whether it is a share that is right."""

    share: float
    words: str
    right: bool = False


@final
@dataclass(frozen=True)
class Text:
    """A paragraph."""

    words: Words
    faint: bool = False


@final
@dataclass(frozen=True)
class Heading:
    """The title of what follows inside a section."""

    title: str


@final
@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows under a head; the first `names` cells of a row are words, the others amounts."""

    head: tuple[Words, ...]
    rows: tuple[tuple[Words | Bar, ...], ...]
    caption: str = ""
    names: int = 1


@final
@dataclass(frozen=True, kw_only=True)
class Matrix:
    """What was taken for what."""

    classes: tuple[str, ...]
    confusion: Mapping[tuple[int, int], int]  # (truth, said): images; right ones too
    counts: tuple[int, ...]  # images of each class


@final
@dataclass(frozen=True, kw_only=True)
class Reliability:
    """How often answers were right for how sure they were: (confidence, share right, images) of groups."""

    bins: tuple[tuple[float, float, int], ...]
    label: str  # for who cannot see it


@final
@dataclass(frozen=True, kw_only=True)
class Figure:
    """A picture, the colours of a mask over it where there is one, and words under it."""

    pixels: Array  # uint8 [H, W, 3]
    caption: Words
    mask: Array | None = None  # class numbers uint8 [H, W]
    alt: str = ""  # for who cannot see it; by default the caption
    hover: str = ""


@final
@dataclass(frozen=True, kw_only=True)
class Pictures:
    """Rows of pictures side by side."""

    rows: tuple[tuple[Figure, ...], ...]
    legend: tuple[str, ...] = ()  # the names of the masks' classes, by their numbers


@final
@dataclass(frozen=True)
class Folded:
    """What is shown at a click."""

    title: str
    blocks: tuple["Block", ...]


Block: TypeAlias = Text | Heading | Table | Matrix | Reliability | Pictures | Folded


@final
@dataclass(frozen=True)
class Section:
    """A part of a report."""

    title: str
    blocks: tuple[Block, ...]


@final
@dataclass(frozen=True)
class Tile:
    """A number that matters, at the head of a report."""

    name: Words
    value: str
    more: str = ""


@final
@dataclass(frozen=True, kw_only=True)
class Opening:
    """The head of a report, as far as the task decides it."""

    title: str  # what the model does: 'telling 10 kinds of pictures apart'
    learned: str  # the same after 'it learned': 'to tell pictures apart'
    reached: Words = ()  # a sentence on how well
    tiles: tuple[Tile, ...] = ()
    learned_from: str = "pictures"


@final
@dataclass(frozen=True)
class Remark:
    """What stands out, in a sentence or two; `again` are options to give the run's command, where that may help."""

    text: str
    again: tuple[str, ...] = ()

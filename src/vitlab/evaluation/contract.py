"""What is measured, how, and what a measurement gives: values with a count and a spread, and how they came about.

Nothing heavy is imported: the command line shows protocols without torch.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, final

from vitlab.core.errors import Error

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from vitlab.core.preprocess import Preprocess

# The setting of a result from few examples of classes that the model was trained to tell, and what it means.
KNOWN = "classes known"
KNOWN_WORDS = "the model was trained to tell these classes, from many more examples."
Unit: TypeAlias = Literal["fraction", "number"]  # a fraction is printed as a percentage


class EvaluationError(Error):
    """What keeps a protocol from measuring: the data, the features or the settings."""


def _cpu() -> "torch.device":
    import torch

    return torch.device("cpu")


@final
@dataclass(frozen=True, kw_only=True)
class Subject:
    """What is measured: two functions of normalised images [B, C, H, W], and what they need.

    `fingerprint` stands for the weights: features are kept under it, and never kept where it is None.
    """

    name: str
    features: "Callable[[Tensor], Tensor]"  # [B, D]
    logits: "Callable[[Tensor], Tensor] | None"  # [B, K]; None where there is no classifier
    preprocess: "Preprocess"
    fingerprint: str | None = None
    labels: tuple[str, ...] | None = None
    dense: bool = False  # it answers for each pixel, so that it has no logits of the image
    task: str = "classification"  # what it was trained for
    device: "torch.device" = field(default_factory=_cpu)


@final
@dataclass(frozen=True, kw_only=True)
class Metric:
    """A measured value; `spread_of` says what its spread is of ('3 seeds, standard deviation')."""

    value: float
    count: int  # the images, or the runs, that it is over
    spread: float | None = None
    spread_of: str = ""
    unit: Unit = "fraction"


@final
@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a protocol's arithmetic gives: the fields of a `Result` that do not depend on where the arrays came from."""

    metrics: Mapping[str, Metric]
    counts: Mapping[str, int] = field(default_factory=dict)
    seeds: tuple[int, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    selected: Mapping[str, Any] = field(default_factory=dict)
    details: Mapping[str, Any] = field(default_factory=dict)


@final
@dataclass(frozen=True, kw_only=True)
class Result:
    """One protocol over one model and one data set. The first metric is the one that tables show."""

    protocol: str
    model: str
    data: str
    metrics: Mapping[str, Metric]
    counts: Mapping[str, int] = field(default_factory=dict)  # images per split
    seeds: tuple[int, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)  # resolution, shots, the recipe, ...
    selected: Mapping[str, Any] = field(default_factory=dict)  # each choice: {"value": ..., "on": split, "scores": ...}
    details: Mapping[str, Any] = field(default_factory=dict)  # what is too long for a table: a confusion matrix, ...
    cost: Mapping[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    environment: Mapping[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        from vitlab.evaluation.results import result_words

        return f"<Result of {result_words(self)}>"

    def _repr_html_(self) -> str:
        """What a notebook shows: a line per metric, and what they are worth."""
        from vitlab.evaluation.notebook import shown

        return shown(self)


@final
@dataclass(frozen=True, kw_only=True)
class Protocol:
    """A way of measuring. The file of one ends with it, and imports what is heavy when it runs.

    `run` is given a `vitlab.evaluation.request.Request` whose options were checked. Most measure a model as it is on
    a data set, and call its `measure` with a function from the opened model and data to an `Outcome`.
    """

    name: str
    summary: str  # for the list of protocols
    options: type  # a frozen dataclass with defaults; its docstring and its fields' are the help
    examples: tuple[str, ...]  # what follows `vitlab evaluate NAME`
    run: Callable[[Any], Result]
    not_taken: tuple[str, ...] = ()  # the options common to all that would do nothing here

    @property
    def takes_data(self) -> bool:
        return "data" not in self.not_taken


# The options that say how a model that stays as it is sees images; a protocol that trains it does not take them.
SEEN_ONCE = ("split", "crops", "flip", "resize", "cache", "no_cache")

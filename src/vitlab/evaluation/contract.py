"""What is measured, and what a measurement gives: values with a count and a spread, and how they came about."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, final

import torch
from torch import Tensor

from vitlab.core.errors import Error
from vitlab.core.preprocess import Preprocess

Unit: TypeAlias = Literal["fraction", "number"]  # a fraction is printed as a percentage


class EvaluationError(Error):
    """What keeps a protocol from measuring: the data, the features or the settings."""


@final
@dataclass(frozen=True, kw_only=True)
class Subject:
    """What is measured: two functions of normalised images [B, C, H, W], and what they need.

    `fingerprint` stands for the weights: features are kept under it, and never kept where it is None.
    """

    name: str
    features: Callable[[Tensor], Tensor]  # [B, D]
    logits: Callable[[Tensor], Tensor] | None  # [B, K]; None where there is no classifier
    preprocess: Preprocess
    fingerprint: str | None = None
    labels: tuple[str, ...] | None = None
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))


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
class Result:
    """One protocol over one model and one data set. The first metric is the one that tables show."""

    protocol: str
    model: str
    data: str
    metrics: Mapping[str, Metric]
    counts: Mapping[str, int] = field(default_factory=dict)  # images a split
    seeds: tuple[int, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)  # resolution, shots, the recipe, ...
    selected: Mapping[str, Any] = field(default_factory=dict)  # each choice: {"value": ..., "on": split, "scores": ...}
    details: Mapping[str, Any] = field(default_factory=dict)  # what is too long for a table: a confusion matrix, ...
    cost: Mapping[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    environment: Mapping[str, Any] = field(default_factory=dict)

"""What a file of a family says about itself, in the constant that it ends with."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from vitlab.models.zoo.row import ZooRow


@dataclass(frozen=True, kw_only=True)
class Family:
    """A family of models: `FAMILY` at the end of its file, or `NAME` in `mine.py:NAME`."""

    name: str
    config: type[Any]  # a frozen dataclass with image_size, num_classes and channels, all with defaults where possible
    model: Callable[..., Any]  # config and Preprocess | None to a `contract.Model`
    summary: str  # what one of its models is, as in "A Vision Transformer with 86,567,656 parameters"
    rows: tuple[ZooRow, ...] = ()
    title: str = ""  # of its section in docs/zoo.md
    pattern: str = ""  # by which `vitlab models` lists its rows
    note: str = ""  # for that section
    generates: bool = False  # whether its models make images from noise: a `generator.Generator`
    example: Mapping[str, Any] = field(default_factory=dict)  # a small model, for the tests of the contract

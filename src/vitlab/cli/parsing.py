"""A verb's arguments, by tyro: its help, and its own words for what is wrong with them."""

from collections.abc import Sequence
from typing import Any, TypeVar

import tyro

T = TypeVar("T")

FLAGS = (tyro.conf.FlagCreatePairsOff,)


def parse(
    kind: type[T], arguments: Sequence[str], *, prog: str, description: str | None, config: tuple[Any, ...] = FLAGS
) -> T:
    """The arguments as `kind` describes them; after help the process ends with status 0, after a mistake with 2."""
    return tyro.cli(kind, prog=prog, description=description, args=arguments, config=config)

"""A verb's arguments, by tyro: its help, its words for a value that is wrong, and ours for what is no option."""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

import tyro

from vitlab.core.errors import ConfigError, did_you_mean, near_names

T = TypeVar("T")

FLAGS = (tyro.conf.FlagCreatePairsOff,)


def parse(
    kind: type[T],
    arguments: Sequence[str],
    *,
    prog: str,
    description: str | None,
    config: tuple[Any, ...] = FLAGS,
    known: Sequence[str] | None = None,
) -> T:
    """The arguments as `kind` describes them; after help the process ends with status 0, after a mistake with 2.

    `known` are the options to choose the nearest of where there is none of a name; by default those of `kind`.
    """
    given, rest = tyro.cli(
        kind, prog=prog, description=description, args=arguments, config=config, return_unknown_args=True
    )
    refuse(rest, options_of(kind) if known is None else known, prog=prog)
    return given


def refuse(rest: Sequence[str], known: Iterable[str], *, prog: str) -> None:
    """An error that names the first of the arguments that nobody took, and the option that is nearest to it."""
    if not rest:
        return
    word = rest[0].partition("=")[0] if rest[0].startswith("-") else rest[0]
    name = word.lstrip("-").replace("_", "-")
    options = list(known)
    last = [option for option in options if option.endswith(f".{name}")]  # --ema for --optimizer.ema
    hint = did_you_mean(f"--{option}" for option in last[:3] or near_names(name, options))
    if word.startswith("-"):
        raise ConfigError(f"There is no option '{word}'.{hint or f' `{prog} --help` shows them all.'}")
    raise ConfigError(f"'{word}' is one word too many for `{prog}`.{hint or f' `{prog} --help` shows what it takes.'}")


def options_of(kind: Any, prefix: str = "") -> Iterator[str]:
    """The names of the options that a dataclass makes, without their dashes."""
    hints = get_type_hints(kind, include_extras=True)
    for field in dataclasses.fields(kind):
        hint, name, about = hints[field.name], f"{prefix}{field.name.replace('_', '-')}", list[Any]()
        if get_origin(hint) is Annotated:
            hint, *about = get_args(hint)
        if dataclasses.is_dataclass(hint):
            inline = any(getattr(each, "name", None) == "" for each in about)
            yield from options_of(hint, prefix if inline else f"{name}.")
        elif not any(each is marker for each in about for marker in (tyro.conf.Positional, tyro.conf.Fixed)):
            yield name

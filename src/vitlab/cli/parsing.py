"""A verb's arguments, by tyro: its help, and a sentence of ours for what is no option or cannot be its value."""

import contextlib
import dataclasses
import io
import re
import sys
import textwrap
import types
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import tyro

from vitlab.core.errors import ConfigError, did_you_mean, near_matches, near_names

T = TypeVar("T")

# A recipe's flags may be on or off by default, so that both can be said of each; None is a value of its fields alone.
RECIPE_FLAGS = (tyro.conf.AvoidSubcommands,)
FLAGS = (*RECIPE_FLAGS, tyro.conf.FlagCreatePairsOff, tyro.conf.DisallowNone)
WORDS = {int: "a whole number", float: "a number", Path: "a path", str: "a text", bool: "True or False"}


def parse(
    kind: type[T],
    arguments: Sequence[str],
    *,
    prog: str,
    description: str | None,
    config: tuple[Any, ...] = FLAGS,
    known: Sequence[str] | None = None,
) -> T:
    """The arguments as `kind` describes them; after help the process ends with status 0.

    `known` are the options to choose the nearest of where there is none of a name; by default those of `kind`.
    """
    given, rest = read(kind, arguments, prog=prog, description=description, config=config)
    refuse(rest, options_of(kind) if known is None else known, prog=prog)
    return given


def read(
    kind: type[T], arguments: Sequence[str], *, prog: str, config: tuple[Any, ...] = FLAGS, **more: Any
) -> tuple[T, list[str]]:
    """What `kind` takes of the arguments, and the rest; `more` goes to tyro."""
    told = io.StringIO()
    try:
        with contextlib.redirect_stderr(told):
            return tyro.cli(kind, args=arguments, prog=prog, config=config, return_unknown_args=True, **more)
    except SystemExit as end:
        if end.code != 2:
            sys.stderr.write(told.getvalue())
            raise
        raise ConfigError(_explained(told.getvalue(), kind, arguments, prog)) from None


def refuse(rest: Sequence[str], known: Iterable[str], *, prog: str) -> None:
    """An error that names the first of the arguments that nobody took, and the option that is nearest to it."""
    if not rest:
        return
    word = rest[0].partition("=")[0] if rest[0].startswith("-") else rest[0]
    name = _name(word)
    options = list(known)
    if word.startswith("-") and name.removeprefix("no-") in options:
        raise ConfigError(f"{word} is so by default: leave it out.")
    last = [option for option in options if option.endswith(f".{name}")]  # --ema for --optimizer.ema
    hint = did_you_mean(f"--{option}" for option in last[:3] or near_names(name, options))
    if word.startswith("-"):
        raise ConfigError(f"There is no option '{word}'.{hint or f' `{prog} --help` shows them all.'}")
    if "model" in options and any(Path(word, file).is_file() for file in ("recipe.json", "config.json")):
        hint = f" A model is named by --model {word}."
    raise ConfigError(f"'{word}' is one word too many for `{prog}`.{hint or f' `{prog} --help` shows what it takes.'}")


def options_of(kind: Any) -> Iterator[str]:
    """The names of the options that a dataclass makes, without their dashes."""
    return (name for name, _ in _typed_options(kind))


def _typed_options(kind: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The name and the type of each option."""
    hints = get_type_hints(kind, include_extras=True)
    for field in dataclasses.fields(kind):
        hint, name, about = hints[field.name], f"{prefix}{field.name.replace('_', '-')}", list[Any]()
        if get_origin(hint) is Annotated:
            hint, *about = get_args(hint)
        if dataclasses.is_dataclass(hint):
            inline = any(getattr(each, "name", None) == "" for each in about)
            yield from _typed_options(hint, prefix if inline else f"{name}.")
        elif not any(each is marker for each in about for marker in (tyro.conf.Positional, tyro.conf.Fixed)):
            yield name, hint


def _explained(told: str, kind: Any, arguments: Sequence[str], prog: str) -> str:
    """A sentence for what tyro drew a box about: an option without its value, with a wrong one, or that is missing."""
    block = _first_block(told)
    text = " ".join(block.split())
    types_of = dict(_typed_options(kind))
    if absent := re.search(r"^Missing value for argument '(--[^']+)'", text):
        taken = _takes(types_of.get(_name(absent[1])))
        return f"{absent[1]} needs {taken or 'a value'}."
    if wrong := re.search(r"^Error parsing (--[^:\s]+):|^invalid choice .* for argument '(--[^']+)'", text):
        option = wrong[1] or wrong[2]
        hint = types_of.get(_name(option))
        values, taken = _values(option, arguments), _takes(hint)
        if not any(get_origin(part) is tuple for part in _parts(hint)):
            values = values[:1]  # behind it stand words that are no option's
        if values and taken:
            near = near_matches(values[0], _choices(hint)) if len(values) == 1 else ""
            return f"{option} takes {taken}, not {' '.join(map(repr, values))}.{near}"
    if text.startswith("Missing from"):
        names = re.findall(r"^ {4}(\S.*)", block, re.MULTILINE)
        return f"`{prog}` needs {' and '.join(names)}: `{prog} --help` explains {'it' if len(names) == 1 else 'them'}."
    return f"{text.rstrip('.')}. `{prog} --help` shows what it takes."


def _first_block(box: str) -> str:
    """What a box says first, after its title, as far as the next rule; its borders are lines, hyphens or spaces."""
    lines = [line.strip("│╭╮╰╯").rstrip() for line in re.sub(r"\x1b\[[0-9;]*m", "", box).splitlines()[1:]]
    blocks = re.split(r"^[ ─-]*[─-]{3}[ ─-]*$", "\n".join(lines), flags=re.MULTILINE)
    return textwrap.dedent(next((block for block in blocks if block.strip()), box))


def _name(word: str) -> str:
    return word.lstrip("-").replace("_", "-")


def _values(option: str, arguments: Sequence[str]) -> list[str]:
    """What stands behind an option, where it is given last."""
    found = list[str]()
    for place, text in enumerate(arguments):
        name, equals, value = text.partition("=")
        if text.startswith("--") and _name(name) == _name(option):
            following = arguments[place + 1 :]
            end = next((i for i, word in enumerate(following) if word.startswith("--")), len(following))
            found = [value] if equals else list(following[:end])
    return found


def _takes(hint: Any) -> str:
    """What values a type has, in words; nothing where there are none for it."""
    words = [_takes_one(part) for part in _parts(hint) if part is not types.NoneType]
    return " or ".join(words) if all(words) else ""


def _takes_one(part: Any) -> str:
    inside = get_args(part)
    if get_origin(part) is Literal:
        return _listed([str(choice) for choice in inside])
    if get_origin(part) is tuple and (each := _takes(inside[0])):
        return f"{'' if inside[-1] is ... else f'{len(inside)} '}values, each {each}"
    return WORDS.get(part, "")


def _choices(hint: Any) -> list[str]:
    return [str(choice) for part in _parts(hint) if get_origin(part) is Literal for choice in get_args(part)]


def _parts(hint: Any) -> list[Any]:
    """The types that a value may be of."""
    if get_origin(hint) is Annotated:
        return _parts(get_args(hint)[0])
    if get_origin(hint) in (Union, types.UnionType):
        return [part for each in get_args(hint) for part in _parts(each)]
    return [hint]


def _listed(names: Sequence[str]) -> str:
    """'none, light or strong'."""
    return " or ".join([*([", ".join(names[:-1])] if len(names) > 1 else []), *names[-1:]])

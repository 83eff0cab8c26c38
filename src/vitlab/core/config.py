"""Frozen dataclasses to and from JSON, with unknown names and wrong types refused."""

import dataclasses
import functools
import json
import numbers
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, TypeVar, Union

from vitlab.core.bounds import Bounds
from vitlab.core.errors import ConfigError, near_matches

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Choice:
    """One of several kinds of thing, by its name in a registry, with its own options: {"name": "mae", "ratio": 0.75}.

    Options that are not given have their defaults; names and values are checked by whoever holds the registry.
    """

    name: str
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def to_dict(config: Any) -> dict[str, Any]:
    """The fields of a dataclass as plain JSON values (tuples become lists)."""
    return {field.name: _plain(getattr(config, field.name)) for field in dataclasses.fields(config)}


def from_dict(cls: type[T], data: Mapping[str, Any], *, where: str) -> T:
    """A `cls` from JSON values; `where` names the origin in errors.

    `cls.RENAMED`, where there is one, has the new names of fields that earlier versions wrote.
    """
    renamed: Mapping[str, str] = getattr(cls, "RENAMED", {})
    data = {renamed.get(name, name): value for name, value in data.items()}
    check_names(cls, data, where=where)
    hints = _hints(cls)
    values = {name: _typed(hints[name], _own(value), f"{where}: {name}") for name, value in data.items()}
    missing = [
        field.name
        for field in dataclasses.fields(cls)  # pyright: ignore[reportArgumentType]
        if field.name not in values
        and field.default is dataclasses.MISSING
        and field.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise ConfigError(f"{where}: the field '{missing[0]}' is missing.")
    return cls(**values)


def replace(config: T, changes: Mapping[str, Any], *, where: str) -> T:
    """A copy of `config` with some fields changed, checked as `from_dict` checks them."""
    check_names(type(config), changes, where=where)
    hints = _hints(type(config))
    typed = {name: _typed(hints[name], _own(value), f"{where}: {name}") for name, value in changes.items()}
    return dataclasses.replace(config, **typed)  # pyright: ignore[reportArgumentType]


def check_names(cls: type, data: Mapping[str, Any], *, where: str) -> None:
    """Refuse names that are not fields of `cls`."""
    known = [field.name for field in dataclasses.fields(cls)]
    for name in data:
        if name not in known:
            hint = near_matches(name, known) or f" Known fields: {', '.join(known)}."
            raise ConfigError(f"{where}: there is no field '{name}'.{hint}")


def check_fields(config: Any, prefix: str = "") -> None:
    """Refuse values that are not what the fields of a dataclass say, where a caller's go into it as they are."""
    hints = _hints(type(config))
    for field in dataclasses.fields(config):
        check_value(hints[field.name], getattr(config, field.name), f"{prefix}{field.name}")


def check_bounds(config: Any) -> None:
    """Refuse numbers outside the bounds that the types of a dataclass's fields state; other types are not looked at."""
    for name, hint in _hints(type(config)).items():
        if name in _bounded(type(config)):
            _typed(hint, getattr(config, name), name)


def check_value(hint: Any, value: Any, name: str) -> None:
    """Refuse a value that is not what a type says, as one that is none of a Literal's."""
    _typed(hint, value, name)


def parse_assignments(items: Iterable[str], *, where: str) -> dict[str, Any]:
    """FIELD=VALUE texts as fields: JSON values where they are such, lists of them by commas, names otherwise."""
    fields: dict[str, Any] = {}
    for item in items:
        name, equals, text = item.partition("=")
        if not equals or not name.isidentifier():
            raise ConfigError(f"{where} takes FIELD=VALUE, not '{item}'.")
        if name in fields:
            raise ConfigError(f"{where} gives '{name}' twice.")
        parts = text.strip("[]()").split(",") if "," in text else [text]
        values = [_value(part.strip()) for part in parts]
        fields[name] = tuple(values) if "," in text else values[0]
    return fields


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls, include_extras=True)


@functools.cache
def _bounded(cls: type) -> frozenset[str]:
    """The fields whose types have bounds somewhere inside."""
    return frozenset(name for name, hint in _hints(cls).items() if "Bounds(" in repr(hint))


class _OutOfBoundsError(ConfigError):
    """A number of the right type that is outside its bounds."""


def _value(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=lambda name: name)
    except (ValueError, RecursionError):
        return text


def _plain(value: Any) -> Any:
    if isinstance(value, Choice):
        return {"name": value.name, **{name: _plain(option) for name, option in value.options.items()}}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return to_dict(value)
    if isinstance(value, list | tuple):
        return [_plain(item) for item in typing.cast("list[Any]", value)]
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in typing.cast("Mapping[str, Any]", value).items()}
    return value


def _own(value: Any) -> Any:
    """NumPy's numbers as Python's, also in lists."""
    if isinstance(value, list):
        return [_own(item) for item in typing.cast("list[Any]", value)]
    if isinstance(value, tuple):
        return tuple(_own(item) for item in typing.cast("tuple[Any, ...]", value))
    if isinstance(value, bool | int | float) or not isinstance(value, numbers.Real):
        return value
    return int(value) if isinstance(value, numbers.Integral) else float(value)


def _typed(hint: Any, value: Any, where: str) -> Any:
    """`value` as `hint` wants it, or a ConfigError."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    wrong = ConfigError(f"{where} must be {_describe(hint)}, not {value!r}.")
    if hint is Any:
        return value
    if origin is Annotated:
        return _within(hint, _typed(args[0], value, where), where)
    if origin in (Union, types.UnionType):
        for option in args:
            try:
                return _typed(option, value, where)
            except _OutOfBoundsError:
                raise
            except ConfigError:
                continue
        raise wrong
    if origin is Literal:
        if value not in args or isinstance(value, bool) != isinstance(args[0], bool):
            raise ConfigError(f"{where} must be {_describe(hint)}, not {value!r}.{near_matches(str(value), args)}")
        return value
    if origin is tuple:
        return _typed_tuple(args, value, where, wrong)
    if hint is Choice:
        return _choice(value, wrong)
    if dataclasses.is_dataclass(hint):
        if isinstance(value, hint):  # pyright: ignore[reportArgumentType]
            return value
        if not isinstance(value, Mapping):
            raise wrong
        return from_dict(typing.cast("type[Any]", hint), typing.cast("Mapping[str, Any]", value), where=where)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            raise wrong from None
    if hint is types.NoneType:
        hint = type(None)
    if not isinstance(value, origin or hint) or (isinstance(value, bool) and hint is not bool):
        raise wrong
    return value


def _within(hint: Any, value: Any, where: str) -> Any:
    for bounds in hint.__metadata__:
        if isinstance(bounds, Bounds) and not bounds.hold(value):
            raise _OutOfBoundsError(f"{where} must be {bounds}, not {value!r}.")
    return value


def _choice(value: Any, wrong: ConfigError) -> Choice:
    if isinstance(value, Choice):
        return value
    if isinstance(value, str):
        return Choice(value)
    if not isinstance(value, Mapping) or not isinstance(value.get("name"), str):
        raise wrong
    options = typing.cast("Mapping[str, Any]", value)
    return Choice(options["name"], {name: option for name, option in options.items() if name != "name"})


def _typed_tuple(args: tuple[Any, ...], value: Any, where: str, wrong: ConfigError) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise wrong
    items = typing.cast("list[Any]", value)
    if len(args) == 2 and args[1] is Ellipsis:
        args = (args[0],) * len(items)
    if len(args) != len(items):
        raise wrong
    return tuple(_typed(kind, item, where) for kind, item in zip(args, items, strict=True))


def _describe(hint: Any) -> str:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return _describe(args[0])
    if origin in (Union, types.UnionType):
        return " or ".join(_describe(option) for option in args)
    if origin is Literal:
        return " | ".join(str(option) for option in args)
    if origin is tuple:
        kinds = ["..." if a is Ellipsis else _describe(a) for a in args]
        alike = len(kinds) > 1 and len(set(kinds)) == 1
        return f"a list of {len(kinds)}, each {kinds[0]}" if alike else f"a list of {', '.join(kinds)}"
    names = {int: "a whole number", float: "a number", str: "a text", bool: "true or false", types.NoneType: "null"}
    return names.get(hint, getattr(hint, "__name__", str(hint)))

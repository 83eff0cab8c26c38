"""Things found by name: a room's own, those of installed packages, and one in a file that the caller names.

A file of a room ends with one constant that describes it, and the room lists its modules: there is no second table.
"""

import importlib
import re
import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar, final

from vitlab.core.errors import ConfigError, Error, UnknownNameError, near_matches


class Named(Protocol):
    """What a registry holds."""

    @property
    def name(self) -> str: ...


T = TypeVar("T", bound=Named)

FILE_REFERENCE = re.compile(r"(?P<file>.+\.py):(?P<object>[A-Za-z_]\w*)")
_permitted: set[str] = set()


def is_file_reference(name: str) -> bool:
    """Whether a name is 'mine.py:NAME', something of a file outside every package."""
    return FILE_REFERENCE.fullmatch(name) is not None


def permit(*names: str) -> None:
    """Let names of the form 'mine.py:NAME' be loaded: the caller gave them, in this call.

    A name that is read from a run's or a model's JSON was not given, and is refused: loading must not run code.
    """
    _permitted.update(name for name in names if is_file_reference(name))


def is_permitted(name: str) -> bool:
    """Whether a name may be looked up: a plain one, or that of something in a file that the caller gave."""
    return not is_file_reference(name) or name in _permitted


def need_permission(what: str, name: str) -> None:
    """Refuse a name of the form 'mine.py:NAME' that the caller has not given."""
    if not is_permitted(name):
        raise ConfigError(
            f"The {what} {name} is code in a file, which is not run because a saved file names it: give its name again"
            " in this call."
        )


@final
class Registry(Generic[T]):
    """What a room offers by name; modules are imported when something is looked for."""

    def __init__(
        self, kind: type[T], what: str, room: str, constant: str, modules: tuple[str, ...], *, group: str | None = None
    ) -> None:
        """`constant` is what each of the `modules` of the package `room` ends with: a thing, or a tuple of them.

        `group` is that of the entry points by which packages add theirs; None: it is called as the room.
        """
        self.kind, self.what, self.room, self.constant, self.modules = kind, what, room, constant, modules
        self.group = group or room
        self._own: dict[str, T] | None = None

    def __iter__(self) -> Iterator[T]:
        return iter(self._known().values())

    def names(self) -> list[str]:
        """Of all that is installed; things in files have none until they are given."""
        return list(self._known())

    def has_more(self) -> bool:
        """Whether installed packages add theirs; nothing is imported for the answer."""
        return bool(entry_points(group=self.group))

    def find(self, name: str) -> T:
        """The thing of that name, or an error with near matches."""
        if is_file_reference(name):
            return self._in_a_file(name)
        known = self._known()
        if name not in known:
            hint = near_matches(name, known) or f" There are {', '.join(known)}, or FILE.py:NAME of your own."
            raise UnknownNameError(f"There is no {self.what} named '{name}'.{hint}")
        return known[name]

    def _known(self) -> dict[str, T]:
        if self._own is None:
            found: dict[str, T] = {}
            for module in self.modules:
                value = getattr(importlib.import_module(f"{self.room}.{module}"), self.constant)
                found |= {thing.name: thing for thing in (value if isinstance(value, tuple) else (value,))}
            for point in entry_points(group=self.group):
                found.setdefault(point.name, self._checked(load_point(point), f"the entry point {point.value}"))
            self._own = found
        return self._own

    def _in_a_file(self, name: str) -> T:
        need_permission(self.what, name)
        return self._checked(load_object(name), name)

    def _checked(self, value: Any, where: str) -> T:
        if not isinstance(value, self.kind):
            raise ConfigError(f"{where} must be a {self.kind.__name__}, not {type(value).__name__}.")
        return value


def load_point(point: EntryPoint) -> Any:
    """What an installed package adds."""
    try:
        return point.load()
    except Exception as error:
        raise ConfigError(
            f"The entry point {point.value} of an installed package cannot be loaded ({type(error).__name__}: {error}):"
            " mend that package, or uninstall it."
        ) from error


def load_object(name: str) -> Any:
    """The object of 'mine.py:NAME'. Its module gets its plain name, so that worker processes can import it too."""
    match = FILE_REFERENCE.fullmatch(name)
    assert match is not None
    path = Path(match["file"]).expanduser().absolute()
    if not path.is_file():
        raise Error(f"There is no file {path}, which {name} names.")
    if not path.stem.isidentifier():
        raise Error(f"{path} cannot be imported: its name must be a word of letters, digits and underscores.")
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # at the end: it hides no other module
        importlib.invalidate_caches()
    try:
        module = importlib.import_module(path.stem)
    except Exception as error:
        raise Error(f"{path} cannot be imported: {type(error).__name__}: {error}.") from error
    file = getattr(module, "__file__", None)  # which built-in ones lack
    if file is None or Path(file).resolve() != path.resolve():
        raise Error(f"{path} has the name of another module ({file or 'built in'}): rename it.")
    if not hasattr(module, match["object"]):
        hint = near_matches(match["object"], [item for item in vars(module) if not item.startswith("_")])
        raise Error(f"{path} has no {match['object']}.{hint}")
    return getattr(module, match["object"])

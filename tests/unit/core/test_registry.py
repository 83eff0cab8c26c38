"""Things found by name: a room's own, installed packages', and those of a file that the caller names."""

import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from vitlab.core import registry
from vitlab.core.errors import ConfigError, Error, UnknownNameError
from vitlab.core.registry import Registry, is_file_reference, permit


@dataclass(frozen=True)
class Thing:
    name: str


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch) -> Registry[Thing]:
    """A room of two files: one thing in the first, two in the other."""
    for module, value in (("first", Thing("apple")), ("second", (Thing("pear"), Thing("plum")))):
        monkeypatch.setitem(sys.modules, f"a_room.{module}", types.SimpleNamespace(THING=value))
    return Registry(Thing, "fruit", "a_room", "THING", ("first", "second"))


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A file of the caller's, and no permission from before."""
    monkeypatch.setattr(registry, "_permitted", set[str]())
    monkeypatch.setattr(sys, "path", [*sys.path])
    path, known = tmp_path / "fruit_of_mine.py", set(sys.modules)
    sys.modules["things_for_a_test"] = types.SimpleNamespace(Thing=Thing)  # pyright: ignore[reportArgumentType]
    path.write_text("from things_for_a_test import Thing\nQUINCE = Thing('quince')\nNUMBER = 5\n")
    yield path
    for name in set(sys.modules) - known:
        del sys.modules[name]


def points(found: dict[str, Any], monkeypatch: pytest.MonkeyPatch, group: str = "a_room") -> None:
    """Packages that add these things by entry points."""

    def entry_points(**asked: str) -> list[Any]:
        if asked != {"group": group}:
            return []
        return [
            types.SimpleNamespace(name=name, value=f"package:{name}", load=lambda value=value: value)
            for name, value in found.items()
        ]

    monkeypatch.setattr(registry, "entry_points", entry_points)


def test_things_are_found_by_their_names(room: Registry[Thing]) -> None:
    assert room.names() == ["apple", "pear", "plum"]
    assert [thing.name for thing in room] == room.names()
    assert room.find("plum") == Thing("plum")


def test_modules_are_imported_when_something_is_looked_for() -> None:
    nowhere = Registry(Thing, "fruit", "no_such_room", "THING", ("first",))
    with pytest.raises(ModuleNotFoundError, match="no_such_room"):
        nowhere.names()


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("plumm", "There is no fruit named 'plumm'. Did you mean plum?"),
        ("zzzzz", "There is no fruit named 'zzzzz'. There are apple, pear, plum, or FILE.py:NAME of your own."),
    ],
)
def test_a_wrong_name_is_told_near_ones(room: Registry[Thing], name: str, sentence: str) -> None:
    with pytest.raises(UnknownNameError) as caught:
        room.find(name)
    assert str(caught.value) == sentence


def test_packages_add_things_and_replace_none(room: Registry[Thing], monkeypatch: pytest.MonkeyPatch) -> None:
    other = Thing("another apple")
    points({"fig": Thing("fig"), "apple": other}, monkeypatch)
    assert room.names() == ["apple", "pear", "plum", "fig"]
    assert room.find("fig") == Thing("fig")
    assert room.find("apple") == Thing("apple")


def test_a_room_may_have_another_group(room: Registry[Thing], monkeypatch: pytest.MonkeyPatch) -> None:
    points({"fig": Thing("fig")}, monkeypatch, group="a_room.others")
    assert "fig" not in room.names()
    other = Registry(Thing, "fruit", "a_room", "THING", ("first",), group="a_room.others")
    assert other.names() == ["apple", "fig"]


def test_a_package_that_adds_something_else_is_refused(room: Registry[Thing], monkeypatch: pytest.MonkeyPatch) -> None:
    points({"fig": "a word"}, monkeypatch)
    with pytest.raises(ConfigError, match=r"^the entry point package:fig must be a Thing, not str\.$"):
        room.find("apple")


def test_a_package_that_cannot_be_imported_is_named(room: Registry[Thing], monkeypatch: pytest.MonkeyPatch) -> None:
    broken = EntryPoint(name="fig", value="no_such_package:FIG", group="a_room")
    monkeypatch.setattr(registry, "entry_points", lambda **_: [broken])
    with pytest.raises(ConfigError) as caught:
        room.find("apple")
    assert str(caught.value) == (
        "The entry point no_such_package:FIG of an installed package cannot be loaded (ModuleNotFoundError: No module"
        " named 'no_such_package'): mend that package, or uninstall it."
    )


def test_code_in_a_file_is_not_run_until_the_caller_names_it(room: Registry[Thing], mine: Path) -> None:
    name = f"{mine}:QUINCE"
    with pytest.raises(ConfigError, match="is code in a file, which is not run because a saved file names it"):
        room.find(name)
    assert mine.stem not in sys.modules
    permit(name)
    assert room.find(name) == Thing("quince")
    assert "quince" not in room.names()


def test_permission_is_for_what_was_named_alone(room: Registry[Thing], mine: Path) -> None:
    permit(f"{mine}:QUINCE", "apple")
    with pytest.raises(ConfigError, match="is not run"):
        room.find(f"{mine}:NUMBER")


@pytest.mark.parametrize(
    ("named", "sentence"),
    [
        ("NUMBER", r"NUMBER must be a Thing, not int\.$"),
        ("QUINCEE", r"has no QUINCEE\. Did you mean QUINCE\?$"),
    ],
)
def test_what_a_file_lacks_is_said(room: Registry[Thing], mine: Path, named: str, sentence: str) -> None:
    permit(f"{mine}:{named}")
    with pytest.raises(Error, match=sentence):
        room.find(f"{mine}:{named}")


@pytest.mark.parametrize(
    ("file", "content", "sentence"),
    [
        ("json.py", "X = 1", r"json\.py has the name of another module \(.*json.*\): rename it\.$"),
        ("sys.py", "X = 1", r"sys\.py has the name of another module \(built in\): rename it\.$"),
        ("not a word.py", "X = 1", r"its name must be a word of letters, digits and underscores\.$"),
        ("broken_for_a_test.py", "X = 1 / 0", r"cannot be imported: ZeroDivisionError: division by zero\.$"),
        ("absent_for_a_test.py", None, r"^There is no file .*absent_for_a_test\.py"),
    ],
)
def test_files_that_cannot_be_imported(
    room: Registry[Thing], mine: Path, file: str, content: str | None, sentence: str
) -> None:
    path = mine.with_name(file)
    if content is not None:
        path.write_text(content)
    permit(f"{path}:X")
    with pytest.raises(Error, match=sentence):
        room.find(f"{path}:X")


def test_two_files_of_one_name_are_told_apart(room: Registry[Thing], mine: Path) -> None:
    permit(f"{mine}:QUINCE")
    room.find(f"{mine}:QUINCE")
    other = mine.parent / "elsewhere" / mine.name
    other.parent.mkdir()
    other.write_text(mine.read_text())
    permit(f"{other}:QUINCE")
    with pytest.raises(Error, match=f"has the name of another module .*{mine.name}"):
        room.find(f"{other}:QUINCE")


@pytest.mark.parametrize(
    ("name", "is_one"),
    [("mine.py:NAME", True), ("a folder/mine.py:_x1", True), ("mine.py", False), ("mine:NAME", False), (":X", False)],
)
def test_what_names_something_in_a_file(name: str, is_one: bool) -> None:
    assert is_file_reference(name) is is_one

"""A hierarchy over the classes of a data set: read from a file, and cut into levels.

A file says of each name what is above it: JSON ({"cat": "animal", "animal": null}), lines of two names with a tab or a
comma between them (cat,animal; a name alone is at the top), WordNet's data.noun, whose names are ids like n02121620,
or the tree that goes with ImageNet-21K-P (imagenet21k_miil_tree.pth). `cifar100` stands for CIFAR-100's 20 coarse
classes. It may hold more names than there are classes.
"""

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias, final

from vitlab.core.errors import DataError, near_matches
from vitlab.core.imagenet import plain, wordnet_id
from vitlab.core.reading import check_regular, parse_json, read_text
from vitlab.data.sources.published.cifar import COARSE

Parents: TypeAlias = Mapping[str, str | None]  # None: at the top
Inner: TypeAlias = Literal["all", "branching", "none"]  # which nodes that are no classes stay
SYNSET = re.compile(r"(\d{8}) \d\d n ([0-9a-f]{2}) ")  # of a line of data.noun: its id, and how many words follow
# in ImageNet-21K-P's file: the names, and for each of them its place and those of all that is above it
TREE = ("class_list", "class_tree_list")


@final
@dataclass(frozen=True)
class Level:
    """The nodes of one depth, and the place among them of each class's own ancestor, or itself; -1: it has none."""

    nodes: tuple[int, ...]
    of_class: tuple[int, ...]
    num_below: int  # nodes of this depth or deeper


@final
@dataclass(frozen=True)
class Hierarchy:
    """The classes in their order, then the other nodes, and the place of each one's parent; -1: it is at the top."""

    nodes: tuple[str, ...]
    parents: tuple[int, ...]
    num_classes: int

    def levels(self, *, extend_leaves: bool = False) -> list[Level]:
        """From the top down; with `extend_leaves` a class that nothing is below is on all deeper levels too."""
        paths = [self._path(node) for node in range(len(self.nodes))]
        inner, deepest = set(self.parents), max(map(len, paths))
        if extend_leaves:
            paths = [path if path[-1] in inner else path + path[-1:] * (deepest - len(path)) for path in paths]
        here = [{path[depth] for path in paths if len(path) > depth} for depth in range(deepest)]
        found: list[Level] = []
        for depth, members in enumerate(here):
            nodes = sorted(members)
            places = {node: place for place, node in enumerate(nodes)}
            own = (places[path[depth]] if len(path) > depth else -1 for path in paths[: self.num_classes])
            found.append(Level(tuple(nodes), tuple(own), len(set[int]().union(*here[depth:]))))
        return found

    def _path(self, node: int) -> list[int]:
        """From the top to the node itself."""
        path = [node]
        while (node := self.parents[node]) >= 0:
            path.append(node)
        return path[::-1]


def read_hierarchy(source: str, classes: Sequence[str], *, inner: Inner = "all") -> Hierarchy:
    """What a file says of the classes and of all that is above them.

    `inner` is for nodes that are no classes themselves. all: they stay. branching: those stay that have two or more
    nodes below, for one has nothing to tell apart. none: a class is below the next class above it.
    """
    parents = {child: above for above, below in COARSE.items() for child in below} if source == "cifar100" else None
    parents = read_parents(Path(source)) if parents is None else parents
    return hierarchy_over(classes, parents, where=source, inner=inner)


def hierarchy_over(classes: Sequence[str], parents: Parents, *, where: str, inner: Inner = "all") -> Hierarchy:
    """The classes and their ancestors; `where` names the origin in errors."""
    known = {**dict.fromkeys(name for name in parents.values() if name is not None), **parents}
    own = _own_nodes(classes, known, where)
    chains = {node: _chain(node, known, where) for node in own}
    kept = set(own) if inner == "none" else set[str]().union(*chains.values())
    if inner == "branching":
        below: dict[str, set[str]] = {}
        for chain in chains.values():
            for child, above in itertools.pairwise(chain):
                below.setdefault(above, set()).add(child)
        kept = {node for node in kept if node in chains or len(below.get(node, ())) > 1}
    short = {node: [above for above in chain if above in kept] for node, chain in chains.items()}
    nodes = tuple(dict.fromkeys([*own, *(node for chain in short.values() for node in chain)]))
    places = {node: place for place, node in enumerate(nodes)}
    above = {child: parent for chain in short.values() for child, parent in itertools.pairwise(chain)}
    return Hierarchy(nodes, tuple(places[above[node]] if node in above else -1 for node in nodes), len(own))


def _own_nodes(classes: Sequence[str], known: Parents, where: str) -> list[str]:
    """The node of each class: of its name, of its WordNet id, or of a name that differs in case or underscores."""
    alike = {plain(name): name for name in known}
    found: list[str] = []
    missing: list[str] = []
    for name in classes:
        names = [
            each for each in (name, wordnet_id(name), alike.get(plain(name))) if each is not None and each in known
        ]
        (found if names else missing).append(names[0] if names else name)
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        hint = near_matches(missing[0], known) if len(known) < 10_000 else ""
        raise DataError(
            f"{where} does not say where the class '{missing[0]}'{more} belongs: add what is above it, or the name"
            f" alone for one at the top.{hint}"
        )
    twice = next((node for node in found if found.count(node) > 1), None) if len(set(found)) < len(found) else None
    if twice is not None:
        raise DataError(f"{where}: two classes are both '{twice}' there: give them names of their own.")
    return found


def _chain(node: str, known: Parents, where: str) -> list[str]:
    """The node and all that is above it."""
    chain: dict[str, None] = {node: None}
    while (above := known.get(node)) is not None:
        if above in chain:
            circle = [*list(chain)[list(chain).index(above) :], above]
            raise DataError(f"{where} goes in a circle: {' is below '.join(circle)}. Take one of these lines out.")
        chain[above], node = None, above
    return list(chain)


def read_parents(path: Path) -> dict[str, str | None]:
    """What is above each name, from a file of any of the kinds."""
    try:
        check_regular(path)
        if path.suffix in (".pth", ".pt"):
            return _from_tree(path)
        text = read_text(path)
    except FileNotFoundError:
        raise DataError(f"There is no hierarchy {path}: name a file that says what is above each class.") from None
    except OSError as error:
        raise DataError(f"Cannot read the hierarchy {path}: {error.strerror or error}.") from error
    except UnicodeDecodeError as error:
        raise DataError(f"The hierarchy {path} is not a text in UTF-8.") from error
    if text.lstrip().startswith("{"):
        return _from_json(text, path)
    lines = text.splitlines()
    first = next((line for line in lines if line and not line.startswith("  ")), "")
    return _from_wordnet(lines, path) if SYNSET.match(first) else _from_lines(lines, path)


def _from_json(text: str, path: Path) -> dict[str, str | None]:
    try:
        content = parse_json(text)
    except ValueError as error:
        raise DataError(f"The hierarchy {path} is no JSON: {error}.") from error
    for name, above in content.items():
        if above is not None and not isinstance(above, str):
            raise DataError(f"{path}: above '{name}' is {above!r}; a name or null is expected.")
    return content


def _from_lines(lines: Iterable[str], path: Path) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for number, line in enumerate(lines, 1):
        names = [name.strip() for name in line.split("\t" if "\t" in line else ",")]
        if names == [""]:
            continue
        if len(names) > 2 or not names[0]:
            raise DataError(f"{path}, line {number}: '{line[:80]}' is not a name and the one above it.")
        above = names[1] if len(names) == 2 and names[1] else None
        if found.get(names[0], above) != above:
            raise DataError(
                f"{path}, line {number}: '{names[0]}' is below '{found[names[0]]}' and '{above}': take one."
            )
        found[names[0]] = above
    return found


def _from_wordnet(lines: Iterable[str], path: Path) -> dict[str, str | None]:
    """Nouns by their ids; of several hypernyms the first, which WordNet lists first."""
    found: dict[str, str | None] = {}
    for line in lines:
        if line.startswith("  ") or not line:  # the licence
            continue
        start, fields = SYNSET.match(line), line.partition(" | ")[0].split()
        try:
            assert start is not None
            words = 4 + 2 * int(start[2], 16)
            pointers = fields[words + 1 :][: 4 * int(fields[words])]
            above = [at for kind, at in zip(pointers[::4], pointers[1::4], strict=True) if kind.startswith("@")]
            found[f"n{start[1]}"] = f"n{above[0]}" if above else None
        except (AssertionError, ValueError, IndexError) as error:
            raise DataError(f"{path}: '{line[:40]}' is not a line of WordNet's data.noun.") from error
    return found


def _from_tree(path: Path) -> dict[str, str | None]:
    """ImageNet-21K-P's file, as its authors' code reads it."""
    import torch

    try:
        content: Any = torch.load(path, map_location="cpu", weights_only=True)
        names, trees = (content[key] for key in TREE)
        chains = {str(names[int(chain[0])]): [str(names[int(node)]) for node in chain] for chain in trees}
    except Exception as error:  # torch raises many kinds for damaged files
        raise DataError(f"{path} is not ImageNet-21K-P's tree, with {' and '.join(TREE)} in it.") from error
    return {name: chain[1] if len(chain) > 1 else None for name, chain in chains.items()}

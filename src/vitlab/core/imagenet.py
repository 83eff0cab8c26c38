"""The thousand classes of ImageNet, in the order of every public checkpoint: WordNet identifiers and their lemmas."""

import functools
import re
from collections.abc import Sequence
from importlib.resources import files

WNID = re.compile(r"n[0-9]{8}")
SEVERAL = re.compile(rf".*\(({WNID.pattern}(?: {WNID.pattern})*)\)")  # 'Alarm clock (n02708093 n03196217)'
NAMED = re.compile(rf".*\(({WNID.pattern})\)")  # 'goldfish (n01443537)'


@functools.cache
def imagenet_classes() -> tuple[tuple[str, str], ...]:
    """(WordNet identifier, lemmas) per class; a lemma alone is not unique ('crane' is a bird and a machine)."""
    text = (files("vitlab.core") / "imagenet.tsv").read_text(encoding="utf-8")
    return tuple((key, name) for key, _, name in (line.partition("\t") for line in text.splitlines()))


def imagenet_labels() -> tuple[str, ...]:
    return tuple(name for _, name in imagenet_classes())


def with_words(classes: Sequence[str]) -> tuple[str, ...]:
    """Class names in which a WordNet id that is ImageNet's has its first lemma: 'goldfish (n01443537)'."""
    if not any(WNID.fullmatch(name) for name in classes):
        return tuple(classes)
    words = {key: f"{name.partition(',')[0]} ({key})" for key, name in imagenet_classes()}
    return tuple(words.get(name, name) for name in classes)


def words_of(name: str) -> str:
    """A class name without the WordNet id that it ends with."""
    return name if NAMED.fullmatch(name) is None else name.rpartition("(")[0].rstrip()


def wordnet_id(name: str) -> str | None:
    """The WordNet id that a class name is or ends with."""
    if WNID.fullmatch(name):
        return name
    found = NAMED.fullmatch(name)
    return None if found is None else found[1]


def wordnet_ids(name: str) -> tuple[str, ...]:
    """The WordNet ids that a class name is or ends with: several where it is as many of ImageNet's classes."""
    if WNID.fullmatch(name):
        return (name,)
    found = SEVERAL.fullmatch(name)
    return () if found is None else tuple(found[1].split())


def places_of(labels: Sequence[str], classes: Sequence[str]) -> list[int] | None:
    """Where each of the classes is among a model's labels, by name or WordNet id; None where one is not.

    Names are compared as they are first: 'A' and 'a' may be two classes.
    """
    for form in (list[str], _plainly, _wordnet):
        known, asked = form(labels), form(classes)
        table = {name: place for place, name in enumerate(known)}
        if len(table) == len(known) and len(set(asked)) == len(asked) and all(name in table for name in asked):
            return [table[name] for name in asked]
    return None


def _plainly(names: Sequence[str]) -> list[str]:
    return [plain(name) for name in names]


def _wordnet(names: Sequence[str]) -> list[str]:
    """Plain names, or the WordNet id of each that has one; those of the thousand where the names are ImageNet's."""
    thousand = imagenet_classes()
    if list(names) == [name for _, name in thousand]:
        return [key for key, _ in thousand]
    return [wordnet_id(name) or plain(name) for name in names]


def plain(name: str) -> str:
    """A class name without what names of one class differ in: case, underscores and spaces."""
    return " ".join(name.casefold().replace("_", " ").split())

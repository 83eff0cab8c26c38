"""Another data set with its parts arranged anew, by a name: 'arranged:train=train+val,test=test:flowers102'."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from vitlab.core.errors import DataError
from vitlab.data.contract import UNLABELLED, DataSet, Joined, Masks, Split, Target, Values
from vitlab.data.sources.source import SPLITS, Digest

PREFIX = "arranged:"
ALL = "all"  # the part of a set that is all of it


def arranged_name(data: str, **parts: Sequence[str]) -> str:
    """The name by which a set is opened with its parts arranged anew; its parts that are not named are left out."""
    said = ",".join(f"{part}={'+'.join(of)}" for part, of in parts.items())
    return f"{PREFIX}{said}:{data}"


def arrange(dataset: DataSet, parts: Mapping[str, Sequence[str]]) -> DataSet:
    """The set with its parts arranged anew: {'train': ('train', 'val'), 'test': ('test',)}; unlabelled images stay."""
    splits: dict[str, Split] = {}
    for part, of in parts.items():
        for name in of:
            if name not in dataset.splits:
                raise DataError(f"{dataset.name} has no part '{name}': it has {', '.join(dataset.splits)}.")
        chosen = [dataset.splits[name] for name in of]
        splits[part] = chosen[0] if len(chosen) == 1 else _join(chosen)
    digest = Digest(dataset.fingerprint, "arranged", *(f"{part}={'+'.join(of)}" for part, of in parts.items()))
    ordered = {split: splits[split] for split in SPLITS if split in splits}
    if UNLABELLED in dataset.splits:
        ordered[UNLABELLED] = dataset.splits[UNLABELLED]
    notes = [
        f"{part} is {' and '.join(of)} of the set as it was."
        for part, of in parts.items()
        if tuple(of) != (part,)  # what is as it was needs no words
    ]
    return dataclasses.replace(dataset, splits=ordered, fingerprint=digest.text(), notes=(*dataset.notes, *notes))


def with_all(dataset: DataSet) -> DataSet:
    """The set with one part more, `all`, which is all of its parts with labels."""
    parts = [part for name, part in dataset.splits.items() if name != UNLABELLED]
    joined = parts[0] if len(parts) == 1 else _join(parts)
    return dataclasses.replace(
        dataset, splits={**dataset.splits, ALL: joined}, fingerprint=Digest(dataset.fingerprint, ALL).text()
    )


def _join(parts: Sequence[Split]) -> Split:
    """One part of several, with the targets that all of them have."""
    shared = [name for name in parts[0].targets if all(name in part.targets for part in parts)]
    targets = {name: _join_targets([part.targets[name] for part in parts]) for name in shared}
    return Split(Joined(tuple(part.images for part in parts)), targets)


def _join_targets(targets: Sequence[Target]) -> Target:
    first = targets[0]
    assert all(target.kind == first.kind for target in targets), "the parts of a set have targets of one kind"
    if isinstance(first, Values):
        return Values(np.concatenate([t.values for t in targets if isinstance(t, Values)]), first.kind)
    return Masks(Joined(tuple(t.images for t in targets if isinstance(t, Masks))), first.classes, first.table)


def read_arranged(text: str, find: Callable[[str], DataSet]) -> DataSet:
    """The set that 'arranged:PART=PART+PART,...:DATA' means; `find` opens the DATA in it."""
    said, colon, data = text.removeprefix(PREFIX).partition(":")
    parts: dict[str, tuple[str, ...]] = {}
    for item in said.split(","):
        part, _, of = item.partition("=")
        names = tuple(of.split("+"))
        if not colon or part not in SPLITS or part in parts or not set(names) <= set(SPLITS):
            raise DataError(
                f"'{text}' is no arrangement of parts: write it as {PREFIX}train=train+val,test=test:DATA, with the"
                f" parts {', '.join(SPLITS)}."
            )
        parts[part] = names
    return arrange(find(data), parts)

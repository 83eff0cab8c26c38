"""What is wrong with a data set: unreadable files, copies, leaks, and by features wrong labels and outliers."""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

import numpy as np

from vitlab.data.contract import Array, DataSet
from vitlab.data.copies import NEAR, Pair, Place, find_copies, place_of
from vitlab.data.crops import find_crops
from vitlab.data.description import Description, describe
from vitlab.data.places import spread
from vitlab.evaluation.contract import EvaluationError, Subject
from vitlab.evaluation.features import Reading, outputs
from vitlab.evaluation.labeled_features import Progress
from vitlab.evaluation.outliers import NEIGHBOURS, nearest, outliers
from vitlab.evaluation.suspects import held_out_probabilities, suspicions

Stage: TypeAlias = Callable[[str, int], AbstractContextManager[Progress | None]]  # a title, and how much is to do

MOST: Final = 10_000  # images whose features are computed, unless a number is given
FEWEST: Final = 20  # images below which features tell nothing
FEWEST_OF_CLASS: Final = 5  # images of a class below which its labels are not judged
ALIKE: Final = 3  # nearest images of each that are looked at for cropped copies
POOR: Final = 0.5  # the share of labels that the features must agree with for suspicions to be worth much


@dataclass(frozen=True)
class Suspect:
    """An image whose label is likely wrong, and the class that its features speak for."""

    place: Place
    predicted: str
    given_probability: float
    predicted_probability: float
    margin: float  # the label's probability less the largest other one, -1 to 1: the lower, the surer


@dataclass(frozen=True)
class Outlier:
    """An image that is unlike all others."""

    place: Place
    distance: float  # mean cosine distance to its nearest neighbours
    times: float  # as far as the image in the middle is from its own


@dataclass(frozen=True)
class Labels:
    """Labels against features: how many were judged, what share features agree with, and those that are suspected."""

    judged: int
    agreement: float
    suspects: tuple[Suspect, ...]


@dataclass(frozen=True)
class Examination:
    """What a data set holds, and what is wrong with it; what is worst comes first."""

    description: Description
    copies: tuple[Pair, ...] = ()
    model: str | None = None  # whose features were looked at
    num_features: int = 0  # images that have them
    labels: Labels | None = None
    outliers: tuple[Outlier, ...] = ()
    notes: tuple[str, ...] = ()  # what was not looked for, and why
    seconds: float = 0.0

    @property
    def leaks(self) -> tuple[Pair, ...]:
        return tuple(pair for pair in self.copies if pair.leaks)

    @property
    def disagreeing(self) -> tuple[Pair, ...]:
        return tuple(pair for pair in self.copies if pair.disagrees)


def examine(
    dataset: DataSet,
    subject: Subject | None = None,
    *,
    near: float = NEAR,
    most: int = MOST,
    batch_size: int = 64,
    stage: Stage | None = None,
) -> Examination:
    """Every image decoded; with a subject, the features of at most so many, evenly spread over the parts."""
    if not near > 0:
        raise EvaluationError(f"The likeness of copies must be above 0, not {near}.")
    if most < 1:
        raise EvaluationError(f"The number of images whose features are looked at must be at least 1, not {most}.")
    start, stage, total = time.perf_counter(), stage or _silent, sum(map(len, dataset.splits.values()))
    with stage("Reading", total) as progress:
        description = describe(dataset, look=True, progress=progress)
    with stage("Looking for copies", total) as progress:
        copies = find_copies(dataset, near=near, progress=progress)
    found = Examination(description, tuple(copies))
    if subject is not None:
        found = _with_features(found, dataset, subject, near, most, batch_size, stage)
    return replace(found, seconds=time.perf_counter() - start)


def _with_features(
    found: Examination, dataset: DataSet, subject: Subject, near: float, most: int, batch_size: int, stage: Stage
) -> Examination:
    places = _chosen(dataset, found.description, most)
    if len(places) < FEWEST:
        few = f"Labels and outliers were not looked at: that takes {FEWEST} images that can be read."
        return replace(found, notes=(*found.notes, few))
    with stage("Features", len(places)) as progress:
        features = _features(dataset, places, subject, batch_size, progress)
    notes: list[str] = []
    there = sum(found.description.sizes.values()) - len(found.description.unreadable)
    if len(places) < there:
        notes.append(
            f"Features were computed of {len(places):,} of {there:,} images, evenly spread; --most takes more."
        )
    similarities, rows = nearest(features, NEIGHBOURS, device=subject.device)
    copies = found.copies
    if near <= 1:
        copies = (*copies, *_cropped(dataset, places, rows, copies, near, stage))
    distances = 1 - similarities.mean(axis=1)
    middle = max(float(np.median(distances)), 1e-12)
    far = tuple(
        Outlier(places[row], float(distances[row]), float(distances[row]) / middle) for row in outliers(distances)
    )
    labels, note = _labels(dataset, places, features, copies, subject, stage)
    notes += [] if note is None else [note]
    return replace(
        found,
        copies=copies,
        model=subject.name,
        num_features=len(places),
        labels=labels,
        outliers=far,
        notes=(*found.notes, *notes),
    )


def _chosen(dataset: DataSet, description: Description, most: int) -> list[Place]:
    """At most so many of the images that can be read, evenly spread: data sets are often sorted by class."""
    bad = {(item.split, item.index) for item in description.unreadable}
    good = [
        (name, index)
        for name, split in dataset.splits.items()
        for index in range(len(split))
        if (name, index) not in bad
    ]
    chosen = (good[row] for row in spread(len(good), most))
    return [place_of(dataset, name, dataset.splits[name], index) for name, index in chosen]


def _features(
    dataset: DataSet, places: Sequence[Place], subject: Subject, batch_size: int, progress: Progress | None
) -> Array:
    """A row per place; an image that could be read before and cannot now ends this."""
    parts: list[Array] = []
    done = 0
    for name, split in dataset.splits.items():
        chosen = [place.index for place in places if place.split == name]
        if not chosen:
            continue
        before = done
        told = None if progress is None else lambda now, _, before=before: progress(before + now, len(places))
        reading = Reading(batch_size=batch_size, max_damaged=0.0)
        parts += [
            batch.values.numpy() for batch in outputs(subject.features, subject, split.take(chosen), reading, told)
        ]
        done += len(chosen)
    features = np.concatenate(parts)
    assert len(features) == len(places)
    return features


def _cropped(
    dataset: DataSet, places: Sequence[Place], rows: Array, known: Sequence[Pair], near: float, stage: Stage
) -> list[Pair]:
    """Copies that are cropped or mirrored, among the images whose features are nearest; not those that are known."""
    pairs = {(pair.first.split, pair.first.index, pair.second.split, pair.second.index) for pair in known}
    second = {(pair.second.split, pair.second.index) for pair in known}
    near_rows = rows[:, :ALIKE]
    candidates = np.stack([np.repeat(np.arange(len(places)), near_rows.shape[1]), near_rows.ravel()], axis=1)
    candidates = np.unique(np.sort(candidates, axis=1), axis=0)
    with stage("Looking for cropped copies", len(places)) as progress:
        found = find_crops(dataset, places, candidates, near=near, progress=progress)
    return [
        pair
        for pair in found
        if (pair.second.split, pair.second.index) not in second
        and (pair.first.split, pair.first.index, pair.second.split, pair.second.index) not in pairs
    ]


def _labels(
    dataset: DataSet,
    places: Sequence[Place],
    features: Array,
    copies: Sequence[Pair],
    subject: Subject,
    stage: Stage,
) -> tuple[Labels | None, str | None]:
    """The labels that are suspected, or why none can be."""
    number = {name: k for k, name in enumerate(dataset.classes)}
    labelled = np.array([row for row, place in enumerate(places) if place.label is not None], np.int64)
    if not len(labelled):
        several = "several labels" if dataset.multi_label else "no class"
        return None, f"Labels were not looked at: images have {several} each."
    labels = np.array([number[places[row].label or ""] for row in labelled])
    judged = np.bincount(labels, minlength=len(number))[labels] >= FEWEST_OF_CLASS
    if len(np.unique(labels[judged])) < 2:
        return None, f"Labels were not looked at: that takes two classes with {FEWEST_OF_CLASS} images each."
    groups = _groups(places, copies)[labelled]
    with stage("Looking at labels", len(labelled)) as progress:
        held = held_out_probabilities(
            features[labelled], labels, len(number), groups.tolist(), device=subject.device, progress=progress
        ).probabilities
    agreement = float((held.argmax(axis=1) == labels)[judged].mean())
    suspects = tuple(
        Suspect(
            places[labelled[each.row]],
            dataset.classes[each.predicted],
            each.given_probability,
            each.predicted_probability,
            each.margin,
        )
        for each in suspicions(held, labels, judged)
    )
    note = None
    if agreement < POOR:
        note = (
            f"The features of {subject.name} agree with {agreement:.0%} of the labels only, so that its suspicions of"
            " labels are worth little: give another --model."
        )
    return Labels(int(judged.sum()), agreement, suspects), note


def _groups(places: Sequence[Place], copies: Sequence[Pair]) -> Array:
    """A number for each place that its copies share."""
    row = {(place.split, place.index): number for number, place in enumerate(places)}
    group = np.arange(len(places))
    for pair in copies:
        one, other = (row.get((place.split, place.index)) for place in (pair.first, pair.second))
        if one is not None and other is not None:
            group[group == group[other]] = group[one]
    return group


@contextlib.contextmanager
def _silent(title: str, total: int) -> Iterator[None]:  # noqa: ARG001  a stage that nobody watches
    yield None

"""From a run's folder to its `report.html`."""

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from PIL import Image

from vitlab.core.errors import Error
from vitlab.core.files import atomic_file
from vitlab.data.contract import DataSet, Split
from vitlab.evaluation.cost import model_cost, spent
from vitlab.models.contract import Model
from vitlab.reporting.answers import answer_words
from vitlab.reporting.facts import Facts
from vitlab.reporting.inside import Inside, look_inside
from vitlab.reporting.measure import Answer, Measured, affordable, check_limit, evenly, held_out, measure
from vitlab.reporting.page import page
from vitlab.reporting.pictures import picture_at
from vitlab.reporting.purpose import Purpose
from vitlab.reporting.record import RunRecord, read_run
from vitlab.reporting.tested import score_task
from vitlab.weights.load import load

NAME = "report.html"
MAPPED = 4  # pictures whose attention is drawn
AVERAGED = 64  # pictures that attention is averaged over, at most


@dataclass(frozen=True)
class Plan:
    """A run's data, and how many steps it was to make."""

    dataset: DataSet
    steps: int


@dataclass(frozen=True)
class Report:
    """The page, and how many held-out pictures it is from."""

    path: Path
    state: str
    images: int
    seconds: float
    missing: tuple[str, ...] = ()


def make_report(
    folder: Path,
    plan: Callable[[], Plan],
    *,
    purpose: Purpose | None = None,
    images: int | None = None,
    device: torch.device | str = "cpu",
    progress: Callable[[int, int], None] | None = None,
) -> Report:
    """Write the report of a run that has ended, goes on, or was killed; what cannot be had is said on the page.

    `plan` opens the run's data, `purpose` says what its model is for, by default classification. `images` is how many
    held-out pictures to look at; by default what takes some seconds.
    """
    check_limit(images)
    start = time.perf_counter()
    record = read_run(folder)
    missing: list[str] = []
    planned = _planned(record, plan, missing)
    model = _model(folder, missing)
    purpose = purpose or Purpose()
    if model is not None and getattr(model.config, "num_classes", None) == 0:
        purpose = replace(purpose, headless=True)
    measured, tested, inside = None, None, None
    if model is not None and planned is not None:
        model, dataset = model.to(device), planned.dataset
        where = torch.device(device)
        limit = affordable(model, where) if images is None else images
        try:
            if purpose.tells_classes:
                measured = measure(model, dataset, limit=limit, device=where, progress=progress)
            elif not purpose.headless:
                tested = score_task(model, purpose, dataset, limit=limit, device=where, progress=progress)
        except Error as error:
            missing.append(f"The model could not be measured: {error}")
        if measured is not None:
            inside = _inside(model, measured, missing)
        elif (held := held_out(dataset)) is not None and not (missing or purpose.tells_classes):
            inside = _averages(model, held[1].take(evenly(len(held[1]), AVERAGED)), missing)
        elif not missing:
            missing.append("The data has no held-out part, so nothing can be said on pictures that were not learned.")
    facts = Facts(
        record=record,
        dataset=None if planned is None else planned.dataset,
        total_steps=None if planned is None else planned.steps,
        purpose=purpose,
        measured=measured,
        tested=tested,
        inside=inside,
        spent=spent(folder) if record.lines or record.result else None,
        model_cost=None if model is None else model_cost(model),
        missing=tuple(missing),
    )
    path = folder / NAME
    with atomic_file(path) as partial:
        partial.write_text(page(facts), encoding="utf-8", errors="backslashreplace")  # a name may not be UTF-8
    seconds, looked_at = time.perf_counter() - start, measured or tested
    return Report(path, record.state, 0 if looked_at is None else looked_at.num, seconds, tuple(missing))


def _planned(record: RunRecord, plan: Callable[[], Plan], missing: list[str]) -> Plan | None:
    """The data, if it is there and still what it was."""
    try:
        planned = plan()
    except Error as error:
        missing.append(f"The data could not be opened, so no pictures were looked at. {error}")
        return None
    if record.data and planned.dataset.fingerprint != record.data.get("fingerprint"):
        missing.append("The data changed since the run was started, so the model was not measured on it.")
        return None
    return planned


def _model(folder: Path, missing: list[str]) -> Model | None:
    if not (folder / "model").is_dir():
        missing.append("There is no model yet: one is written when the held-out part was first looked at.")
        return None
    try:
        return load(folder / "model")
    except Error as error:
        missing.append(f"The model could not be read. {error}")
        return None


def _inside(model: Model, measured: Measured, missing: list[str]) -> Inside | None:
    """Attention of some answers, right and wrong, and averages over some pictures, spread evenly."""
    shown = [
        (answer_words(answer), picture)
        for answer in _telling(measured)
        if (picture := picture_at(measured.split, answer.place)) is not None
    ]
    return _looked_inside(model, shown, _pictures(measured), missing)


def _averages(model: Model, split: Split, missing: list[str]) -> Inside | None:
    """Averages over pictures, without maps of single ones: there is no class to ask about."""
    pictures = (picture_at(split, place) for place in range(len(split)))
    return _looked_inside(model, (), (picture for picture in pictures if picture is not None), missing)


def _looked_inside(
    model: Model, shown: Sequence[tuple[str, Image.Image]], pictures: Iterator[Image.Image], missing: list[str]
) -> Inside | None:
    try:
        return look_inside(model, shown, pictures)
    except Error as error:
        missing.append(f"The inside of the model could not be looked at. {error}")
        return None


def _telling(measured: Measured) -> list[Answer]:
    """Right and wrong answers in turn, of different classes as far as there are."""
    pairs = itertools.zip_longest(measured.best, measured.worst)
    answers = [answer for pair in pairs for answer in pair if answer is not None]
    first = {answer.truth: answer for answer in reversed(answers)}
    order = sorted(answers, key=lambda answer: first[answer.truth] is not answer)  # stable
    return order[:MAPPED]


def _pictures(measured: Measured) -> Iterator[Image.Image]:
    for place in evenly(len(measured.split), min(AVERAGED, max(measured.num // 4, 8))).tolist():
        if (picture := picture_at(measured.split, place)) is not None:
            yield picture

"""From a run's folder to its `report.html`."""

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from PIL import Image

from vitlab.core import notebook
from vitlab.core.errors import Error
from vitlab.core.files import atomic_file
from vitlab.core.words import one_line
from vitlab.data.contract import DataSet, Split
from vitlab.data.places import evenly
from vitlab.evaluation.cost import model_cost, spent
from vitlab.models.contract import Model
from vitlab.reporting.facts import Facts
from vitlab.reporting.inside import Inside, look_inside
from vitlab.reporting.page import page
from vitlab.reporting.pictures import picture_at
from vitlab.reporting.predictions import objective_sections
from vitlab.reporting.purpose import Purpose
from vitlab.reporting.record import RunRecord, read_run
from vitlab.reporting.summary import STATES, opened
from vitlab.reporting.tested import affordable, check_limit, examine_task, held_out, looked_at
from vitlab.tasks.results import Example, Tested
from vitlab.weights.load import load

NAME = "report.html"
MAPPED = 4  # pictures whose attention is drawn
AVERAGED = 64  # pictures that attention is averaged over, at most


@dataclass(frozen=True)
class Plan:
    """A run's data, how many steps it was to make, and in how many of them pictures are mixed; None: in all or none."""

    dataset: DataSet
    steps: int
    mixed: int | None = None


@dataclass(frozen=True)
class Report:
    """The page, how many held-out pictures it is from, and what it says first."""

    path: Path
    state: str
    images: int
    seconds: float
    missing: tuple[str, ...] = ()
    title: str = ""
    lead: str = ""

    def __repr__(self) -> str:
        return one_line(f"<Report {self.path}: {STATES[self.state][1]}. {self.lead}>")

    def _repr_html_(self) -> str:
        """What a notebook shows: the first sentences, and where the page is."""
        return notebook.card(
            self.title or str(self.path),
            notebook.faint(STATES[self.state][1]),
            notebook.line(self.lead) if self.lead else None,
            *(notebook.faint(sentence) for sentence in self.missing),
            notebook.link(self.path, f"The whole report: {self.path}"),
        )


def make_report(
    folder: Path,
    plan: Callable[[], Plan],
    *,
    purpose: Purpose | None = None,
    images: int | None = None,
    device: torch.device | str = "cpu",
    progress: Callable[[int, int], None] | None = None,
) -> Report:
    """Write the report of a run that has ended, is running, or was killed; what cannot be had is said on the page.

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
    if model is not None and model.takes_images and getattr(model.config, "num_classes", None) == 0:
        purpose = replace(purpose, headless=True)
    tested, looked = None, None
    if model is not None and planned is not None:
        model, dataset, where = model.to(device), planned.dataset, torch.device(device)
        held, limit = held_out(dataset), affordable(model, where) if images is None else images
        if held is None:
            missing.append("The data has no held-out part, so nothing can be said on pictures that were not learned.")
        elif purpose.headless:
            looked = looked_at(held[1], AVERAGED)
        elif model.takes_images:  # a generator's task looked at what it makes when the run ended
            try:
                tested = examine_task(model, purpose, dataset, limit=limit, device=where, progress=progress)
                looked = looked_at(held[1], limit)
            except Error as error:
                missing.append(f"The model could not be measured: {error}")
    shown = objective_sections(record, missing)
    facts = Facts(
        record=record,
        dataset=None if planned is None else planned.dataset,
        total_steps=None if planned is None else planned.steps,
        mixed_steps=None if planned is None else planned.mixed,
        purpose=purpose,
        tested=tested,
        shown=tuple(shown),
        spent=spent(folder) if record.lines or record.result else None,
        model_cost=None if model is None else model_cost(model),
        missing=tuple(missing),
    )
    if model is not None and looked is not None:
        facts = replace(facts, inside=_inside(model, facts, looked, missing), missing=tuple(missing))
    path = folder / NAME
    with atomic_file(path) as partial:
        partial.write_text(page(facts), encoding="utf-8", errors="backslashreplace")  # a name may not be UTF-8
    seconds = time.perf_counter() - start
    title, lead = opened(facts)
    return Report(path, record.state, 0 if tested is None else tested.num, seconds, tuple(missing), title, lead)


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


def _inside(model: Model, facts: Facts, split: Split, missing: list[str]) -> Inside | None:
    """Attention of some answers, right and wrong, and averages over some pictures, spread evenly."""
    tested, shown, num = facts.tested, list[tuple[str, Image.Image]](), AVERAGED
    if tested is not None:
        num = min(AVERAGED, max(tested.num // 4, 8))
        for example in _telling(tested):
            if (picture := picture_at(split, example.place)) is not None:
                shown.append((facts.purpose.task.caption(example, facts.context), picture))
    elif facts.purpose.headless:
        for place in evenly(len(split), MAPPED).tolist():
            if (picture := picture_at(split, place)) is not None:
                shown.append(("A held-out picture.", picture))
    pictures = (picture_at(split, place) for place in evenly(len(split), num).tolist())
    try:
        return look_inside(model, shown, (picture for picture in pictures if picture is not None))
    except Error as error:
        missing.append(f"The inside of the model could not be looked at. {error}")
        return None


def _telling(tested: Tested) -> list[Example]:
    """Right and wrong answers in turn, of different classes as far as there are; without classes to ask about, none."""
    pairs = itertools.zip_longest(tested.best, tested.worst)
    examples = [each for pair in pairs for each in pair if each is not None and each.answer.kind == "classes"]
    first = {example.truth.words(): example for example in reversed(examples)}
    order = sorted(examples, key=lambda example: first[example.truth.words()] is not example)  # stable
    return order[:MAPPED]

"""A model to be measured by a protocol: how it is opened, and how a protocol's function becomes a result."""

import contextlib
import dataclasses
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias, final

import torch

from vitlab.core.config import check_fields, from_dict, replace, to_dict
from vitlab.core.errors import ConfigError, near_matches
from vitlab.core.record import environment
from vitlab.data.contract import DataSet
from vitlab.data.jpeg import decoder_name
from vitlab.data.sources.arranged import ALL, with_all
from vitlab.evaluation.contract import EvaluationError, Outcome, Protocol, Result, Subject
from vitlab.evaluation.cost import exaflops, model_cost, spent
from vitlab.evaluation.features import Progress, Reading, Share, default_cache
from vitlab.evaluation.measurement import Measurement, choose_split
from vitlab.evaluation.protocols import PROTOCOLS
from vitlab.evaluation.subject import Precision, lent, subject_of
from vitlab.evaluation.testtime import TestTime, averaged
from vitlab.models.contract import Model
from vitlab.models.create import as_size, create, empty_model, family_of
from vitlab.models.timm.build import PREFIX
from vitlab.models.zoo.rows import ZOO, find_row
from vitlab.weights.load import load

BATCH_SIZE = 64  # images that go through a model at once where nothing else is asked for
Function: TypeAlias = Callable[[Measurement, Any], Outcome]


@final
@dataclass(frozen=True, kw_only=True)
class How:
    """What is the same for all protocols; what does not concern one is not looked at."""

    split: str | None = None
    name: str | None = None  # what the model is called in the result; None: its source
    image_size: int | None = None
    views: TestTime = field(default_factory=TestTime)
    batch_size: int | None = None
    workers: int | None = None
    cache: Path | None = None  # where features are kept; None: `default_cache`
    keep: bool = True  # whether features are kept
    device: str | None = None
    precision: Literal["auto", "float32", "bf16"] = "auto"  # auto: float32, and what is trained on a GPU in bf16

    def __post_init__(self) -> None:
        check_fields(self)
        if self.batch_size is not None and self.batch_size < 1:
            raise EvaluationError(f"The batch size must be at least 1, not {self.batch_size}.")

    @property
    def measuring(self) -> Precision:
        return "bf16" if self.precision == "bf16" else "float32"


class Process(NamedTuple):
    """This process among those that evaluate together."""

    device: torch.device
    share: Share

    @property
    def first(self) -> bool:
        return self.share.rank == 0


@final
@dataclass(frozen=True, kw_only=True)
class Host:
    """What the rooms above this one do for a protocol."""

    join: Callable[[str | None], AbstractContextManager[Process]]  # the processes that torchrun started
    open: Callable[[str, str | None], DataSet]  # of a source, as the run in a folder divided it
    open_unseen: Callable[[str, str | None], DataSet | None]  # whole, where its source has no parts and no run saw it
    planned_images: Callable[[str, int | None], int]  # that training by a recipe sees, of so many training images


@final
@dataclass(frozen=True, kw_only=True)
class Request:
    """A model to be measured by a protocol whose options were checked."""

    protocol: str
    model: Model | str
    data: str | None
    how: How
    options: Any
    host: Host
    progress: Progress | None = None

    @property
    def name(self) -> str:
        return self.how.name or (type(self.model).__name__ if isinstance(self.model, Model) else self.model)

    @property
    def source(self) -> str:
        if isinstance(self.model, Model):
            raise EvaluationError(f"The protocol {self.protocol} trains copies of a model: give its source, saved.")
        return self.model

    @property
    def needed_data(self) -> str:
        if self.data is None:
            raise EvaluationError(f"The protocol {self.protocol} needs a data set (--data).")
        return self.data

    @property
    def run_folder(self) -> str | None:
        """The run's folder, where the model is a run's."""
        model = self.model
        return model if isinstance(model, str) and Path(model, "recipe.json").exists() else None

    @property
    def trained_in(self) -> str | None:
        """The folder of the run that made the model, also where its `model/` alone is given."""
        model = self.model
        inside = isinstance(model, str) and Path(model).name == "model" and Path(model).parent.joinpath("recipe.json")
        return self.run_folder or (str(inside.parent) if inside and inside.exists() else None)

    def opened(self, *, learns: bool) -> tuple[DataSet, str]:
        """The data, and the part that is measured: of what was never trained on and has no parts, all of it."""
        data, split, run = self.needed_data, self.how.split, self.trained_in
        if (
            split is None and not learns and isinstance(self.model, str)
        ):  # of a model in memory nobody knows what it saw
            unseen = self.host.open_unseen(data, run)
            if unseen is not None:
                return unseen, ALL
        dataset = self.host.open(data, run)
        if split == ALL and not learns:
            dataset = with_all(dataset)
        return dataset, choose_split(dataset, split)

    def measure(
        self, function: Function, *, learns: bool = True, open_named: Callable[[str], DataSet] | None = None
    ) -> Result:
        """What a function finds of the model as it is, on the data; `open_named` opens it where not as ever.

        `learns`: the function learns from the train part, so that a part of a set without parts is held out.
        """
        how = self.how
        if open_named is None:
            dataset, split = self.opened(learns=learns)
        else:
            dataset = open_named(self.needed_data)
            split = choose_split(dataset, how.split)
        with self.lent_model() as (model, process):
            reading = Reading(
                batch_size=how.batch_size or BATCH_SIZE,
                workers=how.workers,
                cache=(how.cache or default_cache()) if how.keep else None,
                share=process.share,
            )
            given = Given(
                protocol=self.protocol,
                subject=subject_of(model, name=self.name, device=process.device, precision=how.measuring),
                dataset=dataset,
                split=split,
                options=self.options,
                views=how.views,
                reading=reading,
                progress=self.progress if process.first else None,
            )
            result = given.measure(function)
        settings = {**result.settings, "precision": how.measuring}
        return dataclasses.replace(result, settings=settings, cost=model_cost(model) | self.run_cost())

    @contextlib.contextmanager
    def lent_model(self, *, untrained: bool = False, empty: bool = False) -> Iterator[tuple[Model, Process]]:
        """The model while it is measured, and the processes that do; `untrained`: a model of the zoo will do."""
        model = self._model(untrained=untrained, empty=empty)
        with self.host.join(self.how.device) as process, lent(model):
            yield model, process

    def run_cost(self) -> dict[str, float]:
        """What training a run's model did cost, at the resolution that it was trained at."""
        folder = self.run_folder
        if folder is None:
            return {}
        used = spent(Path(folder))
        return {"exaflops": exaflops(run_flops(folder), used.images), "device_days": used.device_days}

    def _model(self, *, untrained: bool, empty: bool) -> Model:
        """The model that was given; where nothing is timed, one of the zoo without memory."""
        model, size = self.model, self.how.image_size
        if isinstance(model, Model):
            if size is not None:
                raise EvaluationError("A model that is in memory has its resolution: load it with image_size instead.")
            return model
        if not untrained or not (model in ZOO or model.startswith(PREFIX)):
            return load(model, image_size=size)
        if not empty:
            return create(model, image_size=size)
        row = find_row(model)
        changes = {} if size is None else {"image_size": as_size(size)}
        config = from_dict(family_of(row.family).config, row.config, where=model)
        return empty_model(replace(config, changes, where=model))


@final
@dataclass(frozen=True, kw_only=True)
class Given:
    """A request with a subject and a data set that are at hand, for protocols that measure a model as it is."""

    protocol: str
    subject: Subject
    dataset: DataSet
    split: str
    options: Any
    views: TestTime
    reading: Reading
    progress: Progress | None = None

    def measure(
        self, function: Function, *, learns: bool = True, open_named: Callable[[str], DataSet] | None = None
    ) -> Result:
        """What a function finds, with all that made it."""
        del learns, open_named  # the data is open
        start = time.perf_counter()
        subject, dataset, split = self.subject, self.dataset, self.split
        seen = averaged(subject, self.views, multi_label=dataset.multi_label)
        outcome = function(
            Measurement(subject=seen, dataset=dataset, split=split, reading=self.reading, progress=self.progress),
            self.options,
        )
        return Result(
            protocol=self.protocol,
            model=subject.name,
            data=dataset.name,
            metrics=outcome.metrics,
            counts={split if key == "test" else key: count for key, count in outcome.counts.items()},
            seeds=outcome.seeds,
            settings={
                "split": split,
                "resolution": list(subject.preprocess.size),
                "preprocess": to_dict(subject.preprocess),
                "views": dataclasses.asdict(self.views),
                "batch_size": self.reading.batch_size,
                "processes": self.reading.share.world,
                "device": subject.device.type,
                "weights": subject.fingerprint,
                "data": dataset.fingerprint,
                "notes": list(dataset.notes),
                **to_dict(self.options),
                **outcome.settings,
            },
            selected=outcome.selected,
            details=outcome.details,
            seconds=time.perf_counter() - start,
            environment=environment(decoder_name()),
        )


def measure(
    protocol: str | Protocol,
    subject: Subject,
    dataset: DataSet,
    *,
    split: str | None = None,
    options: Any = None,
    views: TestTime | None = None,
    reading: Reading | None = None,
    progress: Progress | None = None,
) -> Result:
    """A protocol's result on a subject and a data set that are at hand; `options` are the protocol's own."""
    found = PROTOCOLS.find(protocol) if isinstance(protocol, str) else protocol
    if not found.takes_data:
        raise EvaluationError(f"The protocol {found.name} measures no subject on data: use `vitlab.evaluate`.")
    chosen = found.options() if options is None else options
    assert isinstance(chosen, found.options)
    given = Given(
        protocol=found.name,
        subject=subject,
        dataset=dataset,
        split=choose_split(dataset, split),
        options=chosen,
        views=views or TestTime(),
        reading=reading or Reading(),
        progress=progress,
    )
    return found.run(given)


def run_flops(folder: str) -> float:
    """Of one image forward, by a run's own model."""
    return model_cost(load(folder))["flops"]


def checked_options(protocol: Protocol, given: Mapping[str, Any]) -> Any:
    """A protocol's options with values that a caller gave; names that are neither its own nor any's are refused."""
    own = [item.name for item in dataclasses.fields(protocol.options)]
    for name in given:
        if name not in own:
            known = own + [item.name for kind in (How, TestTime) for item in dataclasses.fields(kind)]
            known.remove("views")
            hint = near_matches(name, known) or f" Its options are {', '.join(known)}."
            raise ConfigError(f"The protocol {protocol.name} has no option '{name}'.{hint}")
    plain = {name: os.fspath(value) if isinstance(value, os.PathLike) else value for name, value in given.items()}
    return replace(protocol.options(), plain, where=f"protocol {protocol.name}")

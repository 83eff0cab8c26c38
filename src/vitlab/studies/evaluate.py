"""Every protocol by name: those that measure a model as it is, its cost, and those that train it first."""

import dataclasses
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from vitlab.core.config import check_fields, from_dict, replace
from vitlab.core.errors import ConfigError, near_matches, unknown_name
from vitlab.data.contract import DataSet
from vitlab.data.open import open_data
from vitlab.evaluation import protocols
from vitlab.evaluation.contract import EvaluationError, Result, Subject
from vitlab.evaluation.cost import exaflops, model_cost, spent
from vitlab.evaluation.costing import check_options, measure_cost
from vitlab.evaluation.features import Progress, Reading, Share, default_cache
from vitlab.evaluation.real import open_validation_images
from vitlab.evaluation.subject import Precision, lent, subject_of
from vitlab.evaluation.testtime import TestTime
from vitlab.models.contract import Model
from vitlab.models.create import as_size, create, empty_model, family_of
from vitlab.models.timm_build import PREFIX
from vitlab.models.zoo import ZOO, find_row
from vitlab.recipes import find_recipe
from vitlab.studies import transfer
from vitlab.studies.options import OPTIONS, FinetuneOptions, VtabOptions
from vitlab.training.distribution import World, join
from vitlab.training.durations import Pace
from vitlab.training.prepare import divide, open_parts
from vitlab.training.schedules import resolve
from vitlab.training.session import recipe_of
from vitlab.weights.load import load

BATCH_SIZE = 64  # images that go through a model at once where nothing else is asked for


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

    @property
    def measuring(self) -> Precision:
        return "bf16" if self.precision == "bf16" else "float32"


@dataclass(frozen=True, kw_only=True)
class Request:
    """A model to be measured by a protocol whose options were checked."""

    protocol: str
    model: Model | str
    data: str | None
    how: How
    options: Any
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


def evaluate(
    protocol: str,
    model: Model | str,
    data: str | None = None,
    *,
    how: How | None = None,
    options: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> Result:
    """What a protocol measures; processes that torchrun started share the work, and all get the same result."""
    if protocol not in PROTOCOLS:
        raise unknown_name("protocol", str(protocol), PROTOCOLS, f" The protocols are {', '.join(PROTOCOLS)}.")
    plain = {
        name: os.fspath(value) if isinstance(value, os.PathLike) else value for name, value in (options or {}).items()
    }
    _check_options(protocol, plain)
    chosen = replace(OPTIONS[protocol](), plain, where=f"protocol {protocol}")
    how = how or How()
    if how.batch_size is not None and how.batch_size < 1:
        raise EvaluationError(f"The batch size must be at least 1, not {how.batch_size}.")
    request = Request(protocol=protocol, model=model, data=data, how=how, options=chosen, progress=progress)
    return PROTOCOLS[protocol](request)


def _check_options(protocol: str, options: Iterable[str]) -> None:
    """Refuse names that are neither the protocol's nor any's; those of `How` and `TestTime` are for all."""
    own = [item.name for item in dataclasses.fields(OPTIONS[protocol])]
    for name in options:
        if name not in own:
            known = own + [item.name for kind in (How, TestTime) for item in dataclasses.fields(kind)]
            known.remove("views")
            hint = near_matches(name, known) or f" Its options are {', '.join(known)}."
            raise ConfigError(f"The protocol {protocol} has no option '{name}'.{hint}")


def share_of(world: World) -> Share:
    """This process's part of an evaluation, and how the parts of all are put together."""

    def gather(part: Tensor) -> list[Tensor]:
        whole = part.to(torch.uint8) if part.dtype is torch.bool else part  # not every backend sends booleans
        parts = [torch.empty_like(whole) for _ in range(world.size)]
        torch.distributed.all_gather(parts, whole)
        return [item.to(part.dtype) for item in parts]

    return Share() if world.size == 1 else Share(world.rank, world.size, gather)


def planned_images(recipe_name: str, train_images: int | None = None) -> int:
    """How many images training by a recipe sees; its data is opened unless its size is given."""
    recipe = find_recipe(recipe_name)
    size = len(divide(open_parts(recipe)).train) if train_images is None else train_images
    return resolve(recipe.schedule, Pace(recipe.batch_size, size)).total * recipe.batch_size


def _measured(request: Request) -> Result:
    """A protocol of `vitlab.evaluation` over the model as it is."""
    how = request.how
    data = request.needed_data
    dataset = open_validation_images(data) if request.protocol == "real" else _opened(request, data)
    split = protocols.choose_split(dataset, how.split)
    model = _model(request)
    with join(how.device) as world, lent(model):
        subject = subject_of(model, name=request.name, device=world.device, precision=how.measuring)
        result = protocols.measure(
            request.protocol,
            subject,
            dataset,
            split=split,
            options=request.options,
            views=how.views,
            reading=Reading(
                batch_size=how.batch_size or BATCH_SIZE,
                workers=how.workers,
                cache=(how.cache or default_cache()) if how.keep else None,
                share=share_of(world),
            ),
            progress=request.progress if world.first else None,
        )
    settings = {**result.settings, "precision": how.measuring}
    return dataclasses.replace(result, settings=settings, cost=model_cost(model) | _run_cost(request))


def _opened(request: Request, data: str) -> DataSet:
    """The data; where a run was trained on it, with the part held out that it held out."""
    folder = _run_of(request)
    if folder is not None:
        recipe = recipe_of(Path(folder))
        if os.path.realpath(os.path.expanduser(recipe.data.source)) == os.path.realpath(os.path.expanduser(data)):  # noqa: PTH111
            return open_parts(recipe)
    return open_data(data)


def _cost(request: Request) -> Result:
    """What a model costs; that needs no trained weights, so that a model of the zoo will do."""
    how, options = request.how, request.options
    check_options(options)
    images = planned_images(options.recipe, options.train_images) if options.recipe else options.images
    folder = options.run or _run_of(request)
    model = _model(request, empty=options.count_only)
    with join(how.device) as world, lent(model):
        subject: Subject | None = None
        if not options.count_only:
            subject = subject_of(model, name=request.name, device=world.device, precision=how.measuring)
        return measure_cost(
            model,
            subject,
            options,
            name=request.name,
            batch_size=how.batch_size,
            bf16=how.measuring == "bf16",
            images=images,
            run=None if folder is None else spent(Path(folder), devices=options.devices),
            run_flops=_run_flops(folder) if folder is not None and how.image_size is not None else None,
        )


def _finetune(request: Request) -> Result:
    options: FinetuneOptions = request.options
    result = transfer.finetune(
        request.source,
        request.needed_data,
        _folder(request),
        steps=options.steps,
        rates=options.rates,
        seeds=options.seeds,
        batch_size=request.how.batch_size,
        image_size=_training_size(request),
        machine=_machine(request),
        progress=request.progress,
    )
    return _with_cost(request, result)


def _vtab(request: Request) -> Result:
    options: VtabOptions = request.options
    result = transfer.vtab(
        request.source,
        Path(request.needed_data),
        _folder(request),
        tasks=options.tasks,
        steps=options.steps,
        rates=options.rates,
        seeds=options.seeds,
        batch_size=request.how.batch_size or transfer.BATCH_SIZE,
        image_size=_training_size(request),
        machine=_machine(request),
        progress=request.progress,
    )
    return _with_cost(request, result)


Protocol: TypeAlias = Callable[[Request], Result]
PROTOCOLS: dict[str, Protocol] = {
    **dict.fromkeys(protocols.PROTOCOLS, _measured),
    "finetune": _finetune,
    "vtab": _vtab,
    "cost": _cost,
}


def _model(request: Request, *, empty: bool = False) -> Model:
    """The model that was given; for its cost one of the zoo will do, and without memory where nothing is timed."""
    model, size = request.model, request.how.image_size
    if isinstance(model, Model):
        if size is not None:
            raise EvaluationError("A model that is in memory has its resolution: load it with image_size instead.")
        return model
    if request.protocol != "cost" or not (model in ZOO or model.startswith(PREFIX)):
        return load(model, image_size=size)
    if not empty:
        return create(model, image_size=size)
    row = find_row(model)
    changes = {} if size is None else {"image_size": as_size(size)}
    return empty_model(replace(from_dict(family_of(row.family).config, row.config, where=model), changes, where=model))


def _run_of(request: Request) -> str | None:
    """The run's folder, where the model is a run's."""
    model = request.model
    return model if isinstance(model, str) and Path(model, "recipe.json").exists() else None


def _run_cost(request: Request) -> dict[str, float]:
    """What training a run's model did cost, at the resolution that it was trained at."""
    folder = _run_of(request)
    if folder is None:
        return {}
    used = spent(Path(folder))
    return {"exaflops": exaflops(_run_flops(folder), used.images), "device_days": used.device_days}


def _run_flops(folder: str) -> float:
    """Of one image forward, by a run's own model."""
    return model_cost(load(folder))["flops"]


def _with_cost(request: Request, result: Result) -> Result:
    """What was trained at the resolution that it was trained at, beside what the runs took."""
    model = load(request.source, image_size=_training_size(request))
    cost = {**result.cost, **model_cost(model), **_run_cost(request)}
    return dataclasses.replace(result, model=request.name, cost=cost)


def _training_size(request: Request) -> int | None:
    if request.options.own_size:
        return None
    return request.how.image_size or transfer.IMAGE_SIZE


def _machine(request: Request) -> transfer.Machine:
    how, options = request.how, request.options
    return transfer.Machine(
        device=how.device,
        workers=how.workers,
        accumulate=options.accumulate,
        precision=how.precision,
        show=options.show,
    )


def _folder(request: Request) -> Path:
    """Where the runs are: the same for the same model and data, so that a second call goes on with the first."""
    if request.options.folder is not None:
        return Path(request.options.folder)
    parts = (request.protocol, request.needed_data, request.source)
    return Path("runs", "-".join(re.sub(r"[^A-Za-z0-9.]+", "-", part).strip("-.") for part in parts))

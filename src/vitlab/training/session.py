"""A run from its recipe to its end: new or resumed, alone or among several processes."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError
from torch import Tensor
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

from vitlab.core.compiling import compile_options
from vitlab.core.config import from_dict, to_dict
from vitlab.core.errors import ConfigError, DataError, Error
from vitlab.core.files import clear_up
from vitlab.core.record import environment, write_json
from vitlab.data.contract import DataSet, Split
from vitlab.data.description import describe
from vitlab.data.feed import SETTING, Damage
from vitlab.data.jpeg import decoder_name
from vitlab.data.resident import Pixels, ResidentFeed
from vitlab.evaluation.subject import model_fingerprint
from vitlab.models.contract import Model
from vitlab.models.cost import count_parameters
from vitlab.models.create import empty_model
from vitlab.objectives.distillation import Distillation
from vitlab.training import checkpoints, loop, prepare
from vitlab.training.adapters import hold_still, merged
from vitlab.training.average import Average
from vitlab.training.batch_norm import synchronise
from vitlab.training.captured import CapturedStepper, can_capture
from vitlab.training.distribution import World, count_of, join, largest_of, resolve_spread, share_first, spread
from vitlab.training.durations import Pace, steps
from vitlab.training.log import TRACKER, ProgressView, open_sinks
from vitlab.training.muon import Muon
from vitlab.training.optimisers import build
from vitlab.training.recipe import Recipe
from vitlab.training.run import RunError, Stop, differences, locked, read_json, resuming
from vitlab.training.schedules import resolve
from vitlab.training.state import State
from vitlab.training.step import Stepper
from vitlab.weights.load import load, save

# Parameters below which a CPU's threads wait for each other longer than they work: on a machine with other work, ten
# times as long.
ONE_THREAD = 1_000_000
ARCHITECTURE = "architecture.json"  # a run's file: its model but for the weights, which checkpoints hold
LOOK_AT = 100  # images of each part that are decoded before a run starts, to say whether some cannot be
# where and how a run is computed, which may change when it is resumed; data and teacher are known by fingerprints
HOW = frozenset(
    {"spread", "compile", "tracker", "teacher.source"}
    | {f"data.{name}" for name in ("source", "workers", "resident", "max_unreadable")}
)
FILES = ("checkpoints", "model", "metrics.jsonl", "recipe.json", "environment.json", "data.json", "report.html")
OWN = (*FILES, ARCHITECTURE, TRACKER)  # what a run writes into its folder
# what gloo's and NCCL's errors say when the other end is gone
LOST_PEER = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "NCCL")


@dataclass(frozen=True)
class Outcome:
    """What became of a run; `status` is the exit status of the command line."""

    folder: Path
    reason: str
    status: int
    step: int
    scores: Mapping[str, float]


def train(recipe: Recipe, folder: Path, *, device: str | None = None, show: bool = True) -> Outcome:
    """A new run in a folder that holds none yet, nor what a run would write over."""
    if (folder / "recipe.json").exists():
        raise RunError(f"{folder} holds a run already: go on with it ({resuming(folder)}), or choose another folder.")
    if taken := [name for name in OWN if _is_taken(folder / name)]:
        raise RunError(
            f"{folder} holds {taken[0]}, which is no run's and would be written over: choose another folder."
        )
    return _run(recipe, folder, device=device, show=show)


def _is_taken(path: Path) -> bool:
    """Whether there is something that is not of a run that ended before it began."""
    if path.name == "environment.json" and path.is_file():
        with contextlib.suppress(Error):
            return "recipe" not in read_json(path)
    return path.exists() and (any(path.iterdir()) if path.is_dir() else path.stat().st_size > 0)


def resume(folder: Path, *, recipe: Recipe | None = None, device: str | None = None, show: bool = True) -> Outcome:
    """Go on with a run from its last checkpoint; a recipe that is not the run's is refused, but for how it is run."""
    chosen = recipe_of(folder) if recipe is None else recipe
    path = folder / "environment.json"
    if started := read_json(path).get("recipe"):  # fields that came later are at their defaults
        first = to_dict(from_dict(Recipe, started, where=str(path)))
    else:
        first = to_dict(recipe_of(folder))
    taught = [recipe["teacher"]["source"] is not None for recipe in (first, to_dict(chosen))]
    free = HOW if taught[0] == taught[1] else HOW - {"teacher.source"}
    if changed := differences(first, to_dict(chosen), free=free):
        raise RunError(f"The recipe is not the one that {folder} was started with: {'; '.join(changed)}.")
    return _run(chosen, folder, device=device, show=show)


def recipe_of(folder: Path) -> Recipe:
    """The recipe of a run, as it was last run."""
    return from_dict(Recipe, read_json(folder / "recipe.json"), where=str(folder / "recipe.json"))


def _run(recipe: Recipe, folder: Path, *, device: str | None, show: bool) -> Outcome:
    stop = Stop()
    with contextlib.ExitStack() as stack:
        world = stack.enter_context(join(device))
        if world.first:
            stack.enter_context(locked(folder))
            clear_up(folder, OWN)
        stack.enter_context(stop.listening())
        if world.size > 1:
            torch.distributed.barrier()
        dataset = _open_data(recipe, folder)
        try:
            return _train(recipe, folder, dataset, world, stop, show=show and world.first, stack=stack)
        except (OSError, SafetensorError) as error:
            if not checkpoints.is_full(error):
                raise
            kept = checkpoints.last_good(folder / "checkpoints")
            raise checkpoints.DiskFullError(
                f"The disk of {folder} is full: make room and go on ({resuming(folder)}); of checkpoints {kept}."
            ) from error
        except RuntimeError as error:
            if world.size == 1 or not any(sign in str(error) for sign in LOST_PEER):
                raise
            stop.to_the_end = True
            raise RunError(
                f"Process {world.rank} lost another process of this run, whose own message says why; when that is"
                f" mended, go on from the last checkpoint: {resuming(folder)}."
            ) from error


def _open_data(recipe: Recipe, folder: Path) -> DataSet:
    """The run's data, which are still what they were when it started."""
    path, elsewhere = folder / "data.json", f"{resuming(folder)} --data.source WHERE"
    try:
        dataset = prepare.open_parts(recipe)
    except Error as error:
        if not path.exists() or Path(recipe.data.source).exists():
            raise
        raise RunError(f"{error} Are the data of {folder} elsewhere now? {elsewhere}") from error
    if path.exists() and read_json(path).get("fingerprint") != dataset.fingerprint:
        raise RunError(
            f"The data ({recipe.data.source}) changed since {folder} was started: bring the old state back (where it"
            f" lies elsewhere, {elsewhere}), or start a new run."
        )
    return dataset


def _check_teacher(recipe: Recipe, folder: Path, mark: str | None) -> None:
    path = folder / "data.json"
    if path.exists() and read_json(path).get("teacher", mark) != mark:
        raise RunError(
            f"The teacher ({recipe.teacher.source}) changed since {folder} was started: bring the old one back, or"
            " start a new run."
        )


def _record(recipe: Recipe, folder: Path, dataset: DataSet, model: Model, teacher: str | None) -> None:
    """Write what the run is: the recipe as it is run, and as it was first, to tell whether it was changed."""
    if not (folder / "data.json").exists():
        data = {"name": dataset.name, "fingerprint": dataset.fingerprint, "classes": list(dataset.classes)}
        data |= {} if teacher is None else {"teacher": teacher}
        write_json(folder / "environment.json", {**environment(decoder_name()), "recipe": to_dict(recipe)})
        write_json(folder / "recipe.json", to_dict(recipe))
        write_json(folder / ARCHITECTURE, prepare.architecture(model))
        write_json(folder / "data.json", data)
    elif to_dict(recipe) != read_json(folder / "recipe.json"):
        write_json(folder / "recipe.json", to_dict(recipe))


def _train(
    recipe: Recipe,
    folder: Path,
    dataset: DataSet,
    world: World,
    stop: Stop,
    *,
    show: bool,
    stack: contextlib.ExitStack,
) -> Outcome:
    parts = prepare.divide(dataset)
    if recipe.patience is not None and parts.val is None:
        raise ConfigError("patience waits for a better score on a held-out part, and there is none: hold one out.")
    pace = Pace(recipe.batch_size, len(parts.train))
    schedule = resolve(recipe.schedule, pace)
    view = ProgressView(schedule.total, 0, shown=show)
    stack.callback(view.close)
    description = describe(dataset, look=LOOK_AT if show else 0)
    for line in description.lines():
        view.say(line)
    for name in dataset.splits.keys() - {"test"}:  # which may lack any: it is not scored then
        damage = Damage(description.sizes[name], recipe.data.max_unreadable, SETTING)
        damage.found = {item.index: item.reason for item in description.unreadable if item.split == name}
        damage.check(len(damage.found))

    kept, known = checkpoints.newest(folder / "checkpoints"), folder / ARCHITECTURE
    if kept is not None and known.exists():
        model = prepare.rebuild_model(recipe, dataset, read_json(known), known)
    else:
        model = prepare.build_model(recipe, dataset)
    model = model.to(world.device).train()
    if (note := synchronise(model, world)) is not None:
        view.say(note)
    hold_still(model)
    if world.device.type == "cpu" and count_parameters(model) < ONE_THREAD:
        stack.callback(torch.set_num_threads, torch.get_num_threads())
        torch.set_num_threads(1)
    objective = prepare.build_objective(recipe, parts, dataset, model).to(world.device)
    teacher = model_fingerprint(objective.teacher) if isinstance(objective, Distillation) else None
    _check_teacher(recipe, folder, teacher)
    autocast = _autocast(recipe, world)
    how, note = resolve_spread(recipe.spread, model, world.size, compiled=recipe.compile)
    if note is not None:
        view.say(note)
    module = spread(model, world, how, _dtype(recipe, world))
    alone_on_gpu = world.device.type == "cuda" and world.size == 1 and how == "replicate"
    share_first(world, (parameter.detach() for parameter in objective.parameters()))
    optimisers = build(model, objective.param_groups(), recipe.optimiser, on_device=alone_on_gpu)
    average = None if recipe.optimiser.average is None else Average(model, recipe.optimiser.average)
    state = State(model, objective, optimisers, average)
    if kept is not None:
        checkpoints.read(kept, state)
        if world.first:
            checkpoints.prune(folder / "checkpoints", state.progress.best_step)
        view.say(f"Going on from step {state.progress.step}.")
    if recipe.compile:
        torch._dynamo.reset()  # an earlier run's sizes in this process would make this one's variable
        module.compile(options=compile_options(world.device))
        view.say("The model is compiled with its first step, which may take a minute or two.")
    pixels = {"train": prepare.resident_pixels(recipe, parts.train, world.device, view.say)}
    for name, split in (("val", parts.val), ("test", parts.test)):
        if pixels["train"] is not None and split is not None:
            pixels[name] = prepare.resident_inputs(recipe, split, model.preprocess, world.device, view.say)
    feed = prepare.build_feed(
        recipe, parts.train, pixels["train"], model.preprocess, dataset.num_classes, world, state.progress.step
    )
    stack.callback(feed.close)
    if recipe.compile and isinstance(feed, ResidentFeed):
        feed.compile()
        if alone_on_gpu:
            for part in (average, *optimisers):
                if isinstance(part, Average | Muon):
                    part.compile()
    arguments: dict[str, Any] = {
        "state": state,
        "module": module,
        "feed": feed,
        "spec": recipe.optimiser,
        "accumulate": recipe.accumulate,
        "seed": recipe.seed,
        "world": world,
        "autocast": autocast,
    }
    stepper = CapturedStepper(**arguments) if can_capture(arguments) else Stepper(**arguments)
    if recipe.compile and isinstance(stepper, CapturedStepper):
        stepper.compile()
    step, evaluated = state.progress.step, state.progress.evaluated
    where = {"after": step, "evaluated": evaluated, "say": view.say}
    sinks = open_sinks(folder, recipe.name, recipe.tracker, **where) if world.first else []
    for sink in sinks:
        stack.callback(sink.close)
    if world.first:
        _record(recipe, folder, dataset, model, teacher)
    every = {
        name: steps(getattr(recipe, f"{name}_every"), pace, total=schedule.total)
        for name in ("log", "evaluate", "checkpoint")
    }

    def signalled() -> int:
        return largest_of(world, stop.signal or 0)  # it may have come to one process only

    def validate() -> Mapping[str, float] | None:
        assert parts.val is not None
        with _averaged(state):
            return prepare.score(model, parts.val, pixels.get("val"), recipe, world, autocast, signalled)

    def check() -> None:
        if world.size > 1 and isinstance(feed, prepare.LoaderFeed):
            feed.loader.check(count_of(world, feed.damaged, len(parts.train)))

    def save_model() -> None:
        with _averaged(state):
            _export(model, folder / "model", world)

    ending = loop.run(
        state,
        stepper,
        schedule,
        recipe.optimiser.rate,
        loop.Intervals(every["log"], every["evaluate"], every["checkpoint"]),
        folder=folder,
        world=world,
        signalled=signalled,
        sinks=sinks,
        view=view,
        check=check,
        evaluate=validate if parts.val is not None else None,
        save_best=save_model if recipe.keep == "best" else lambda: None,
        patience=recipe.patience,
        max_skipped=recipe.max_skipped,
        images_a_step=recipe.batch_size,
    )
    scores: dict[str, float] = {}
    if ending.reason != "signal":
        if recipe.keep == "last" or parts.val is None:
            save_model()
        if world.size > 1:
            torch.distributed.barrier()
        if parts.test is not None:
            saved = load(folder / "model").to(world.device)  # the weights that are handed out, the best or the last
            scores = _tested(saved, parts.test, pixels.get("test"), recipe, world, autocast, signalled, view)
        if number := signalled():  # what is left is done when it goes on
            return Outcome(folder, "signal", 128 + number, state.progress.step, {})
        if recipe.keep == "last" and state.progress.last_score is not None:
            scores["val score"] = state.progress.last_score
        elif state.progress.best_score is not None:
            scores["best val score"] = state.progress.best_score
        if state.progress.skipped:
            view.say(
                f"{state.progress.skipped:,} of {state.progress.step:,} steps were left out: loss or gradients were not"
                " finite."
            )
        unreadable = count_of(world, feed.damaged, len(parts.train))
        if unreadable:
            view.say(
                f"{unreadable:,} of {len(parts.train):,} training images could not be read: others took their places."
            )
        if world.first:
            ended = {"reason": ending.reason, "unreadable": unreadable}
            write_json(folder / "result.json", {**scores, **dataclasses.asdict(state.progress), **ended})
    return Outcome(folder, ending.reason, ending.status, state.progress.step, scores)


def _tested(
    model: Model,
    split: Split,
    pixels: Pixels | None,
    recipe: Recipe,
    world: World,
    autocast: Any,
    signalled: Callable[[], int],
    view: ProgressView,
) -> dict[str, float]:
    """The scores on the test part; one that cannot be read costs the run no more than these."""
    try:
        tested = prepare.score(model, split, pixels, recipe, world, autocast, signalled)
    except DataError as error:
        if world.size > 1:  # the others wait for this one's sums
            raise
        view.say(f"The test part is not scored: {error}")
        return {}
    if tested is None:
        return {}
    if left := len(split) - int(tested["count"]):
        view.say(f"{left:,} of {len(split):,} test images could not be read: they are left out.")
    return {f"test {name}": value for name, value in tested.items()}


@contextlib.contextmanager
def _averaged(state: State) -> Any:
    """The averaged weights in the model's place, where there are any."""
    if state.average is not None:
        state.average.swap()
    try:
        yield
    finally:
        if state.average is not None:
            state.average.swap()


def _export(model: Model, path: Path, world: World) -> None:
    """The model in the native format, whole and with adapters folded in."""
    if torch.distributed.is_initialized():  # every process has to take part, where they hold parts
        weights = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    else:
        weights = {name: value.detach().cpu() for name, value in model.state_dict().items()}
    if world.first:
        whole = empty_model(model.config, model.preprocess)
        whole.load_state_dict(merged(cast("Mapping[str, Tensor]", weights)), assign=True)
        whole.labels, whole.multi_label = model.labels, model.multi_label
        save(whole, path)


def _dtype(recipe: Recipe, world: World) -> torch.dtype:
    bf16 = recipe.precision == "bf16" or (recipe.precision == "auto" and world.device.type == "cuda")
    return torch.bfloat16 if bf16 else torch.float32


def _autocast(recipe: Recipe, world: World) -> Any:
    if _dtype(recipe, world) is torch.float32 or recipe.spread == "shard":
        return contextlib.nullcontext
    return functools.partial(torch.autocast, world.device.type, torch.bfloat16)

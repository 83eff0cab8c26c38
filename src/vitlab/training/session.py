"""A run from its recipe to its end: new or resumed, alone or among several processes."""

import contextlib
import copy
import dataclasses
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError

from vitlab.core.config import to_dict
from vitlab.core.errors import DataError, Error
from vitlab.core.files import clear_up
from vitlab.core.progress import stage
from vitlab.core.record import environment, write_json
from vitlab.data.contract import DataSet
from vitlab.data.description import describe
from vitlab.data.jpeg import decoder_name
from vitlab.data.loading.ring_buffer import SETTING, Damage
from vitlab.data.open import PHOTOS
from vitlab.data.streams import StreamPlan
from vitlab.models.contract import Model
from vitlab.models.fingerprint import model_fingerprint
from vitlab.models.outside import OutsideModel
from vitlab.objectives import pseudo_labels
from vitlab.objectives.shown import FOLDER as PREDICTIONS
from vitlab.training import checkpoints, compiling, estimate, loop, lr_range
from vitlab.training.adapters import hold_still
from vitlab.training.assembly import Run, assemble, main_stream
from vitlab.training.batch_norm import synchronize
from vitlab.training.distribution import World, join, largest_of, shared
from vitlab.training.execution import decide
from vitlab.training.finish import RunOutcome, finish
from vitlab.training.learner import Learner
from vitlab.training.log import TRACKER, ProgressView, check_tracker, open_sinks
from vitlab.training.memory import memory_ran_out, too_large
from vitlab.training.model import architecture, build_model, check_model, rebuild_model
from vitlab.training.plan import Given, Plan, make_plan, open_parts
from vitlab.training.recipe import Recipe, read_recipe
from vitlab.training.run import RunError, Stop, check_there, differences, locked, read_json, resuming

ARCHITECTURE = "architecture.json"  # a run's file: its model but for the weights, which checkpoints hold
LR_RANGE = "lr_range.json"  # a run's file: how its lr was found
LOOK_AT = 100  # images of each part that are decoded before a run starts, to say whether some cannot be
# where and how a run is computed, which may change when it is resumed; data and teacher are known by fingerprints
HOW = frozenset(
    {"strategy", "compile", "tracker", "objective.teacher"}
    | {f"data.{name}" for name in ("source", "workers", "resident", "max_unreadable")}
)
FILES = ("checkpoints", "model", "metrics.jsonl", "recipe.json", "environment.json", "data.json", "report.html")
BEFORE = (pseudo_labels.FILE, pseudo_labels.COUNTS)  # made before a run begins; made anew where they are not its own
OWN = (*FILES, ARCHITECTURE, TRACKER, PREDICTIONS, *BEFORE)  # what a run writes into its folder
# what gloo's and NCCL's errors say when the other end is gone
LOST_PEER = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "NCCL")


def train(
    recipe: Recipe,
    folder: Path,
    *,
    device: str | None = None,
    show: bool = True,
    given: Given | None = None,
    find_lr: bool = False,
) -> RunOutcome:
    """A new run in a folder that holds none yet, nor what a run would write over.

    With `find_lr` a range test chooses optimizer.lr before the first step, and the run is that of a recipe with it.
    """
    if (folder / "recipe.json").exists():
        raise RunError(f"{folder} holds a run already: resume it ({resuming(folder)}), or choose another folder.")
    if folder.exists() and not folder.is_dir():
        raise RunError(f"{folder} is a file; give the name of a folder for the run.")
    if folder.exists() and folder.resolve() == Path(recipe.data.source.removeprefix(PHOTOS)).resolve():
        raise RunError(f"{folder} holds the images, and a run's files would lie among them: choose another folder.")
    if taken := [name for name in OWN if _is_taken(folder / name)]:
        raise RunError(
            f"{folder} holds {taken[0]}, which is no run's and would be written over: choose another folder."
        )
    check_model(recipe.model)
    check_tracker(recipe.tracker)
    return _run(recipe, folder, device=device, show=show, given=given or Given(), find_lr=find_lr)


def _is_taken(path: Path) -> bool:
    """Whether there is something that is not of a run that ended before it began."""
    if path.name in BEFORE and path.is_file():
        return False
    if path.name == "environment.json" and path.is_file():
        with contextlib.suppress(Error):
            return "recipe" not in read_json(path)
    return path.exists() and (any(path.iterdir()) if path.is_dir() else path.stat().st_size > 0)


def resume(
    folder: Path,
    *,
    recipe: Recipe | None = None,
    device: str | None = None,
    show: bool = True,
    given: Given | None = None,
) -> RunOutcome:
    """Resume a run from its last checkpoint; a recipe that is not the run's is refused, but for how it is run."""
    chosen = recipe_of(folder) if recipe is None else recipe
    path = folder / "environment.json"
    if started := read_json(path).get("recipe"):  # fields that came later are at their defaults
        first = to_dict(read_recipe(started, where=str(path)))
    else:
        first = to_dict(recipe_of(folder))
    if changed := differences(first, to_dict(chosen), free=HOW):
        raise RunError(f"The recipe is not the one that {folder} was started with: {'; '.join(changed)}.")
    return _run(chosen, folder, device=device, show=show, given=given or Given())


def recipe_of(folder: Path) -> Recipe:
    """The recipe of a run, as it was last run."""
    return read_recipe(read_json(folder / "recipe.json"), where=str(folder / "recipe.json"))


def _run(
    recipe: Recipe, folder: Path, *, device: str | None, show: bool, given: Given, find_lr: bool = False
) -> RunOutcome:
    stop = Stop()
    with contextlib.ExitStack() as stack:
        world = stack.enter_context(join(device))
        _take_folder(folder, world, stack)
        stack.enter_context(stop.listening())
        dataset = _open_data(recipe, folder)
        if not (folder / "data.json").exists():  # a run that is resumed keeps what it began with
            recipe = dataclasses.replace(recipe, augmentation=recipe.augmentation.without(dataset.changes_labels))
        plan = make_plan(recipe, folder, dataset, given)
        view = ProgressView(plan.schedule.total, shown=show and world.first, words=plan.words)
        stack.callback(view.close)
        _describe(plan, view, look=LOOK_AT if view.shown else 0)
        try:
            plan = _with_lr(plan, world, stop, view) if find_lr else plan
            return _compiled_or_not(plan, world, stop, view)
        except (OSError, SafetensorError) as error:
            if memory_ran_out(error):
                raise RunError(too_large(plan, world)) from error
            if world.first:
                check_there(folder)
            if not checkpoints.is_full(error):
                raise
            kept = checkpoints.last_good(folder / "checkpoints")
            raise checkpoints.DiskFullError(
                f"The disk of {folder} is full: make room and resume ({resuming(folder)}); of checkpoints {kept}."
            ) from error
        except (RuntimeError, MemoryError) as error:
            if memory_ran_out(error):
                raise RunError(too_large(plan, world)) from error
            if world.size == 1 or not any(sign in str(error) for sign in LOST_PEER):
                raise
            stop.to_the_end = True
            raise RunError(
                f"This run lost one of its processes, whose own message says why; when that is mended,"
                f" resume from the last checkpoint: {resuming(folder)}."
            ) from error


def _take_folder(folder: Path, world: World, stack: contextlib.ExitStack) -> None:
    """Lock a run's folder and clear it up, in the first process; where it cannot, all processes say the same."""
    refusal = None
    if world.first:
        try:
            stack.enter_context(locked(folder))
            clear_up(folder, OWN)
        except (Error, OSError) as error:
            if world.size == 1:
                raise
            refusal = str(error)
    try:
        said = shared(refusal)
    except RuntimeError as error:  # the first process is gone before its sentence is here
        if not any(sign in str(error) for sign in LOST_PEER):
            raise
        said = "The first process ended before the run began: its own message says why."
    if said is not None:
        raise RunError(said)


def _with_lr(plan: Plan, world: World, stop: Stop, view: ProgressView) -> Plan:
    """The plan with the lr that a range test finds, with a model and an objective that are thrown away."""
    recipe, total = plan.recipe, max(plan.schedule.total, lr_range.NUM)
    rehearsal = dataclasses.replace(
        plan,
        recipe=dataclasses.replace(recipe, compile=False),
        schedule=dataclasses.replace(plan.schedule, total=total),
        mixed=plan.mixed if plan.mixed < plan.schedule.total else total,
        given=copy.deepcopy(plan.given),
    )
    with contextlib.ExitStack() as stack, stage("Looking for the learning rate", shown=view.shown) as progress:
        quiet = ProgressView(total, shown=False)
        run = _assembled(rehearsal, world, stop, quiet, None, stack, capture=False).run
        if len(run.state.learner.phases) > 1:
            raise lr_range.LrRangeError(
                f"No learning rate was looked for: a range test follows one loss, and the players of"
                f" {recipe.objective.name} take turns with a loss each. Give one (--optimizer.lr)."
            )
        found = lr_range.find_lr(run, signalled=run.scoring.signalled, progress=progress)
    if world.first:
        write_json(plan.folder / LR_RANGE, dataclasses.asdict(found))
    view.say(f"Learning rate {found.lr:g}: {found.rule}, in {len(found.lrs)} steps ({plan.folder / LR_RANGE}).")
    optimizer = dataclasses.replace(recipe.optimizer, lr=found.lr)
    return dataclasses.replace(plan, recipe=dataclasses.replace(recipe, optimizer=optimizer))


def _compiled_or_not(plan: Plan, world: World, stop: Stop, view: ProgressView) -> RunOutcome:
    """The run; one whose model cannot be compiled continues from its last checkpoint, or its beginning, without."""
    try:
        with contextlib.ExitStack() as stack:
            return _train(plan, world, stop, view, stack)
    except RuntimeError as error:
        if not compiling.is_its_own(error):
            raise
        compiling.note(plan.folder, error)
        why = f"This model cannot be compiled ({plan.folder / compiling.LOG} says why)"
        if world.size > 1 or plan.given != Given():  # others may wait for this process; what was given was changed
            raise RunError(f"{why}: resume without, {resuming(plan.folder)} --no-compile.") from error
    view.close()
    view.say(f"{why}: the run continues without.")
    plain = dataclasses.replace(plan, recipe=dataclasses.replace(plan.recipe, compile=False))
    with contextlib.ExitStack() as stack:
        return _train(plain, world, stop, view, stack)


def _open_data(recipe: Recipe, folder: Path) -> DataSet:
    """The run's data, which are still what they were when it started."""
    path, where = folder / "data.json", recipe.data.source.removeprefix(PHOTOS)
    elsewhere = f"{resuming(folder)} --data.source {recipe.data.source.removesuffix(where)}WHERE"
    try:
        dataset = open_parts(recipe)
    except Error as error:
        if not path.exists() or Path(where).exists():
            raise
        raise RunError(f"{error} Are the data of {folder} elsewhere now? {elsewhere}") from error
    if path.exists() and read_json(path).get("fingerprint") != dataset.fingerprint:
        raise RunError(
            f"The data ({recipe.data.source}) changed since {folder} was started: bring the old state back (where it"
            f" lies elsewhere, {elsewhere}), or start a new run."
        )
    return dataset


def _check_teacher(plan: Plan, mark: str | None) -> None:
    path = plan.folder / "data.json"
    if path.exists() and read_json(path).get("teacher", mark) != mark:
        raise RunError(
            f"The teacher ({plan.recipe.objective.options.get('teacher')}) changed since {plan.folder} was started:"
            " bring the old one back, or start a new run."
        )


def _record(plan: Plan, model: Model, teacher: str | None) -> None:
    """Write what the run is: the recipe as it is run, and as it was first, to tell whether it was changed."""
    folder, dataset, recipe = plan.folder, plan.dataset, to_dict(plan.recipe)
    if not (folder / "data.json").exists():
        data = {"name": dataset.name, "fingerprint": dataset.fingerprint, "classes": list(dataset.classes)}
        data |= {} if teacher is None else {"teacher": teacher}
        write_json(folder / "environment.json", {**environment(decoder_name()), "recipe": recipe})
        write_json(folder / "recipe.json", recipe)
        if not isinstance(model, OutsideModel):  # which is given again
            write_json(folder / ARCHITECTURE, architecture(model))
        write_json(folder / "data.json", data)
    elif recipe != read_json(folder / "recipe.json"):
        write_json(folder / "recipe.json", recipe)


class _Assembled(NamedTuple):
    run: Run
    streams: tuple[StreamPlan, ...]
    teacher: str | None  # its fingerprint, where the objective has one


def _assembled(
    plan: Plan,
    world: World,
    stop: Stop,
    view: ProgressView,
    kept: Path | None,
    stack: contextlib.ExitStack,
    *,
    capture: bool = True,
) -> _Assembled:
    """What is learned, how it is computed, and the parts put together, from the checkpoint `kept` if there is one."""
    learner = _learner(plan, world, view, kept)
    streams = learner.objective.streams(main_stream(plan, plan.parts.train, learner.model.preprocess))
    execution = decide(plan, learner, streams, world, view.say)
    teacher = None if learner.objective.teacher is None else model_fingerprint(learner.objective.teacher)
    _check_teacher(plan, teacher)
    for sentence in execution.sentences:
        view.say(sentence)
    if execution.one_thread:
        stack.callback(torch.set_num_threads, torch.get_num_threads())
        torch.set_num_threads(1)

    def signalled() -> int:
        return largest_of(world, stop.signal or 0)  # it may have come to one process only

    execution = dataclasses.replace(execution, capture=execution.capture and capture)
    run = assemble(plan, learner, streams, execution, world, kept, view.say, signalled)
    stack.callback(run.feed.close)
    return _Assembled(run, streams, teacher)


def _train(plan: Plan, world: World, stop: Stop, view: ProgressView, stack: contextlib.ExitStack) -> RunOutcome:
    """A run in its phases: what is learned, how it is computed, the parts put together, the loop, the end."""
    kept = checkpoints.newest(plan.folder / "checkpoints", view.say)
    run, streams, teacher = _assembled(plan, world, stop, view, kept, stack)
    where = {"after": run.state.progress.step, "evaluated": run.state.progress.evaluated, "say": view.say}
    sinks = open_sinks(plan.folder, plan.recipe.name, plan.recipe.tracker, **where) if world.first else []
    for sink in sinks:
        stack.callback(sink.close)
    if world.first:
        _record(plan, run.state.model, teacher)
    pace = estimate.seconds_per_step(run, streams) if view.shown else None
    if pace is not None:
        view.say(estimate.sentence(run, pace))
    view.begin(run.state.progress.step, pace)
    hooks = run.hooks(sinks, view)
    try:
        ending = loop.run(run.state, run.stepper, plan.schedule, hooks, plan.recipe.batch_size)
    except DataError:
        _keep_steps(run, view)
        raise
    return finish(run, ending, view)


def _keep_steps(run: Run, view: ProgressView) -> None:
    """A checkpoint of the steps that were made before the data failed, which a process alone can write."""
    progress, folder = run.state.progress, run.plan.folder
    last = max((step for step, _ in checkpoints.complete(folder / "checkpoints")), default=0)
    if run.world.size > 1 or progress.step <= last or progress.skipped_in_a_row:
        return
    with contextlib.suppress(Error):  # the data's is the one to tell
        check_there(folder)
        run.stepper.keep()
        checkpoints.write(folder / "checkpoints", run.state)
        view.say(f"Step {progress.step:,} is kept; when the data are mended, {resuming(folder)} resumes there.")


def _describe(plan: Plan, view: ProgressView, *, look: int) -> None:
    """Say what the data hold; refuse them where some images that are looked at show that too many are unreadable."""
    description = describe(plan.dataset, look=look)
    for line in description.lines():
        view.say(line)
    for name in plan.dataset.splits.keys() - {"test"}:  # which may lack any: it is not scored then
        damage = Damage(description.sizes[name], plan.recipe.data.max_unreadable, SETTING)
        damage.found = {item.index: item.reason for item in description.unreadable if item.split == name}
        damage.check(len(damage.found))


def _learner(plan: Plan, world: World, view: ProgressView, kept: Path | None) -> Learner:
    """Model and objective on the device, in training; for the weights of a checkpoint, where there is one."""
    known = plan.folder / ARCHITECTURE
    rebuilt = kept if known.exists() else None
    model = build_model(plan) if rebuilt is None else rebuild_model(plan, read_json(known), known, rebuilt)
    model = model.to(world.device).train()
    if (note := synchronize(model, world)) is not None:
        view.say(note)
    hold_still(model)
    objective = plan.objective(model).to(world.device)
    model.license = _terms(model, objective.teacher)
    return Learner(model, objective)


def _terms(model: Model, teacher: Model | None) -> str | None:
    """The licence of the weights that it starts from, and of those that it learns from."""
    own, taught = model.license, None if teacher is None else teacher.license
    if own is None or taught is None or taught in own:
        return own or taught
    return f"{own.rstrip()}\n\n{taught}"

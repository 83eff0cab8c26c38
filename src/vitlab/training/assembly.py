"""The parts of a run put together: processes, optimizers, averaged weights, feed, stepper and hooks."""

import dataclasses
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

from vitlab.core.compiling import compile_options
from vitlab.core.files import atomic_folder
from vitlab.core.preprocess import Preprocess
from vitlab.data.contract import Split
from vitlab.data.loading.loader_feed import LoaderFeed
from vitlab.data.loading.order import Order, balanced_weights
from vitlab.data.loading.resident import Pixels
from vitlab.data.loading.resident_feed import ResidentFeed
from vitlab.data.streams import StreamPlan, View
from vitlab.models.contract import Model
from vitlab.models.create import empty_model
from vitlab.models.outside import OutsideModel
from vitlab.tasks.contract import Scores
from vitlab.training import checkpoints, hooks
from vitlab.training.adapters import merged
from vitlab.training.captured import CapturedStepper
from vitlab.training.collapse import CollapseAlarm
from vitlab.training.compiling import can_compile
from vitlab.training.distribution import World, count_of, wrap
from vitlab.training.ema import Ema
from vitlab.training.execution import Execution
from vitlab.training.hooks import Clock
from vitlab.training.learner import Learner
from vitlab.training.log import ProgressView, Sink
from vitlab.training.loop import Hook
from vitlab.training.muon import Muon
from vitlab.training.optimizers import build
from vitlab.training.plan import Plan
from vitlab.training.predictions import Predictions
from vitlab.training.run import check_there
from vitlab.training.scoring import Scoring
from vitlab.training.state import State
from vitlab.training.step import Stepper, Turn
from vitlab.weights.load import save

WEIGHTS = "model.safetensors"
FEW_IMAGES = 1000  # below, starting workers for an evaluation takes longer than decoding


@dataclass(frozen=True, kw_only=True)
class Run:
    """Everything that trains, and what is asked of it between and after the steps."""

    plan: Plan
    execution: Execution
    world: World
    state: State
    feed: LoaderFeed | ResidentFeed
    stepper: Stepper
    scoring: Scoring
    alarm: CollapseAlarm

    def validate(self) -> Scores | None:
        """The held-out part's score by the averaged weights, where there are any; None where a signal came."""
        plan, learner, split = self.plan, self.state.learner, self.plan.parts.val
        assert split is not None
        preprocess, pixels = learner.model.preprocess, self.execution.evaluated.get("val")
        with averaged(self.state), _uncompiled(self.execution):
            if plan.scores_task:
                scorer = plan.task.scorer(plan.recipe.loss, plan.dataset)
                return self.scoring.score(learner, learner.model, scorer, split, pixels)
            feed = self._held_out(learner.objective.streams(main_stream(plan, split, preprocess)))
            try:
                own = self.scoring.own_score(learner, feed, len(split))
                return None if own is None else self.alarm.watched(own)
            finally:
                feed.close()

    def _held_out(self, streams: tuple[StreamPlan, ...]) -> LoaderFeed | ResidentFeed:
        """Batches of the validation part as the objective sees them: made on the device where its images are there."""
        plan, preprocess, split = self.plan, self.state.model.preprocess, self.plan.parts.val
        assert split is not None
        pixels = self.execution.evaluated.get("val")
        if pixels is not None and all(stream.split is split for stream in streams):
            held = {stream.name: pixels for stream in streams}
            return resident_feed(plan, streams, held, preprocess, self.world)
        workers = self.execution.num_workers if len(split) > FEW_IMAGES else 0
        return loader_feed(plan, streams, preprocess, self.world, workers)

    def save_model(self) -> None:
        """Write the run's `model/`."""
        self._check_there()
        with averaged(self.state):
            export(self.state.objective.product(self.state.model), self.plan.folder / "model", self.world)

    def _check_there(self) -> None:
        if self.world.first:
            check_there(self.plan.folder)

    def check(self) -> None:
        """End the run where all processes together met more unreadable images than are allowed."""
        if self.world.size > 1 and isinstance(self.feed, LoaderFeed):
            self.feed.check(count_of(self.world, self.feed.damaged, len(self.plan.parts.train)))

    def hooks(self, sinks: list[Sink], view: ProgressView) -> list[Hook]:
        """What happens between steps, in order."""
        plan, state, stepper, recipe = self.plan, self.state, self.stepper, self.plan.recipe
        clock, signals = hooks.Clock(self.world), hooks.Signals(self.scoring.signalled)
        log = hooks.Log(
            state,
            stepper,
            plan.intervals.log,
            lr=recipe.optimizer.lr,
            images_per_step=recipe.batch_size,
            sinks=sinks,
            view=view,
            clock=clock,
            check=self.check,
        )
        evaluate = hooks.Evaluate(
            state,
            plan.intervals.evaluate,
            evaluate=self.validate,
            save_best=self.save_model if recipe.keep == "best" else lambda: None,
            words=plan.words,
            sinks=sinks,
            view=view,
            clock=clock,
            signals=signals,
            first=recipe.model.pretrained and not plan.scores_task,  # so that one sees whether it got better
        )
        return [
            log,
            hooks.Divergence(state, stepper, plan.folder, recipe.max_skipped),
            signals,
            *([evaluate, self.alarm] if plan.parts.val is not None else []),
            self._predictions(clock),
            hooks.EarlyStop(state, recipe.patience),
            hooks.Checkpoints(
                state, stepper, plan.folder / "checkpoints", plan.intervals.checkpoint, clock, self._check_there
            ),
        ]

    def _predictions(self, clock: Clock) -> Predictions:
        return Predictions(
            self.state,
            self.plan.parts,
            self.plan.folder,
            world=self.world,
            autocast=self.execution.autocast,
            averaged=lambda: averaged(self.state),
            clock=clock,
        )


def assemble(
    plan: Plan,
    learner: Learner,
    streams: tuple[StreamPlan, ...],
    execution: Execution,
    world: World,
    kept: Path | None,
    say: Callable[[str], None],
    signalled: Callable[[], int],
) -> Run:
    """The run, from the checkpoint `kept` where there is one."""
    recipe, model = plan.recipe, learner.model
    modules = wrap(learner, world, execution.strategy, execution.dtype)
    turns = _turns(plan, learner, modules, execution)
    ema = None if recipe.optimizer.ema is None else Ema(model, recipe.optimizer.ema)
    own = [turn for turn in turns if learner.phases[turn.name].again is None]
    state = State(learner, {turn.name: turn.optimizers for turn in own}, ema)
    if kept is not None:
        checkpoints.read(kept, state)
        if world.first:
            checkpoints.prune(plan.folder / "checkpoints", state.progress.best_step)
        say(f"Resuming from step {state.progress.step}.")
    feed = build_feed(plan, streams, execution, model.preprocess, world, state.progress.step)
    arguments: dict[str, Any] = {
        "total": plan.schedule.total,
        "accumulate": recipe.accumulate,
        "seed": recipe.seed,
        "world": world,
        "autocast": execution.autocast,
    }
    stepper = (CapturedStepper if execution.capture else Stepper)(state, turns, feed, **arguments)
    if execution.compile and can_compile(world, plan.folder, say):
        _compile(modules, state, feed, stepper, execution, world)
    scoring = Scoring(
        target=plan.task.target,
        num_classes=plan.dataset.num_classes,
        batch_size=recipe.batch_size,
        num_workers=execution.num_workers,
        max_unreadable=recipe.data.max_unreadable,
        world=world,
        autocast=execution.autocast,
        signalled=signalled,
    )
    alarm = CollapseAlarm(
        plan.parts,
        learner,
        target=plan.task.target,
        num_classes=plan.dataset.num_classes,
        world=world,
        autocast=execution.autocast,
        max_unreadable=recipe.data.max_unreadable,
        say=say,
    )
    return Run(
        plan=plan,
        execution=execution,
        world=world,
        state=state,
        feed=feed,
        stepper=stepper,
        scoring=scoring,
        alarm=alarm,
    )


def _turns(plan: Plan, learner: Learner, modules: Mapping[str, nn.Module], execution: Execution) -> list[Turn]:
    """The phases, each with its module and optimizers."""
    turns, lowest = list[Turn](), plan.recipe.schedule.end
    for name, phase in learner.phases.items():
        if phase.again is not None:
            first = next(turn for turn in turns if turn.name == phase.again)
            turns.append(Turn(name, modules[name], first.optimizers, first.spec, lowest=lowest))
            continue
        learner.turn(name)
        spec = dataclasses.replace(plan.recipe.optimizer, **phase.optimizer)
        own = [_trained(group) for group in learner.objective.param_groups()]
        optimizers = build(learner.model, [g for g in own if g["params"]], spec, on_device=execution.on_device)
        turns.append(Turn(name, modules[name], optimizers, spec, lowest=lowest))
    return turns


def _trained(group: Mapping[str, Any]) -> dict[str, Any]:
    return {**group, "params": [p for p in group["params"] if p.requires_grad]}


def _compile(
    modules: Mapping[str, nn.Module],
    state: State,
    feed: LoaderFeed | ResidentFeed,
    stepper: Stepper,
    execution: Execution,
    world: World,
) -> None:
    """Everything that can be compiled, with its first step."""
    # A step's few float32 products are meant to be exact; the compiler would recommend otherwise in the run's output.
    warnings.filterwarnings("ignore", message="TensorFloat32 tensor cores")
    state.learner.fold_norms()
    torch.compiler.reset()  # an earlier run's sizes in this process would make this one's variable
    for module in set(modules.values()):
        module.compile(options=compile_options(world.device))
    if isinstance(feed, ResidentFeed):
        feed.compile()
        if execution.on_device:
            for part in (state.ema, *state.all_optimizers):
                if isinstance(part, Ema | Muon):
                    part.compile()
    if isinstance(stepper, CapturedStepper):
        stepper.compile()


def main_stream(plan: Plan, split: Split, preprocess: Preprocess) -> StreamPlan:
    """A split in one view, as the recipe augments it, with the task's target where the model answers the task.

    What is held out is seen once, each image of it, however the training part is drawn.
    """
    recipe, order = plan.recipe, Order(plan.recipe.seed, len(split))
    if split is plan.parts.train:
        weights = balanced_weights(split.label) if recipe.data.balanced else None
        order = Order(recipe.seed, len(split), repeats=recipe.data.repeats, weights=weights)
    view = View(recipe.augmentation, preprocess.size)
    targets = (plan.task.target,) if plan.scores_task and plan.task.target else ()
    until = plan.mixed * recipe.batch_size if plan.mixed < plan.schedule.total else None
    return StreamPlan("train", split, order, recipe.batch_size, (view,), targets, plan.dataset.num_classes, until)


def build_feed(
    plan: Plan,
    streams: tuple[StreamPlan, ...],
    execution: Execution,
    preprocess: Preprocess,
    world: World,
    start: int,
) -> LoaderFeed | ResidentFeed:
    """Training batches from `start` on: made on the device, or by worker processes."""
    if not execution.resident:
        return loader_feed(plan, streams, preprocess, world, execution.num_workers, start)
    return resident_feed(plan, streams, execution.train, preprocess, world)


def resident_feed(
    plan: Plan, streams: tuple[StreamPlan, ...], pixels: Mapping[str, Pixels], preprocess: Preprocess, world: World
) -> ResidentFeed:
    """Batches that are made on the device."""
    seed = plan.recipe.seed
    return ResidentFeed(streams, pixels, preprocess=preprocess, seed=seed, rank=world.rank, world=world.size)


def loader_feed(
    plan: Plan,
    streams: tuple[StreamPlan, ...],
    preprocess: Preprocess,
    world: World,
    num_workers: int,
    start: int = 0,
) -> LoaderFeed:
    """Batches that worker processes decode and augment."""
    return LoaderFeed(
        streams,
        preprocess=preprocess,
        seed=plan.recipe.seed,
        device=world.device,
        num_workers=num_workers,
        rank=world.rank,
        world=world.size,
        start=start,
        max_damaged=plan.recipe.data.max_unreadable,
    )


@contextmanager
def averaged(state: State) -> Iterator[None]:
    """The averaged weights in the model's place, where there are any."""
    if state.ema is not None:
        state.ema.swap()
    try:
        yield
    finally:
        if state.ema is not None:
            state.ema.swap()


def _uncompiled(execution: Execution) -> AbstractContextManager[object]:
    """Evaluations of a small set, which is on the GPU, take less time than compiling them would."""
    return torch.compiler.set_stance("force_eager") if execution.capture else nullcontext()


def export(model: Model, path: Path, world: World) -> None:
    """The model in the native format, whole and with adapters folded in."""
    if torch.distributed.is_initialized():  # every process has to take part, where they hold parts
        weights = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    else:
        weights = {name: value.detach().cpu() for name, value in model.state_dict().items()}
    if not world.first:
        return
    own = merged(cast("Mapping[str, Tensor]", weights))
    if isinstance(model, OutsideModel):  # its weights alone can be kept
        with atomic_folder(path) as folder:
            save_file({name: value.contiguous().clone() for name, value in own.items()}, folder / WEIGHTS)
    else:
        whole = empty_model(model.config, model.preprocess)
        whole.load_state_dict(own, assign=True)
        whole.labels, whole.multi_label = model.labels, model.multi_label
        whole.task, whole.license = model.task, model.license
        save(whole, path)

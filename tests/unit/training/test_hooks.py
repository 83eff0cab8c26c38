"""Each hook alone, with stand-ins for what is around it."""

import json
import math
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from batches import ALONE, labelled, stepping
from vitlab.core.errors import Error
from vitlab.models.create import create
from vitlab.objectives.cross_entropy import CrossEntropy
from vitlab.objectives.supervised import Supervised
from vitlab.training import checkpoints, hooks
from vitlab.training.loop import Ending, Moment
from vitlab.training.optimizers import Optimizer
from vitlab.training.state import Progress, State


class Sink:
    def __init__(self) -> None:
        self.rows: list[tuple[int, dict[str, float]]] = []

    def write(self, step: int, values: Mapping[str, float]) -> None:
        self.rows.append((step, dict(values)))

    def close(self) -> None:
        pass


class View:
    def __init__(self) -> None:
        self.shown: list[tuple[int, dict[str, float]]] = []
        self.said: list[str] = []

    def update(self, step: int, values: Mapping[str, float]) -> None:
        self.shown.append((step, dict(values)))

    def say(self, text: str) -> None:
        self.said.append(text)


class Steps:
    """What hooks ask of a stepper."""

    world, waits = ALONE, True

    def __init__(self, state: Any, means: dict[str, float] | None = None) -> None:
        self.state, self.means = state, means or {}
        self.last_batch = labelled(torch.full((2, 3, 4, 4), 7.0), torch.eye(2))

    def read(self) -> dict[str, float]:
        return dict(self.means)

    def keep(self) -> None:
        self.state.progress.summed = 5


def counting(**progress: Any) -> Any:
    """A state of which nothing but the counters is used."""
    return types.SimpleNamespace(progress=Progress(**progress))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, to be set by hand."""
    now = [50.0]
    monkeypatch.setattr(hooks, "time", types.SimpleNamespace(monotonic=lambda: now[0]))
    return now


def logging(interval: int, check: Callable[[], None] = lambda: None) -> tuple[hooks.Log, Sink, View, hooks.Clock]:
    state, sink, view, time = counting(skipped=1), Sink(), View(), hooks.Clock(ALONE)
    steps: Any = Steps(state, {"loss": 2.0, "accuracy": 0.5})
    shown: Any = view
    options: dict[str, Any] = {"lr": 0.5, "images_per_step": 4, "sinks": [sink], "view": shown, "clock": time}
    return hooks.Log(state, steps, interval, check=check, **options), sink, view, time


def test_the_log_has_means_lr_and_pace_and_leaves_the_first_step_out_of_what_is_shown(clock: list[float]) -> None:
    log, sink, view, time = logging(3)
    log.begin(Moment(0, last=False))
    for step in range(1, 4):
        clock[0] += 100.0 if step == 1 else 2.0  # the first one compiles
        log.after_step(Moment(step, last=False, factor=0.25))
    values = {"loss": 2.0, "accuracy": 0.5, "lr": 0.125, "skipped": 1.0}
    assert sink.rows == [(3, {**values, "seconds per step": 104 / 3, "images per second": 12 / 104})]
    pace = {"seconds per step": 2.0, "images per second": 2.0}
    assert view.shown == [(1, {}), (2, pace), (3, {**values, **pace})]
    with time.stopped():
        clock[0] += 1000.0  # an evaluation
    for step in range(4, 8):
        clock[0] += 2.0
        log.after_step(Moment(step, last=step == 7))
    assert [(step, row["seconds per step"]) for step, row in sink.rows[1:]] == [(6, 2.0), (7, 2.0)]
    assert [(step, row["seconds per step"]) for step, row in view.shown[3:]] == [(step, 2.0) for step in range(4, 8)]


def test_a_step_whose_end_the_host_does_not_know_has_no_pace(clock: list[float]) -> None:
    log, _, view, _ = logging(3)
    log.stepper.waits = False
    log.begin(Moment(0, last=False))
    for step in range(1, 5):
        clock[0] += 2.0
        log.after_step(Moment(step, last=False))
    assert [(step, "seconds per step" in values) for step, values in view.shown] == [
        *((1, False), (2, False), (3, True), (4, False)),
    ]


def test_a_resumed_runs_first_step_is_left_out_too(clock: list[float]) -> None:
    log, sink, view, _ = logging(4)
    log.begin(Moment(6, last=False))
    for seconds, step in ((60.0, 7), (4.0, 8)):
        clock[0] += seconds
        log.after_step(Moment(step, last=False))
    assert sink.rows[0][1]["seconds per step"] == 32.0
    assert view.shown[0] == (7, {})
    assert view.shown[1][1]["seconds per step"] == 4.0


def test_where_the_first_step_is_all_that_there_is_it_is_the_measure(clock: list[float]) -> None:
    log, _, view, _ = logging(1)
    log.begin(Moment(0, last=False))
    clock[0] += 8.0
    log.after_step(Moment(1, last=False))
    assert view.shown[0][1]["seconds per step"] == 8.0


def test_what_the_check_raises_ends_the_run_before_anything_is_logged() -> None:
    def unreadable() -> None:
        raise Error("too many")

    log, sink, _, _ = logging(2, unreadable)
    log.begin(Moment(0, last=False))
    log.after_step(Moment(1, last=False))
    with pytest.raises(Error, match="too many"):
        log.after_step(Moment(2, last=False))
    assert sink.rows == []


def a_state() -> State:
    model = create("vit-digits", depth=1, width=8, mlp_dim=8, heads=1)
    feed: Any = None
    return stepping(model, Supervised(CrossEntropy()), Optimizer(name="sgd", weight_decay=0.0), feed)[0]


def test_too_many_skipped_steps_are_an_error_with_their_last_batch(tmp_path: Path) -> None:
    state = a_state()
    steps: Any = Steps(state)
    hook = hooks.Divergence(state, steps, tmp_path, limit=3)
    state.progress.step, state.progress.skipped_in_a_row = 8, 2
    hook.after_step(Moment(8, last=False))
    assert not list(tmp_path.iterdir())
    state.progress.skipped_in_a_row = 3
    with pytest.raises(hooks.DivergedError, match=r"in 3 steps in a row, up to step 9: .*there is no checkpoint"):
        hook.after_step(Moment(9, last=False))
    saved = torch.load(tmp_path / "bad_batch_rank0.pt", weights_only=True)
    assert saved["step"] == 9
    assert torch.equal(saved["images"], torch.full((2, 3, 4, 4), 7.0))
    assert torch.equal(saved["label"], torch.eye(2))


def test_of_checkpoints_only_those_from_before_skipped_steps_are_called_good(tmp_path: Path) -> None:
    state = a_state()
    steps: Any = Steps(state)
    state.progress.step = state.progress.best_step = 4
    checkpoints.write(tmp_path / "checkpoints", state)
    state.progress.step, state.progress.skipped_in_a_row = 6, 3
    checkpoints.write(tmp_path / "checkpoints", state)
    with pytest.raises(hooks.DivergedError, match=r"the last good checkpoint is \S+step-000000004,"):
        hooks.Divergence(state, steps, tmp_path, limit=3).after_step(Moment(6, last=False))


@pytest.mark.parametrize(("number", "status"), [(2, 130), (15, 143)])
def test_a_signal_is_the_end_and_its_status(number: int, status: int) -> None:
    came = [0]
    hook = hooks.Signals(lambda: came[0])
    moment = Moment(3, last=False)
    hook.after_step(moment)
    assert moment.ending is None
    came[0] = number
    hook.after_step(moment)
    assert moment.ending == Ending("signal", status)
    early = Moment(4, last=False, ending=Ending("early"))
    hook.after_step(early)
    assert early.ending == Ending("early")
    resumed = Moment(4, last=False)
    hook.begin(resumed)
    assert resumed.ending == Ending("signal", status)


class Evaluating:
    """An `Evaluate` hook every three steps, over scores that are given."""

    def __init__(self, *scores: tuple[float, float] | None) -> None:
        self.scores, self.saved, self.signal = list(scores), list[int](), 0
        self.state, self.sink, self.view = counting(), Sink(), View()
        view: Any = self.view
        self.hook = hooks.Evaluate(
            self.state,
            3,
            evaluate=self.score,
            save_best=lambda: self.saved.append(self.state.progress.best_step),
            words=lambda scores: f"score {scores['score']:.0%}",
            sinks=[self.sink],
            view=view,
            clock=hooks.Clock(ALONE),
            signals=hooks.Signals(lambda: self.signal),
        )

    def score(self) -> dict[str, float] | None:
        found = self.scores.pop(0)
        if found is None:
            self.signal = 15
            return None
        return {"score": found[0], "loss": found[1]}

    def after(self, step: int, *, last: bool = False) -> Moment:
        moment = Moment(step, last)
        self.hook.after_step(moment)
        return moment


def test_the_best_score_saves_the_model_and_others_are_counted() -> None:
    it = Evaluating((0.5, 2.0), (0.5, 1.0), (0.4, 0.5), (0.5, 1.0), (0.6, 3.0))
    best = [it.after(step, last=step == 13).best for step in range(1, 14)]
    assert [step for step, is_best in enumerate(best, 1) if is_best] == [3, 6, 13]  # 6: as high, with a lower loss
    assert it.saved == [3, 6, 13]
    assert it.scores == []
    progress = it.state.progress
    assert (progress.best_score, progress.best_loss, progress.best_step) == (0.6, 3.0, 13)
    assert (progress.last_score, progress.stale, progress.evaluated) == (0.6, 0, 13)
    assert [step for step, _ in it.sink.rows] == [3, 6, 9, 12, 13]
    assert it.sink.rows[2][1] == {"val score": 0.4, "val loss": 0.5}
    assert it.view.said[:3] == [
        "step 3: validation score 50%, loss 2.000  (best so far)",
        "step 6: validation score 50%, loss 1.000  (best so far)",
        "step 9: validation score 40%, loss 0.500",
    ]


def test_scores_that_are_no_better_are_stale() -> None:
    it = Evaluating((0.5, 1.0), (0.5, 1.0), (0.4, 1.0))
    for step in (3, 6, 9):
        it.after(step)
    assert it.state.progress.stale == 2
    assert it.state.progress.last_score == 0.4


def test_a_loss_that_is_no_number_is_said_and_beaten_by_any_other() -> None:
    nan = math.nan
    it = Evaluating((nan, nan), (0.2, nan), (0.2, 9.0), (nan, nan), (0.2, nan), (0.3, 8.0))
    best = [it.after(step).best for step in range(3, 21, 3)]
    assert best == [True, True, True, False, False, True]  # the first is all there is
    assert it.view.said[1].endswith(
        "loss nan: numbers overflow; a lower --optimizer.lr or --precision float32 may help"
    )
    assert it.view.said[2].endswith("loss 9.000  (best so far)")


def test_an_evaluation_that_a_signal_cut_off_is_owed() -> None:
    it = Evaluating(None, (0.5, 1.0))
    moment = it.after(3)
    assert moment.ending == Ending("signal", 143)
    assert not moment.best
    assert (it.state.progress.evaluated, it.sink.rows, it.saved) == (0, [], [])
    it.signal = 0
    for expected in (True, False):  # resumed: made up for, and resumed again: once
        resumed = Moment(3, last=False)
        it.hook.begin(resumed)
        assert resumed.best is expected
    assert it.state.progress.evaluated == 3


def test_nothing_is_evaluated_at_the_start_or_when_the_run_is_to_end() -> None:
    it = Evaluating((0.5, 1.0))
    it.hook.begin(Moment(0, last=False))
    it.hook.after_step(Moment(3, last=True, ending=Ending("signal", 130)))
    assert len(it.scores) == 1


def test_a_run_without_better_scores_ends_early() -> None:
    hook = hooks.EarlyStop(counting(stale=2), 2)
    for call in (hook.begin, hook.after_step):
        moment = Moment(9, last=False)
        call(moment)
        assert moment.ending == Ending("early", 0)
    stopped = Moment(9, last=False, ending=Ending("signal", 143))
    hook.after_step(stopped)
    assert stopped.ending == Ending("signal", 143)
    for patience in (3, None):
        moment = Moment(9, last=False)
        hooks.EarlyStop(counting(stale=2), patience).after_step(moment)
        assert moment.ending is None


def kept_at(folder: Path) -> list[int]:
    return [step for step, _ in checkpoints.complete(folder)]


@pytest.mark.parametrize(
    ("moment", "due"),
    [
        (Moment(3, last=False), False),
        (Moment(4, last=False), True),
        (Moment(3, last=True), True),
        (Moment(3, last=False, best=True), True),
        (Moment(3, last=False, ending=Ending("signal", 143)), True),
        (Moment(3, last=False, ending=Ending("early")), True),
    ],
    ids=["between", "interval", "last", "best", "signal", "early"],
)
def test_checkpoints_are_due_now_and_then_at_the_best_and_at_every_ending(
    moment: Moment, due: bool, tmp_path: Path
) -> None:
    state = a_state()
    state.progress.step = moment.step
    steps: Any = Steps(state)
    hooks.Checkpoints(state, steps, tmp_path, 4, hooks.Clock(ALONE)).after_step(moment)
    assert kept_at(tmp_path) == ([moment.step] if due else [])
    for path in tmp_path.glob("*/progress.json"):
        assert json.loads(path.read_text())["summed"] == 5  # what was not logged yet


def test_while_steps_are_skipped_the_last_checkpoint_stays(tmp_path: Path) -> None:
    state = a_state()
    steps: Any = Steps(state)
    hook, progress = hooks.Checkpoints(state, steps, tmp_path, 1, hooks.Clock(ALONE)), state.progress
    progress.step, progress.skipped, progress.skipped_in_a_row = 2, 2, 2
    hook.after_step(Moment(2, last=False))
    assert kept_at(tmp_path) == []  # no step was made yet
    progress.step, progress.skipped_in_a_row = 3, 0
    hook.after_step(Moment(3, last=False))
    progress.step, progress.skipped, progress.skipped_in_a_row = 4, 3, 1
    hook.after_step(Moment(4, last=False, ending=Ending("signal", 143)))
    assert kept_at(tmp_path) == [3]
    hook.after_step(Moment(4, last=True))
    assert kept_at(tmp_path) == [4]  # the run is over


def test_a_signal_while_steps_are_skipped_leaves_a_checkpoint_where_there_is_none(tmp_path: Path) -> None:
    state = a_state()
    steps: Any = Steps(state)
    state.progress.step, state.progress.skipped, state.progress.skipped_in_a_row = 4, 3, 3
    hook = hooks.Checkpoints(state, steps, tmp_path, 0, hooks.Clock(ALONE))
    hook.after_step(Moment(4, last=False, ending=Ending("signal", 143)))
    assert kept_at(tmp_path) == [4]


def test_what_is_measured_before_the_first_step_is_logged_and_never_the_best() -> None:
    it = Evaluating((0.9, 1.0), (0.5, 2.0))
    it.hook.first = True
    it.hook.begin(Moment(0, last=False))
    assert it.sink.rows == [(0, {"val score": 0.9, "val loss": 1.0})]
    assert it.view.said == ["step 0: validation score 90%, loss 1.000"]
    assert (it.state.progress.best_score, it.saved) == (None, [])
    it.after(3)
    assert (it.state.progress.best_score, it.saved) == (0.5, [3])
    it.hook.begin(Moment(3, last=False))  # resumed
    assert len(it.sink.rows) == 2


def test_a_signal_before_the_first_step_ends_the_run() -> None:
    it = Evaluating(None)
    it.hook.first = True
    moment = Moment(0, last=False)
    it.hook.begin(moment)
    assert (moment.ending, it.sink.rows) == (Ending("signal", 143), [])

"""The end of a run: its model, the score on the test part, and the result."""

import copy
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file

from vitlab.core import notebook
from vitlab.core.errors import DataError
from vitlab.core.progress import stage
from vitlab.core.record import finite, write_json
from vitlab.core.words import count, one_line
from vitlab.models.contract import Model
from vitlab.models.outside import OutsideModel
from vitlab.training.assembly import WEIGHTS, Run
from vitlab.training.distribution import count_of
from vitlab.training.log import ProgressView
from vitlab.training.loop import Ending
from vitlab.training.run import resuming
from vitlab.weights.load import load

QUIET = ("score", "loss", "count")  # scores that are said by another name, or not at all


@dataclass(frozen=True)
class RunOutcome:
    """What became of a run; `status` is the exit status of the command line."""

    folder: Path
    reason: str
    status: int
    step: int
    scores: Mapping[str, float]
    lines: tuple[str, ...] = ()  # what is worth saying of the scores, as the task says it
    has_head: bool = True  # whether the model answers a task; else it gives features, for a task to start from
    use: tuple[str, ...] = ()  # the command that uses the model, where it is not what is done with models of images

    @property
    def ending(self) -> str:
        """How the run ended, in a sentence."""
        if self.reason == "signal":
            return f"Stopped at step {self.step}; resume with: {resuming(self.folder)}"
        words = {"early": "Stopped early: no better score for some time"}.get(self.reason, "Done")
        return f"{words} after {count(self.step, 'step')}."

    def __repr__(self) -> str:
        return one_line(f"<Run {self.folder}: {' '.join([self.ending, ', '.join(self.lines)])}>")

    def _repr_html_(self) -> str:
        """What a notebook shows: how it ended, the scores, and where the report and the model are."""
        report, model = self.folder / "report.html", self.folder / "model"
        return notebook.card(
            str(self.folder),
            notebook.line(self.ending),
            notebook.table(["", ">"], [entry.rpartition(": ")[::2] for entry in self.lines]) if self.lines else None,
            notebook.link(report, f"The report: {report}") if report.exists() else None,
            notebook.faint(f"The model: vitlab.load({str(model)!r})") if model.is_dir() else None,
        )


def finish(run: Run, ending: Ending, view: ProgressView) -> RunOutcome:
    """What is left to do when the loop has ended; after a signal, nothing."""
    plan, progress, folder = run.plan, run.state.progress, run.plan.folder
    view.close()
    if ending.reason == "signal":
        return RunOutcome(folder, ending.reason, ending.status, progress.step, {})
    keep = plan.recipe.keep
    if keep == "last" or plan.parts.val is None:
        run.save_model()
    if run.world.size > 1:
        torch.distributed.barrier()
    scores = tested(run, view) if plan.parts.test is not None and plan.scores_task else {}
    if number := run.scoring.signalled():  # what is left is done when it is resumed
        return RunOutcome(folder, "signal", 128 + number, progress.step, {})
    if keep == "last" and progress.last_score is not None:
        scores["val score"] = progress.last_score
    elif progress.best_score is not None:
        scores["best val score"] = progress.best_score
    if progress.skipped:
        view.say(f"{progress.skipped:,} of {progress.step:,} steps were left out: loss or gradients were not finite.")
    num_train = len(plan.parts.train)
    unreadable = count_of(run.world, run.feed.damaged, num_train)
    if unreadable:
        view.say(f"{unreadable:,} of {num_train:,} training images could not be read: others took their places.")
    if run.world.first:
        ended = {"reason": ending.reason, "unreadable": unreadable}
        write_json(folder / "result.json", finite({**scores, **dataclasses.asdict(progress), **ended}))
    own = plan.task.commands(str(folder), plan.recipe.data.source) if plan.scores_task else ()
    return RunOutcome(
        folder,
        ending.reason,
        ending.status,
        progress.step,
        scores,
        _lines(run, scores),
        plan.scores_task,
        own[0][1] if own else (),
    )


def _lines(run: Run, scores: Mapping[str, float]) -> tuple[str, ...]:
    """What is worth saying of the scores, the held-out part's first; without a task, the loss that selected."""
    own = [name for name in ("best val score", "val score") if name in scores]
    if not run.plan.scores_task:
        return tuple(f"{name.replace('val score', 'validation loss')}: {-scores[name]:.4f}" for name in own)
    tested = {name[5:]: scores[name] for name in scores if name.startswith("test ") and name[5:] not in QUIET}
    known, sign = _selecting(tested, scores.get("test score"))
    named = {name.replace("val score", f"validation {known}"): (known, sign * scores[name]) for name in own}
    named |= {f"test {name}": (name, value) for name, value in tested.items()}
    shares = run.plan.task.shares
    return tuple(f"{title}: {value:{'.2%' if name in shares else '.4g'}}" for title, (name, value) in named.items())


def _selecting(tested: Mapping[str, float], score: float | None) -> tuple[str, int]:
    """By which name the score that selects is known, and its sign there: of a distance, less is better."""
    found = ((name, sign) for name, value in tested.items() for sign in (1, -1) if sign * value == score)
    return next(found, ("score", 1))


def tested(run: Run, view: ProgressView) -> dict[str, float]:
    """The scores on the test part; one that cannot be read costs the run no more than these."""
    plan, split = run.plan, run.plan.parts.test
    assert split is not None
    model = _kept(run)
    scorer = plan.task.scorer(plan.recipe.loss, plan.dataset)
    pixels, title = run.execution.evaluated.get("test"), f"Scoring {count(len(split), 'test image')}"
    try:
        with stage(title, shown=view.shown) as progress:
            scores = run.scoring.score(model, model, scorer, split, pixels, progress)
    except DataError as error:
        if run.world.size > 1:  # the others wait for this one's sums
            raise
        view.say(f"The test part is not scored: {error}")
        return {}
    if scores is None:
        return {}
    if left := len(split) - int(scores["count"]):
        view.say(f"{left:,} of {len(split):,} test images could not be read: they are left out.")
    return {f"test {name}": value for name, value in scores.items()}


def _kept(run: Run) -> Model:
    """The model that is handed out, the best or the last; a module that was given is filled with its weights."""
    folder, model = run.plan.folder / "model", run.state.model
    if not isinstance(model, OutsideModel):
        return load(folder).to(run.world.device)
    kept = copy.deepcopy(model)
    kept.load_state_dict(load_file(folder / WEIGHTS))
    return kept.to(run.world.device)

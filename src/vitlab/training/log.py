"""What a run writes while it runs: metrics.jsonl, TensorBoard, other trackers, and progress on the terminal."""

import contextlib
import importlib.util
import json
import math
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal, Protocol, final

from vitlab.core.errors import Error, MissingDependencyError
from vitlab.core.files import CannotWriteError, atomic_file
from vitlab.core.progress import EVERY, bar
from vitlab.core.reading import check_regular, parse_json
from vitlab.core.record import finite, write_json
from vitlab.core.words import clock, one_line
from vitlab.training.run import RunError, read_json

TRACKER = "tracker.json"  # a run's file: what a service calls the run


class Sink(Protocol):
    """Somewhere that numbers go."""

    def write(self, step: int, values: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


@final
class JsonLines:
    """One JSON object a line; on resumption what came after the checkpoint is dropped.

    That is every line after its step, and the scores after the last evaluation that it knows of; all of them where the
    run begins anew.
    """

    def __init__(self, path: Path, *, after: int, evaluated: int) -> None:
        def known(line: str) -> bool:
            return after > 0 and _step(line, path) <= (evaluated if '"val score"' in line else after)

        with atomic_file(path) as part:
            part.write_text("".join(filter(known, _lines(path))), encoding="utf-8")
        self._stream = path.open("a", encoding="utf-8")

    def write(self, step: int, values: Mapping[str, float]) -> None:
        self._stream.write(json.dumps({"step": step, **finite(values)}) + "\n")
        self._stream.flush()

    def close(self) -> None:
        with contextlib.suppress(OSError):  # of a full disk, which the write before has told
            self._stream.close()


def _step(line: str, path: Path) -> int:
    try:
        return int(parse_json(line)["step"])
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        said = line.strip()[:60]
        raise RunError(f"{path} has a line that is not a run's: {said!r}. Take it out, or the whole file.") from error


def _lines(path: Path) -> list[str]:
    """The whole lines of a file; a line that a crash cut short is left out."""
    if not path.exists():
        return []
    try:
        check_regular(path)
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        why = (isinstance(error, OSError) and error.strerror) or "it is not UTF-8"
        raise RunError(f"{path} cannot be read ({why}): mend it, or take it away to begin a new log.") from error
    return [line for line in text.splitlines(keepends=True) if line.endswith("}\n")]


@final
class TensorBoard:
    """Event files beside the run; steps after `after` of an earlier start are purged."""

    def __init__(self, folder: Path, *, after: int) -> None:
        from torch.utils.tensorboard.writer import SummaryWriter

        self._folder = folder
        threading.excepthook = _without_its_thread
        self._writer = SummaryWriter(str(folder), purge_step=after + 1 if after else 0)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        try:
            for name, value in values.items():
                self._writer.add_scalar(name, value, step)
        except OSError as error:  # of its thread's last write
            why = error.strerror or error
            raise CannotWriteError(f"Cannot write TensorBoard's events in {self._folder}: {why}.") from error

    def close(self) -> None:
        with contextlib.suppress(OSError):  # which a write before, or a checkpoint, has told
            self._writer.close()


def _without_its_thread(failed: threading.ExceptHookArgs) -> None:
    """Threads' tracebacks, but for TensorBoard's thread: what failed there is raised by the next write."""
    if type(failed.thread).__name__ != "_AsyncWriterThread":
        threading.__excepthook__(failed)


@final
class Mlflow:
    """MLflow, where it is installed; `known` is the run that is resumed."""

    def __init__(self, name: str, known: str | None) -> None:
        import mlflow  # pyright: ignore[reportMissingImports]

        self._mlflow = mlflow
        started = mlflow.start_run(run_name=name) if known is None else mlflow.start_run(run_id=known)
        self.id = str(started.info.run_id)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        self._mlflow.log_metrics(dict(values), step=step)

    def close(self) -> None:
        self._mlflow.end_run()


@final
class WeightsAndBiases:
    """W&B, where it is installed; `known` is the run that is resumed."""

    def __init__(self, name: str, known: str | None) -> None:
        import wandb  # pyright: ignore[reportMissingImports]

        self._run = wandb.init(name=name, id=known, resume="allow")
        self.id = str(self._run.id)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        self._run.finish()


TRACKERS = {"mlflow": Mlflow, "wandb": WeightsAndBiases}


def check_tracker(service: str) -> None:
    """Refuse a tracker whose package is not installed."""
    if service in TRACKERS and sys.modules.get(service) is None and importlib.util.find_spec(service) is None:
        raise MissingDependencyError(f"tracker='{service}' needs the package {service}: pip install {service}.")


@final
class Tracker:
    """A service that keeps runs. When it fails, the run continues without it; resumed, a run is the same one there."""

    def __init__(self, folder: Path, name: str, service: str, say: Callable[[str], None]) -> None:
        self.service, self._say = service, say
        check_tracker(service)
        path = folder / TRACKER
        known: dict[str, str] = read_json(path) if path.exists() else {}
        try:
            started = TRACKERS[service](name, known.get(service))
        except Error:
            raise
        except Exception as error:
            raise RunError(f"tracker='{service}' could not be started: {error}") from error
        self._sink: Sink | None = started
        write_json(path, known | {service: started.id})

    def write(self, step: int, values: Mapping[str, float]) -> None:
        if self._sink is not None:
            try:
                self._sink.write(step, values)
            except Exception as error:  # noqa: BLE001  whatever it is, it is not the run's
                self._say(f"{self.service} failed at step {step} and is left alone from here on: {error}")
                self._sink = None

    def close(self) -> None:
        if self._sink is not None:
            try:
                self._sink.close()
            except Exception as error:  # noqa: BLE001
                self._say(f"{self.service} could not be closed: {error}")


def open_sinks(
    folder: Path,
    name: str,
    tracker: Literal["none", "mlflow", "wandb"],
    *,
    after: int,
    evaluated: int,
    say: Callable[[str], None],
) -> list[Sink]:
    """A run's sinks, the two files always."""
    sinks: list[Sink] = [] if tracker == "none" else [Tracker(folder, name, tracker, say)]
    lines = JsonLines(folder / "metrics.jsonl", after=after, evaluated=evaluated)
    return [lines, TensorBoard(folder, after=after), *sinks]


class ProgressView:
    """A bar on a terminal, plain lines elsewhere: rate, loss, what the task has words for, time left."""

    def __init__(
        self,
        total: int,
        *,
        shown: bool = True,
        every: float = EVERY,
        words: Callable[[Mapping[str, float]], str] = lambda _: "",
    ) -> None:
        self.total, self.shown, self.every, self.words = total, shown, every, words
        self._last_line = -math.inf
        self._known: dict[str, float] = {}
        self._bar = None

    def begin(self, step: int, seconds_per_step: float | None = None) -> None:
        """Show that the steps after this one begin, each of about so many seconds."""
        self._known = {} if seconds_per_step is None else {"seconds per step": seconds_per_step}
        if self.shown and sys.stderr.isatty():
            self._bar = bar()
            self._task = self._bar.add_task("", total=self.total, completed=step, left=self._left(step))
            self._bar.start()

    def update(self, step: int, values: Mapping[str, float]) -> None:
        """Show that a step is made; what is not among the values is as it was when it last was."""
        self._known |= values
        if self._bar is not None:
            self._bar.update(self._task, completed=step, description=self._words(), left=self._left(step))
        elif self.shown and (time.monotonic() - self._last_line >= self.every or step == self.total):
            self._last_line = time.monotonic()
            parts = (f"step {step}/{self.total}", self._words(), self._left(step))
            print("  ".join(part for part in parts if part), file=sys.stderr, flush=True)

    def say(self, text: str) -> None:
        """A line above the bar."""
        if not self.shown:
            return
        if self._bar is not None:
            self._bar.console.print(one_line(text), highlight=False, markup=False)
        else:
            print(one_line(text), file=sys.stderr, flush=True)

    def close(self) -> None:
        """The bar stays as it is, and another may follow."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _words(self) -> str:
        parts: Sequence[tuple[str, str]] = (("images per second", "{:,.0f} images/s"), ("loss", "loss {:.3f}"))
        own = [form.format(self._known[name]) for name, form in parts if name in self._known]
        return "  ".join(part for part in (*own, self.words(self._known)) if part)

    def _left(self, step: int) -> str:
        pace = self._known.get("seconds per step")
        return "" if pace is None else f"{clock((self.total - step) * pace)} left"

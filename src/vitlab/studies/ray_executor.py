"""Cells on a Ray cluster: placed by GPU, begun again where a worker or a node was lost, each outcome once.

A cell resumes from its own checkpoints, so its folder has to be one that all nodes share. Nothing heavy is imported: a
worker imports what its cell needs.
"""

import contextlib
import dataclasses
import logging
import os
import platform
import re
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, final

from vitlab.core.errors import ConfigError, MissingDependencyError
from vitlab.studies.contract import StudyError

if TYPE_CHECKING:
    from vitlab.studies.cells import Cell

log = logging.getLogger("vitlab")

NAME = "ray"
FORM = "ray or ray://HOST:PORT, and after it what each run gets: ray,gpus=1,cpus=4,retries=3"
PATIENCE = 60.0  # seconds that runs have to write a checkpoint when all are stopped
SHARED = (
    "All nodes of a cluster need to see the folder of a study, at the same path: give one on a shared disk (--out)."
)
Work: TypeAlias = Callable[[Any], Mapping[str, Any]]  # from a cell to its outcome


@final
@dataclass(frozen=True, kw_only=True)
class Placement:
    """What each run gets of the cluster; None: a GPU where there are any, and a fair share of the cores beside it."""

    gpus: float | None = None
    cpus: float | None = None
    retries: int = 3  # times that a run is begun again after its worker or its node was lost

    def __post_init__(self) -> None:
        for name, value in (("gpus", self.gpus), ("cpus", self.cpus), ("retries", self.retries)):
            if value is not None and value < 0:
                raise ConfigError(f"The executor's {name} must be 0 or more, not {value:g}.")


def parse_ray(text: str, say: Callable[[str], None] | None = None) -> "Ray":
    """The executor that 'ray', 'ray://host:10001' or 'ray,gpus=0.5,retries=5' means."""
    where, *items = text.split(",")
    given: dict[str, float] = {}
    for item in items:
        name, _, value = item.partition("=")
        if name not in ("gpus", "cpus", "retries") or not re.fullmatch(r"\d+(\.\d+)?", value) or name in given:
            raise ConfigError(f"'{text}' is no executor: '{item}' is not understood; write {FORM}.")
        given[name] = float(value)
    if where != NAME and not re.fullmatch(r"ray://[^/\s:]+:\d+", where):
        raise ConfigError(f"'{text}' is no executor: write {FORM}.")
    retries = given.pop("retries", Placement.retries)
    if retries != int(retries):
        raise ConfigError(f"'{text}' is no executor: retries must be a whole number.")
    return Ray(None if where == NAME else where, Placement(**given, retries=int(retries)), say=say)


@final
class Ray:
    """A cluster by its address, or None: the one that this machine belongs to (RAY_ADDRESS), else one made here.

    `say` is told where runs are, and when one was lost. The connection stays until the process ends.
    """

    def __init__(
        self,
        address: str | None = None,
        placement: Placement | None = None,
        *,
        work: Work | None = None,
        say: Callable[[str], None] | None = None,
    ) -> None:
        self.address, self.placement, self.work = address, placement or Placement(), work
        self.say = say or log.info
        self._told = False

    def map(self, cells: "Sequence[Cell]") -> "Iterator[tuple[Cell, Mapping[str, Any]]]":
        """Each cell with its outcome, as they come; those that are done already are not sent."""
        rest: list[Cell] = []
        for cell in cells:
            if cell.is_done:
                yield cell, compute(cell, self.work)
            else:
                rest.append(cell)
        if not rest:
            return
        for folder in {Path(cell.folder).parent for cell in rest}:
            folder.mkdir(parents=True, exist_ok=True)
        ray = connect(self.address)
        placement, sentence = _placed(ray, self.placement, on_gpu=any(cell.device != "cpu" for cell in rest))
        if not self._told:
            self.say(sentence)
            self._told = True
        with _stopped_by_signals():
            yield from _Sent(ray, placement, self.work, self.say).outcomes(rest)


def compute(cell: "Cell", work: Work | None) -> Mapping[str, Any]:
    """What a cell gives, where it is called."""
    if work is None:
        from vitlab.studies.cells import attempt

        work = attempt
    return work(cell)


def remotely(cell: "Cell", work: Work | None, version: str | None) -> Mapping[str, Any]:
    """The same on a node of the cluster, which has to be as this one is."""
    here = metadata.version("vitlab")
    if here != version:
        return {
            "error": f"The node {platform.node()} has vitlab {here}, and {version} was asked for: install that there."
        }
    if not Path(cell.folder).parent.is_dir():
        return {"error": f"The node {platform.node()} does not see {Path(cell.folder).parent}. {SHARED}"}
    return compute(cell, work)


@final
class _Sent:
    """Cells that were sent, and how often each was lost."""

    def __init__(self, ray: Any, placement: Placement, work: Work | None, say: Callable[[str], None]) -> None:
        self.ray, self.placement, self.work, self.say = ray, placement, work, say
        self.sent: dict[Any, Cell] = {}  # by what stands for the outcome
        self.lost: dict[str, int] = {}
        # Ray would begin lost tasks again by itself, but unseen; and what a cell raises is its outcome
        self.task = ray.remote(num_gpus=placement.gpus, num_cpus=placement.cpus, max_retries=0)(remotely)

    def outcomes(self, cells: "Sequence[Cell]") -> "Iterator[tuple[Cell, Mapping[str, Any]]]":
        try:
            for cell in cells:
                self._send(cell)
            while self.sent:
                ready, _ = self.ray.wait(list(self.sent), num_returns=1)
                for reference in ready:
                    cell = self.sent.pop(reference)
                    outcome = self._outcome(cell, reference)
                    if outcome is not None:
                        yield cell, outcome
        finally:
            self._stop()  # nothing, unless this ends early

    def _send(self, cell: "Cell") -> None:
        reference = self.task.options(name=cell.name).remote(cell, self.work, metadata.version("vitlab"))
        self.sent[reference] = cell

    def _outcome(self, cell: "Cell", reference: Any) -> Mapping[str, Any] | None:
        """None where the cell was lost and begins again."""
        errors = self.ray.exceptions
        try:
            return self.ray.get(reference)
        except (errors.WorkerCrashedError, errors.NodeDiedError, errors.LocalRayletDiedError) as error:
            why = f"its {'worker' if isinstance(error, errors.WorkerCrashedError) else 'node'} was lost"
        except errors.OutOfMemoryError:
            why = "its node ran out of memory"
        except (errors.TaskCancelledError, errors.ObjectLostError):
            why = "it was stopped"
        except errors.RayError as error:  # what a cell raises is caught where it runs, so this is Ray's own
            return {"error": f"Ray: {(str(error).strip().splitlines() or [type(error).__name__])[-1]}"}
        self.lost[cell.folder] = times = self.lost.get(cell.folder, 0) + 1
        if times > self.placement.retries:
            return {"error": f"{why}, {times} times: the same command resumes it"}
        self.say(f"{cell.name}: {why}; it resumes elsewhere ({times} of {self.placement.retries}).")
        self._send(cell)
        return None

    def _stop(self) -> None:
        """End what runs in order: each writes a checkpoint, as after Ctrl-C."""
        if not self.sent:
            return
        waiting = list(self.sent)
        for reference in waiting:
            with contextlib.suppress(self.ray.exceptions.RayError):
                self.ray.cancel(reference, force=False)
        self.ray.wait(waiting, num_returns=len(waiting), timeout=PATIENCE)
        self.sent.clear()


def connect(address: str | None) -> Any:
    """Ray, connected to a cluster; a connection that is there already is used."""
    try:
        import ray
        import ray.exceptions
    except ImportError:
        raise MissingDependencyError("The executor ray needs Ray: pip install 'vitlab[cluster]'.") from None
    if ray.is_initialized():
        return ray
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
    try:
        if address is not None or "RAY_ADDRESS" in os.environ:
            ray.init(address=address, **quiet)
        else:
            try:
                ray.init(address="auto", **quiet)
            except ConnectionError:
                ray.init(include_dashboard=False, **quiet)
    except (ConnectionError, TimeoutError, RuntimeError, ValueError) as error:
        said = (str(error).strip().splitlines() or [type(error).__name__])[0]
        where = address or os.environ.get("RAY_ADDRESS", "on this machine")
        raise StudyError(f"The Ray cluster {where} does not answer ({said}): is it up (ray status)?") from error
    return ray


def _placed(ray: Any, asked: Placement, *, on_gpu: bool) -> tuple[Placement, str]:
    """What each run gets, which some node of the cluster has to have, and a sentence on it."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    most = {name: max((node.get(name, 0.0) for node in nodes), default=0.0) for name in ("GPU", "CPU")}
    every = {name: sum(node.get(name, 0.0) for node in nodes) for name in ("GPU", "CPU")}
    gpus = (1.0 if most["GPU"] and on_gpu else 0.0) if asked.gpus is None else asked.gpus
    fair = every["CPU"] // every["GPU"] * gpus if every["GPU"] else 0.0
    cpus = (min(max(fair, 1.0), most["CPU"]) if gpus else 1.0) if asked.cpus is None else asked.cpus
    for what, name, value in (("GPUs", "GPU", gpus), ("cores", "CPU", cpus)):
        if value > most[name]:
            raise StudyError(
                f"No node of the cluster has {value:g} {what}, the largest has {most[name]:g}: ask for less ({FORM})."
            )
    each = [f"{gpus:g} GPU{'s' * (gpus != 1)}"] * bool(gpus) + [f"{cpus:g} core{'s' * (cpus != 1)}"]
    sentence = (
        f"Ray: {len(nodes)} node{'s' * (len(nodes) != 1)} with {every['CPU']:g} cores and {every['GPU']:g} GPUs; each"
        f" run has {' and '.join(each)}."
    )
    return dataclasses.replace(asked, gpus=gpus, cpus=cpus), sentence


@contextlib.contextmanager
def _stopped_by_signals() -> Iterator[None]:
    """SIGINT and SIGTERM as `GridStopped`, which ends all runs in order."""
    from vitlab.studies.grid import GridStopped

    caught: list[int] = []

    def stop(number: int, _: Any) -> None:
        caught.append(number)
        raise GridStopped(128 + number)

    before: dict[int, Any] = {}
    try:
        with contextlib.suppress(ValueError):  # not in the main thread
            for number in (signal.SIGINT, signal.SIGTERM):
                before[number] = signal.signal(number, stop)
        yield
    except GridStopped:
        raise
    except KeyboardInterrupt as error:  # which Ray makes of what a handler raises while it waits
        raise GridStopped(128 + (caught[0] if caught else signal.SIGINT)) from error
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

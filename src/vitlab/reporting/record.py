"""A run's folder as it stands: what was asked for, what was logged, and how far it is."""

import fcntl
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from vitlab.core.errors import Error
from vitlab.core.record import read_json, read_metrics

State: TypeAlias = Literal["done", "early", "under way", "unfinished"]
Line: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """What the files of a run tell; those that a killed run did not write yet are empty."""

    folder: Path
    recipe: Mapping[str, Any]
    environment: Mapping[str, Any]
    data: Mapping[str, Any]
    lines: tuple[Line, ...]  # of metrics.jsonl
    result: Mapping[str, Any]  # empty until the run has ended
    state: State

    @property
    def step(self) -> int:
        """How many steps were made, as far as anything was logged."""
        return int(self.result.get("step") or max((line["step"] for line in self.lines), default=0))

    @property
    def classes(self) -> tuple[str, ...]:
        return tuple(str(name) for name in self.data.get("classes", ()))

    @property
    def command(self) -> list[str]:
        """The words of the command that started the run."""
        return [str(word) for word in self.environment.get("command", ())]

    @property
    def device(self) -> str:
        """What the run computed on, in words."""
        gpus = [str(name) for name in self.environment.get("gpus", ())]
        command = f"{' '.join(self.command)} ".replace("=", " ")
        if gpus and "--device cpu " not in command:
            processes = int(self.environment.get("processes", 1))
            return gpus[0] if processes == 1 else f"{processes} x {gpus[0]}"
        threads = int(self.environment.get("threads") or 0)
        return f"CPU, {threads} thread{'s' * (threads != 1)}" if threads else "not recorded"

    @property
    def pretrained(self) -> bool:
        """Whether it started from trained weights."""
        return bool(self.field("model.pretrained"))

    @property
    def mixes(self) -> bool:
        """Whether training pictures are blended with each other, for a part of the run at least."""
        return bool(self.field("augmentation.mixup") or self.field("augmentation.cutmix"))

    @property
    def best(self) -> Line | None:
        """What was logged at the best validation score, of equal ones at the lowest loss, as the run itself chooses."""
        lines = [line for line in self.lines if line["step"] and _finite(line.get("val score"))]
        return max(lines, key=lambda line: (line["val score"], -_or_infinite(line.get("val loss"))), default=None)

    def field(self, path: str, default: Any = None) -> Any:
        """A field of the recipe, as 'data.source'."""
        value: Any = self.recipe
        for name in path.split("."):
            if not isinstance(value, Mapping) or name not in value:
                return default
            value = value[name]
        return value

    def series(self, name: str) -> list[tuple[int, float]]:
        """What was logged under a name, by step; what was not finite is left out."""
        return [(line["step"], float(line[name])) for line in self.lines if _finite(line.get(name))]


def read_run(folder: Path) -> RunRecord:
    """The record of a run that has ended, is running, or was killed at any instant."""
    if not folder.is_dir():
        raise Error(f"There is no folder {folder}: give the folder of a run.")
    if not (folder / "recipe.json").is_file():
        raise Error(f"{folder} is not a run's folder: recipe.json is missing.")
    result = _optional(folder / "result.json")
    return RunRecord(
        folder=folder,
        recipe=read_json(folder / "recipe.json"),
        environment=_optional(folder / "environment.json"),
        data=_optional(folder / "data.json"),
        lines=read_metrics(folder / "metrics.jsonl"),
        result=result,
        state=_state(folder, result),
    )


def _state(folder: Path, result: Mapping[str, Any]) -> State:
    if _held(folder / ".lock"):
        return "under way"
    if not result:
        return "unfinished"
    return "early" if result.get("reason") == "early" else "done"


def _held(lock: Path) -> bool:
    """Whether a process trains in the folder: it holds the lock as long as it lives."""
    try:
        with lock.open("r") as handle:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _finite(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _or_infinite(value: Any) -> float:
    return value if _finite(value) else math.inf


def _optional(path: Path) -> dict[str, Any]:
    return read_json(path) if path.exists() else {}

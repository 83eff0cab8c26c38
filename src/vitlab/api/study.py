"""Studies: a table, a figure and findings from a grid of runs."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitlab.core.progress import Progressing
from vitlab.core.registry import permit
from vitlab.data.decoding import StrPath

if TYPE_CHECKING:
    from vitlab.studies.context import Say
    from vitlab.studies.contract import StudyResult


def study(
    name: str,
    *,
    scale: str = "digits",
    out: StrPath | None = None,
    seeds: int | None = None,
    only: str | None = None,
    data: StrPath | None = None,
    executor: str = "here",
    device: str | None = None,
    compile: bool = False,
    forecast: bool = False,
    say: "Say | None" = None,
    progress: Progressing | None = None,
    **options: Any,
) -> "StudyResult":
    """A study (positions, shape, data-size, ...) at a scale, in the folder `out` or runs/study-NAME-SCALE.

    `mine.py:NAME` is one of your own. The same call resumes what was begun in the folder, and reuses what ended.
    `compile` has longer runs compiled, which pays on a GPU where a model is trained many times. `forecast` gives what
    the first runs would cost and trains nothing. Keywords that are not named here are the study's own. `say` is told
    what it costs, and what failed; `progress` how many runs are over, of how many.
    """
    from vitlab.studies import STUDIES
    from vitlab.studies.running import run_study

    permit(name, *([] if data is None else [os.fspath(data)]))
    found = STUDIES.find(name)
    return run_study(
        found,
        options,
        scale=scale,
        folder=Path("runs", f"study-{found.name}{f'-{scale}' * bool(found.scales)}") if out is None else Path(out),
        seeds=seeds,
        only=only,
        data=None if data is None else os.fspath(data),
        executor=executor,
        device=device,
        compile=compile,
        dry=forecast,
        say=say,
        progress=progress,
    )

"""A study from its name to its files: study.json, study.md and figure.png in its folder, beside its runs."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vitlab.core.config import check_names, replace, to_dict
from vitlab.core.files import atomic_file
from vitlab.core.progress import Progressing
from vitlab.core.record import environment, write_json
from vitlab.data.jpeg import decoder_name
from vitlab.studies.context import Context, Forecasted, Say
from vitlab.studies.contract import Study, StudyError, StudyResult
from vitlab.studies.executors import find_executor
from vitlab.studies.grid import Tally, open_grid, trainer
from vitlab.studies.moving import follow_move

FORMAT = "vitlab study 1"


def run_study(
    study: Study,
    options: Mapping[str, Any],
    *,
    scale: str,
    folder: Path,
    seeds: int | None = None,
    only: str | None = None,
    data: str | None = None,
    executor: str = "here",
    device: str | None = None,
    compile: bool = False,
    dry: bool = False,
    say: Say | None = None,
    progress: Progressing | None = None,
) -> StudyResult:
    """A study's result, its files written; the same call resumes what was begun in the folder.

    With `dry` nothing is trained or written, and the finding is what the first runs would cost.
    """
    check_names(study.options, options, where=f"study {study.name}")
    chosen = replace(study.options(), options, where=f"study {study.name}")
    scale = _checked_scale(study, scale)
    number = study.seeds if seeds is None else seeds
    if number < 1:
        raise StudyError(f"A study needs a seed or more, not {number}.")
    context = Context(
        study=study.name,
        scale=scale,
        folder=folder.absolute(),
        num_seeds=number,
        data=data,
        only=only,
        device=device,
        compile=compile,
        executor=find_executor(executor, say),
        dry=dry,
        say=say,
        progress=progress,
    )
    if dry:
        try:
            return _labelled(study.run(context, chosen), context, {})
        except Forecasted as forecast:
            return StudyResult(tables=(), findings=(str(forecast),), study=study.name, scale=scale)
    with open_grid(context.folder, {"study": study.name, "scale": scale}, train=trainer(), tally=Tally(0)):
        follow_move(context.folder)
        settings = {"seeds": list(context.seeds), "data": data, "options": to_dict(chosen)}
        result = _labelled(study.run(context, chosen), context, settings)
        written = write_study(result, context.folder)
        if say is not None:
            say(f"In {folder}: {', '.join(written)}.")
    return result


def write_study(result: StudyResult, folder: Path) -> list[str]:
    """Write the result's files, each whole or not at all, and name them."""
    write_json(folder / "study.json", study_to_dict(result) | {"environment": environment(decoder_name())})
    with atomic_file(folder / "study.md") as partial:
        partial.write_text(result.markdown() + "\n", encoding="utf-8")
    written = ["study.md", "study.json"]
    if result.figure is not None:
        with atomic_file(folder / "figure.png") as partial:
            result.figure.savefig(partial, dpi=150, format="png")
        written.append("figure.png")
    return written


def study_to_dict(result: StudyResult) -> dict[str, Any]:
    """All but the figure, as JSON values."""
    fields = {field.name: getattr(result, field.name) for field in dataclasses.fields(result) if field.name != "figure"}
    tables = [dataclasses.asdict(table) for table in result.tables]
    return {"format": FORMAT, **fields, "tables": tables, "findings": list(result.findings)}


def _labelled(result: StudyResult, context: Context, settings: Mapping[str, Any]) -> StudyResult:
    return dataclasses.replace(
        result,
        study=context.study,
        scale=context.scale,
        cost=context.spent(),
        failed=dict(context.failed),
        settings=settings,
    )


def _checked_scale(study: Study, scale: str) -> str:
    if not study.scales:
        return ""
    if scale not in study.scales:
        raise StudyError(f"The study {study.name} has the scales {', '.join(study.scales)}, not '{scale}'.")
    return scale

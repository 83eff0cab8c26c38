"""`vitlab study`: a table or figure of the paper, made at a chosen scale."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import arg

from vitlab.cli.parsing import parse
from vitlab.cli.terminal import print_json, print_table, say
from vitlab.core.errors import Error
from vitlab.core.words import one_line
from vitlab.studies import STUDIES

if TYPE_CHECKING:
    from vitlab.studies.contract import Study, StudyResult

HELP = """

It first prints what it will cost. Runs are kept in the study's folder: the same command resumes stopped runs, reuses
finished ones, and writes a table (study.md, study.json) and a figure (figure.png) beside them.

Examples:
  vitlab study
  vitlab study positions --scale digits
  vitlab study positions --scale cifar --data data/cifar-10-batches-py --forecast
  vitlab study data-size --scale digits --seeds 5 --out runs/data-size --json
  vitlab study data-size --scale cifar --executor ray://head:10001 --out /shared/data-size

A study's own options are shown by `vitlab study NAME --help`; FILE.py:NAME is a study of your own."""


@dataclass(frozen=True)
class Common:
    scale: Literal["digits", "cifar", "tiny-imagenet", "imagenet"] = "digits"
    """The data and the sizes of models and runs; digits is in the package and takes a minute or two on a CPU."""
    out: Path | None = None
    """The study's folder; by default runs/study-NAME-SCALE."""
    seeds: int | None = None
    """Runs of each cell; by default the study's own, 3 where the finding is a difference."""
    only: str | None = None
    """Only the cells whose names match, such as 'relative*'."""
    data: str | None = None
    """Where the scale's data is, or other data to use instead."""
    executor: Annotated[str, arg(metavar="NAME")] = "here"
    """Where the runs are made: here, one by one; ray or ray://HOST:PORT on a cluster (see docs/cluster.md)."""
    device: str | None = None
    """cpu, cuda, ...; by default a GPU if there is one."""
    compile: bool = False
    """Compile runs of 900 steps and more: they start later, but are then faster on a GPU."""
    forecast: bool = False
    """Print what the first runs would cost, and train nothing."""
    json: bool = False
    """Print the result as one JSON document."""


def main(arguments: Sequence[str]) -> int:
    rest = list(arguments)
    if rest and rest[0] in ("-h", "--help"):
        parse(Common, ["--help"], prog="vitlab study NAME", description=_description())
    if not rest or rest[0] == "--json":
        return _list(as_json=bool(rest))
    if rest[0].startswith("-"):
        raise Error(f"Name a study before '{rest[0]}': vitlab study NAME; `vitlab study` lists them.")
    return _run(rest[0], rest[1:])


def parse_arguments(name: str, study: "Study", arguments: Sequence[str]) -> Any:
    """The options common to all, and the study's own as `options`."""
    own = ("options", Annotated[study.options, arg(name="")], dataclasses.field(default_factory=study.options))
    kind: Any = dataclasses.make_dataclass("Arguments", [own], bases=(Common,), frozen=True)
    beside = f"\n\nBeside it: {study.published}." if study.published else ""
    examples = "\n".join(f"  vitlab study {name} {example}" for example in study.examples or ("--scale digits",))
    return parse(
        kind,
        arguments,
        prog=f"vitlab study {name}",
        description=f"{study.options.__doc__}{beside}\n\nExamples:\n{examples}",
    )


def _description() -> str:
    width = max(len(study.name) for study in STUDIES)
    lines = [f"  {study.name:<{width}} {study.summary}" for study in STUDIES]
    return "Make a table or figure from a grid of runs. Studies:\n" + "\n".join(lines) + HELP


def _list(*, as_json: bool) -> int:
    if as_json:
        print_json([{"name": each.name, "summary": each.summary, "scales": list(each.scales)} for each in STUDIES])
    else:
        print_table(["study", "what it asks"], [[study.name, study.summary] for study in STUDIES])
    return 0


def _run(name: str, rest: list[str]) -> int:
    study = STUDIES.find(name)
    given = parse_arguments(name, study, rest)
    from vitlab import api
    from vitlab.core.progress import stage
    from vitlab.studies.grid import GridStopped

    try:
        with stage(f"study {study.name}", shown=not given.forecast, transient=True) as progress:
            result = api.study(
                name,
                scale=given.scale,
                out=given.out,
                seeds=given.seeds,
                only=given.only,
                data=given.data,
                executor=given.executor,
                device=given.device,
                compile=given.compile,
                forecast=given.forecast,
                say=say,
                progress=progress,
                **{field.name: getattr(given.options, field.name) for field in dataclasses.fields(given.options)},
            )
    except GridStopped as stopped:
        say("Stopped in order: the same command resumes from here.")
        return stopped.status
    if given.json:
        from vitlab.studies.running import study_to_dict

        print_json(study_to_dict(result))
    else:
        _show(result)
    return 1 if result.failed else 0


def _show(result: "StudyResult") -> None:
    for line in result.markdown().splitlines():
        print(one_line(line))

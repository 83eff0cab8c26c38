"""`vitlab evaluate`: a protocol over a model and a data set, and results side by side."""

import dataclasses
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro
from tyro.conf import Positional, arg

from vitlab.cli.parsing import FLAGS, parse
from vitlab.cli.terminal import print_json, progress_bar, say
from vitlab.core.errors import Error, unknown_name
from vitlab.core.registry import is_file_reference
from vitlab.core.words import one_line
from vitlab.evaluation.contract import Protocol
from vitlab.studies import PROTOCOLS

if TYPE_CHECKING:
    from vitlab.evaluation.contract import Result

COMPARE = "compare"  # no protocol: it lays the results of protocols side by side
HELP = """

Images are preprocessed as the weights require. Features are computed once and cached.

Examples:
  vitlab evaluate accuracy --model runs/digits --data digits
  vitlab evaluate fewshot --model B_16.npz --data cifar100 --shots 1 5 10 --out b16-fewshot.json
  vitlab evaluate real --model B_16.npz --data imagenet --labels real.json --image-size 384
  vitlab evaluate cost --model vit-h14-224 --count-only --images 4242e6
  vitlab evaluate compare b16.json l16.json --published v2 --figure table2.png
  torchrun --nproc-per-node 8 -m vitlab evaluate linear --model L_16.npz --data imagenet

A protocol's own options are shown by `vitlab evaluate PROTOCOL --help`; FILE.py:NAME is a protocol of your own."""
SHOWN = 24  # metrics that the table on the terminal has at most: VTAB's means and tasks


@dataclass(frozen=True)
class Common:
    model: Annotated[str, arg(metavar="SOURCE")]
    """Where the weights come from: a run, a folder, a file, a checkpoint's name, hf-hub:owner/name, timm:name."""
    data: str | None = None
    """A folder of class folders, a CSV or a data set's name; see docs/data.md."""
    split: str | None = None
    """The split to measure, or all; by default test, or else val, or all if no image was trained on."""
    out: Path | None = None
    """Write the whole result here, as JSON."""
    name: str | None = None
    """What to call the model in the result; by default its source."""
    image_size: int | None = None
    """The side in pixels; positions are adapted to it."""
    crops: Literal[1, 5] = 1
    """5: the centre and the corners of a larger picture, averaged."""
    flip: bool = False
    """Average with the mirror image."""
    resize: int | None = None
    """The shorter side in pixels of the picture that crops are taken from; by default 8/7 of the crop."""
    batch_size: int | None = None
    """How many images go through the model at once; by default 64, or the default of a protocol that trains."""
    workers: int | None = None
    """Processes that decode; by default one per core."""
    cache: Path | None = None
    """Where features are cached; by default ~/.cache/vitlab/features."""
    no_cache: bool = False
    """Neither write nor read cached features."""
    device: str | None = None
    """cpu, cuda, ...; by default a GPU if there is one."""
    precision: Literal["auto", "float32", "bf16"] = "auto"
    """auto: float32, and bf16 for training on a GPU."""
    json: bool = False
    """Print the whole result as one JSON document instead of a table."""


@dataclass(frozen=True)
class Compare:
    results: Annotated[Positional[tuple[Path, ...]], arg(metavar="RESULT.json...")]
    """What `vitlab evaluate ... --out` wrote."""
    published: Literal["v1", "v2"] | None = None
    """Add the columns of the paper's first or second version, marked as published."""
    figure: Path | None = None
    """Draw the comparison to a .png, .svg or .pdf."""
    json: bool = False
    """Print one JSON document instead of a Markdown table."""


def main(arguments: Sequence[str]) -> int:
    rest = list(arguments)
    if not rest or rest[0] in ("-h", "--help"):
        parse(Common, ["--help"], prog="vitlab evaluate PROTOCOL", description=_description())
    protocol, *rest = rest
    return _compare(rest) if protocol == COMPARE else _measure(protocol, rest)


def _description() -> str:
    summaries = {protocol.name: protocol.summary for protocol in PROTOCOLS}
    summaries[COMPARE] = "results side by side, with the paper's own if you like, and as a figure"
    width = max(map(len, summaries))
    lines = [f"  {name:<{width}} {text}" for name, text in summaries.items()]
    return "Measure a model. Protocols:\n" + "\n".join(lines) + HELP


def _find(name: str) -> Protocol:
    if not is_file_reference(name) and name not in PROTOCOLS.names():
        names = [*PROTOCOLS.names(), COMPARE]
        known = f" The protocols are {', '.join(names)}."
        if name.startswith("-"):
            raise Error(f"Name a protocol before '{name}': vitlab evaluate PROTOCOL.{known}")
        raise unknown_name("protocol", name, names, known)
    return PROTOCOLS.find(name)


def parse_arguments(name: str, protocol: Protocol, arguments: Sequence[str]) -> Any:
    """The options common to all, but those that the protocol does not take, and its own as `options`."""
    own = ("options", Annotated[protocol.options, arg(name="")], dataclasses.field(default_factory=protocol.options))
    fixed = [
        (field.name, tyro.conf.Fixed[field.type], dataclasses.field(default=field.default))
        for field in dataclasses.fields(Common)
        if field.name in protocol.not_taken
    ]
    kind: Any = dataclasses.make_dataclass("Arguments", [*fixed, own], bases=(Common,), frozen=True)
    return parse(
        kind,
        arguments,
        prog=f"vitlab evaluate {name}",
        description=f"{protocol.options.__doc__}\n\n{_examples(name, protocol.examples)}",
        config=(*FLAGS, tyro.conf.SuppressFixed),
    )


def _measure(name: str, rest: list[str]) -> int:
    protocol = _find(name)
    given = parse_arguments(name, protocol, rest)
    from vitlab import api
    from vitlab.core.files import check_writable
    from vitlab.evaluation.results import result_to_dict, write_result

    if given.out is not None:
        check_writable(given.out, [source for source in (given.model, given.data) if source is not None])
    from vitlab.studies.grid import GridStopped

    try:
        with progress_bar(
            protocol.name, 2 if protocol.takes_data else 0
        ) as progress:  # without images there are none to count
            result = api.evaluate(
                name,
                given.model,
                given.data,
                split=given.split,
                name=given.name,
                image_size=given.image_size,
                crops=given.crops,
                flip=given.flip,
                resize=given.resize,
                batch_size=given.batch_size,
                workers=given.workers,
                cache=given.cache,
                keep=not given.no_cache,
                device=given.device,
                precision=given.precision,
                progress=progress,
                **{field.name: getattr(given.options, field.name) for field in dataclasses.fields(given.options)},
            )
    except GridStopped as stopped:
        say("Stopped in order: the same command resumes from here.")
        return stopped.status
    if int(os.environ.get("RANK", "0")):
        return 0  # one process speaks for all
    if given.out is not None:
        write_result(result, given.out)
        say(f"Written to {given.out}.")
    if given.json:
        print_json(result_to_dict(result))
    else:
        _show(result)
    return 0


def _examples(name: str, examples: Sequence[str]) -> str:
    lines = [f"  vitlab evaluate {name} {example}" for example in examples]
    return "\n".join(["Examples:" if len(lines) > 1 else "Example:", *lines])


def _show(result: "Result") -> None:
    from vitlab.evaluation.results import markdown, result_notes, result_table, result_title

    columns, rows = result_table(result)
    print(result_title(result) + "\n")
    print(markdown(columns, [[one_line(cell) for cell in row] for row in rows[:SHOWN]]))
    if len(rows) > SHOWN:
        print(f"\n{len(rows) - SHOWN} more in the result (--out, --json).")
    for note in result_notes(result):
        print(f"\n{note}")


def _compare(rest: list[str]) -> int:
    given = parse(
        Compare,
        rest,
        prog="vitlab evaluate compare",
        description="Lay results side by side: a row per data set, a column per model, the cost last.\n\n"
        + _examples(COMPARE, ("b16.json l16.json --published v2 --figure table2.png", "--published v2")),
    )
    if not given.results and given.published is None:
        raise Error("Give at least one result, vitlab evaluate compare A.json B.json, or --published v2.")
    from vitlab.evaluation.compare import compare, save_figure
    from vitlab.evaluation.results import read_result

    comparison = compare([read_result(path) for path in given.results], published=given.published)
    if given.figure is not None:
        save_figure(comparison, given.figure)
        say(f"Drawn to {given.figure}.")
    if given.json:
        columns, rows = comparison.table()
        names = [name.lstrip(">") for name in columns]
        print_json(
            {
                "models": names[1:],
                "rows": [{"row": row[0], **dict(zip(names[1:], row[1:], strict=True))} for row in rows],
                "notes": list(comparison.notes),
            }
        )
    else:
        print(comparison.markdown())
    return 0

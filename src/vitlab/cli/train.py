"""`vitlab train`: a recipe, with any of its fields changed."""

import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import arg

from vitlab.cli.parsing import RECIPE_FLAGS, options_of, parse
from vitlab.cli.terminal import print_json, print_table
from vitlab.core.words import one_line

DESCRIPTION = """Train a model by a recipe; every field of the recipe is an option.

Metrics go to RUN/metrics.jsonl and TensorBoard (tensorboard --logdir RUN), and with --tracker to MLflow or W&B.
With --lr auto a range test finds the learning rate before the first step.

Examples:
  vitlab train --list
  vitlab train digits
  vitlab train digits --lr auto --epochs 20 --tracker mlflow
  vitlab train cifar10 --data.source data/cifar-10-batches-py --epochs 100
  vitlab train digits --objective distillation --objective.teacher runs/digits --objective.kind soft
  vitlab train digits --out runs/mine --optimizer.lr 1e-3 --model.set positions=relative positions_at=shared pool=mean
  vitlab train --resume runs/mine
  vitlab train --resume runs/mine --data.source /elsewhere/photos --data.workers 8
  torchrun --nproc-per-node 8 -m vitlab train vit-b16-imagenet --data.source data/imagenet --out runs/b16

The fields of a recipe and their values are shown by `vitlab train RECIPE --help`.
"""
RESUMING = """Resume a run from its last checkpoint, by its own recipe.

Fields that say how it is computed may change: data.source (where the same data are now), objective.teacher (likewise),
data.workers, data.resident, data.max_unreadable, strategy, compile, tracker. A change of any other is refused.
"""


@dataclass(frozen=True)
class Where:
    """The run."""

    out: Path | None = None
    """The run's folder; by default runs/RECIPE, with a number appended if that exists."""
    resume: Path | None = None
    """Resume the run in this folder, from its last checkpoint."""
    device: str | None = None
    """cpu, cuda, ...; by default a GPU if there is one."""
    json: bool = False
    """Print the outcome as one JSON document."""


def main(arguments: Sequence[str]) -> int:
    rest = [part for text in arguments for part in (text.split("=", 1) if text.startswith("--resume=") else [text])]
    if not rest or rest[0] in ("-h", "--help"):
        parse(Where, ["--help"], prog="vitlab train RECIPE", description=DESCRIPTION)
    if rest[0] == "--list":
        return _list(rest[1:])
    if rest[0].startswith("-") and "--resume" in rest:
        return _resume(rest)
    if rest[0].startswith("-"):
        from vitlab.core.errors import Error

        raise Error(f"Name a recipe before '{rest[0]}': vitlab train RECIPE; `vitlab train --list` names them all.")
    return _named(rest[0], rest[1:])


def _list(rest: list[str]) -> int:
    @dataclass(frozen=True)
    class Arguments:
        json: bool = False
        """Print one JSON document instead of a table."""

    given = parse(Arguments, rest, prog="vitlab train --list", description="The recipes, by name.")
    from vitlab.recipes import recipe_names, summary_of

    summaries = {name: ((summary_of(name) or "").strip().splitlines() or [""])[0] for name in recipe_names()}
    if given.json:
        print_json([{"name": name, "summary": summary} for name, summary in summaries.items()])
    else:
        print_table(["recipe", "what it does"], [[name, summary] for name, summary in summaries.items()])
    return 0


def _resume(rest: list[str]) -> int:
    from vitlab.core.errors import Error
    from vitlab.training.recipe import Recipe
    from vitlab.training.session import recipe_of

    if {"-h", "--help"} & set(rest):
        return _run("--resume RUN", Recipe(), RESUMING, ["--help"])
    run = rest[rest.index("--resume") + 1 :][:1]
    if not run or run[0].startswith("-"):
        raise Error("Name the run's folder: vitlab train --resume RUN.")
    return _run("--resume RUN", recipe_of(Path(run[0])), RESUMING, rest)


def _named(name: str, rest: list[str]) -> int:
    from vitlab.recipes import find_recipe, summary_of

    return _run(name, find_recipe(name), summary_of(name), rest)


def _run(what: str, default: Any, description: str | None, rest: list[str]) -> int:
    from vitlab import api
    from vitlab.cli.choices import current_names, takes_auto, with_choices
    from vitlab.core.errors import Error
    from vitlab.core.registry import need_permission

    choices, kept = with_choices(default, current_names(rest))
    find_lr = takes_auto(kept)

    @dataclass(frozen=True)
    class Arguments(Where):
        recipe: Annotated[choices.type, arg(name="")] = choices.default  # pyright: ignore[reportInvalidTypeForm]

    known = choices.options(options_of(Where))
    prog = f"vitlab train {what}"
    if description != RESUMING:  # for which these cannot be changed
        description = f"{(description or '').rstrip()}\n\n{choices.explained()}"
    given = parse(Arguments, kept, prog=prog, description=description, config=RECIPE_FLAGS, known=known)
    chosen = choices.chosen(given.recipe)
    if find_lr and given.resume is not None:
        raise Error("A run's learning rate is found before its first step: --lr auto is for a new run.")
    if given.resume is None:
        chosen = _keep_sizes(chosen, default, rest)
        outcome = api.train(chosen, out=given.out, device=given.device, show=True, find_lr=find_lr)
    elif given.out is None:
        for what_is, name in chosen.names().items():
            need_permission(what_is, name)
        outcome = api.resume(given.resume, recipe=chosen, device=given.device, show=True)
    else:
        raise Error("Give --out for a new run or --resume for one that exists, not both.")
    return report(outcome, as_json=given.json)


def _keep_sizes(chosen: Any, default: Any, rest: list[str]) -> Any:
    """Trained weights in the place of a recipe's fresh model keep their sizes: its model.set is for that one."""
    unasked = not any(text == "--model.set" or text.startswith("--model.set=") for text in rest)
    if not (chosen.model.pretrained and not default.model.pretrained and chosen.model.set and unasked):
        return chosen
    if not int(os.environ.get("RANK", "0")):
        fields = " ".join(chosen.model.set)
        print(f"Left out: the recipe's --model.set {fields}, which is for its own model.", file=sys.stderr)
    return replace(chosen, model=replace(chosen.model, set=()))


def report(outcome: Any, *, as_json: bool, data: str = "DATA") -> int:
    """What became of a run, and what to do with it; a model without a head can be fine-tuned on `data`."""
    if int(os.environ.get("RANK", "0")):
        return outcome.status  # one process speaks for all
    if as_json:
        print_json(
            {
                "run": str(outcome.folder),
                "reason": outcome.reason,
                "step": outcome.step,
                "scores": {name: value for name, value in outcome.scores.items() if value == value},
            }
        )
        return outcome.status
    print(one_line(outcome.ending))
    if outcome.reason == "signal":
        return outcome.status
    for line in outcome.lines:
        print(one_line(f"  {line}"))
    if (outcome.folder / "report.html").exists():
        print(one_line(f"  the report: {outcome.folder / 'report.html'}"))
    print(one_line(f"  the curves: tensorboard --logdir {shlex.quote(str(outcome.folder))}"))
    print(one_line(f"  the model: {outcome.folder / 'model'}"))
    run = shlex.quote(str(outcome.folder))
    if outcome.use:
        print(one_line(f"  use it: {shlex.join(outcome.use)}"))
    elif outcome.has_head:
        print(one_line(f"  use it: vitlab predict IMAGE --model {run}"))
    else:
        print(one_line(f"  next: vitlab finetune {shlex.quote(data)} --model {run}"))
    return outcome.status

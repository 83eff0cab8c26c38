"""Runs by a recipe, and their resumption."""

import dataclasses
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING

from vitlab.api.given import check_module
from vitlab.api.report import report
from vitlab.core.devices import choose_device
from vitlab.core.errors import ConfigError, Error
from vitlab.core.files import free_path
from vitlab.core.processes import first_alone
from vitlab.core.progress import stage
from vitlab.core.registry import permit
from vitlab.core.words import command
from vitlab.data.decoding import StrPath
from vitlab.models.contract import Model
from vitlab.weights.card import renew_card

if TYPE_CHECKING:  # what only training needs is imported when something is trained
    from torch import nn

    from vitlab.objectives.contract import Objective
    from vitlab.training.finish import RunOutcome
    from vitlab.training.plan import Given
    from vitlab.training.recipe import Recipe

log = logging.getLogger("vitlab")


def train(
    recipe: "Recipe | str",
    *,
    model: "Model | nn.Module | None" = None,
    objective: "Objective | None" = None,
    out: StrPath | None = None,
    device: str | None = None,
    show: bool = False,
    find_lr: bool = False,
) -> "RunOutcome":
    """A run by a recipe or its name, in the folder `out` or a new one under runs/; `show` reports on standard error.

    With `find_lr` a range test chooses the recipe's optimizer.lr before the first step, and keeps it in recipe.json. A
    `model` or an `objective` of one's own takes the place of the recipe's; resuming the run needs it again.
    """
    from vitlab.recipes import find_recipe
    from vitlab.training import session
    from vitlab.training.plan import with_given
    from vitlab.training.recipe import Recipe

    chosen, device = find_recipe(recipe) if isinstance(recipe, str) else recipe, choose_device(device)
    if not isinstance(chosen, Recipe):
        raise Error(f"A recipe is a Recipe or the name of one, not {type(chosen).__name__}.")
    permit(*chosen.names().values())
    given = _given(model, objective)
    chosen = with_given(chosen, given)
    folder = run_folder(out, chosen.name)
    outcome = session.train(chosen, folder, device=device, show=show, given=given, find_lr=find_lr)
    return _reported(outcome, device, show=show)


def resume(
    run: StrPath,
    *,
    recipe: "Recipe | None" = None,
    model: "Model | nn.Module | None" = None,
    objective: "Objective | None" = None,
    device: str | None = None,
    show: bool = False,
) -> "RunOutcome":
    """Continue a run from its last checkpoint.

    A `recipe` may say otherwise than the run's how it is computed and where its data are, not what it computes. A model
    or an objective that was given as an object is given again, and so, in a recipe, is what is in a file.
    """
    from vitlab.training import session

    device, given = choose_device(device), _given(model, objective)
    permit(*(() if recipe is None else recipe.names().values()))
    return _reported(session.resume(Path(run), recipe=recipe, device=device, show=show, given=given), device, show=show)


def _given(model: "Model | nn.Module | None", objective: "Objective | None") -> "Given":
    from vitlab.training.plan import Given

    if model is not None:
        check_module(model)
    return Given(model, objective)


def _reported(outcome: "RunOutcome", device: str | None, *, show: bool) -> "RunOutcome":
    """The outcome of a run that ended, its report and card written by the first process; without one it is no worse.

    The other processes wait for it, so that none of them can end the run before the report is written.
    """
    from vitlab.training.distribution import join

    with join(device), first_alone() as own:
        if own and outcome.reason != "signal":
            try:
                renew_card(outcome.folder)
                outcome = _with_neighbours(outcome)
                with stage("Writing the report", shown=show) as progress:
                    report(outcome.folder, device=device, progress=progress)
            except KeyboardInterrupt:
                log.warning("The run is done, its report is not: `%s` writes it.", _again(outcome.folder))
                raise
            except Exception as error:  # noqa: BLE001  the run is done and its model is there
                why = (str(error).splitlines() or [type(error).__name__])[0]
                log.warning(
                    "The report of %s could not be made (%s); `%s` tries again.",
                    outcome.folder,
                    why,
                    _again(outcome.folder),
                )
    return outcome


def _again(folder: Path) -> str:
    return command("vitlab", "report", str(folder))


def _with_neighbours(outcome: "RunOutcome") -> "RunOutcome":
    """The outcome of a run without a task, with how often nearest neighbours are right, where there are labels."""
    from vitlab.reporting.predictions import neighbours_said
    from vitlab.reporting.record import read_run

    said = None if outcome.has_head else neighbours_said(read_run(outcome.folder))
    return outcome if said is None else dataclasses.replace(outcome, lines=(*outcome.lines, said))


def run_folder(out: StrPath | None, name: str) -> Path:
    if out is not None:
        if not os.fspath(out):
            raise ConfigError("An empty name is no folder for a run: give one, or leave it out for one in runs/.")
        return Path(out)
    folder = Path("runs", name)
    several = int(os.environ.get("WORLD_SIZE", "1")) > 1
    return folder if several else free_path(folder)  # the one that all processes agree on without a word

"""A run's objective as a checkpoint left it, to look at what it predicts."""

from collections.abc import Sequence
from pathlib import Path

import torch
from PIL import Image

from vitlab.core.errors import ConfigError
from vitlab.core.registry import is_permitted
from vitlab.data.batch import Batch, Stream
from vitlab.data.contract import DataSet
from vitlab.inspection.gather import Predict
from vitlab.inspection.view import Predicted
from vitlab.models.contract import Model, evaluating
from vitlab.objectives import OBJECTIVES
from vitlab.objectives.contract import Criterion, Objective, Setting
from vitlab.training import checkpoints
from vitlab.training.recipe import GIVEN, chosen
from vitlab.training.session import recipe_of


def trained_objective(run: Path, model: Model) -> Objective | None:
    """The objective of a run for its model, where it shows pictures of its predictions and a checkpoint is kept.

    It is built without the run's data: one that needs them cannot be looked at.
    """
    recipe, kept = recipe_of(run), dict(checkpoints.complete(run / "checkpoints"))
    name = recipe.objective.name
    if not kept or name.startswith(GIVEN) or not is_permitted(name):
        return None
    kind, options = chosen(OBJECTIVES, recipe.objective, where="objective")
    if kind.objective.show is Objective.show:
        return None
    nothing = DataSet(name=run.name, classes=(), splits={}, fingerprint="")
    objective = kind.build(options, Setting(model=model, dataset=nothing, target="", criterion=_no_criterion))
    last = max(kept)
    best = checkpoints.progress_of(kept[last]).best_step if recipe.keep == "best" else last
    checkpoints.read_objective(kept.get(best or last, kept[last]), objective)
    return objective.to(next(model.parameters()).device).eval()


def predicting(run: Path, model: Model) -> Predict | None:
    """What the objective of a run says of pictures; None where it shows nothing."""
    objective = trained_objective(run, model)
    if objective is None:
        return None

    def predict(pictures: Sequence[Image.Image]) -> list[Predicted]:
        images = model.preprocess(pictures).to(next(model.parameters()).device)
        places = torch.arange(len(images), device=images.device)
        with evaluating(model), torch.no_grad():
            shown = objective.show(model, Batch({"train": Stream((images,), {}, places)}))
        return [] if shown is None else [Predicted(shown.words, row) for row in shown.rows]

    return predict


def _no_criterion() -> Criterion:
    raise ConfigError("This objective learns from labels, and is built without data here.")

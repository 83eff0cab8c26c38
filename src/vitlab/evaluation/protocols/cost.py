"""What a model costs; that needs no trained weights, so that a model of the zoo will do."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from vitlab.evaluation.contract import SEEN_ONCE, EvaluationError, Protocol, Result

if TYPE_CHECKING:
    from vitlab.evaluation.request import Request


@dataclass(frozen=True, kw_only=True)
class CostOptions:
    """Parameters, FLOPs, speed, memory; what training will cost and did cost."""

    count_only: bool = False
    """Do not run the model: count parameters and FLOPs only. The model may be a name of the zoo."""
    seconds: float = 3.0
    """About how long to time each speed. Without --batch-size the batch is the largest up to 64 that fits into this
    time. The minimum is a warm-up pass and a timed pass of one image (two in training), or of the given batch."""
    recipe: str | None = None
    """A recipe's name: what training the model by it will cost."""
    train_images: int | None = None
    """The number of training images, if the recipe's data is not at hand."""
    images: float | None = None
    """The number of images that training will see over all epochs, instead of a recipe."""
    run: str | None = None
    """A run's folder: what it cost. By default the model's run, if it has one."""
    devices: int | None = None
    """How many devices that run used; by default what it recorded."""


def run(request: "Request") -> Result:
    from vitlab.evaluation.cost import measure_cost, spent
    from vitlab.evaluation.request import run_flops
    from vitlab.evaluation.subject import subject_of

    how, options = request.how, request.options
    _check(options)
    images = request.host.planned_images(options.recipe, options.train_images) if options.recipe else options.images
    folder = options.run or request.run_folder
    with request.lent_model(untrained=True, empty=options.count_only) as (model, process):
        subject = None
        if not options.count_only:
            subject = subject_of(model, name=request.name, device=process.device, precision=how.measuring)
        return measure_cost(
            model,
            subject,
            options,
            name=request.name,
            batch_size=how.batch_size,
            bf16=how.measuring == "bf16",
            images=images,
            run=None if folder is None else spent(Path(folder), devices=options.devices),
            run_flops=run_flops(folder) if folder is not None and how.image_size is not None else None,
        )


def _check(options: CostOptions) -> None:
    """Refuse numbers that nothing can have, before anything is opened."""
    for name in ("seconds", "train_images", "images", "devices"):
        value = getattr(options, name)
        if value is not None and not 0 < value < math.inf:
            raise EvaluationError(f"protocol cost: {name} must be a number above 0, not {value:g}.")


PROTOCOL = Protocol(
    name="cost",
    summary="parameters, FLOPs, speed, memory; what training will cost and did cost",
    options=CostOptions,
    examples=(
        "--model vit-h14-224 --count-only --images 4242e6",
        "--model vit-b16-224 --recipe vit-b16-imagenet --train-images 1281167",
        "--model runs/digits",
    ),
    run=run,
    not_taken=(*SEEN_ONCE, "data", "workers"),
)

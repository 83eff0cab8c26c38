"""How far made images are from real ones."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from vitlab.evaluation.contract import EvaluationError, Metric, Protocol, Result

if TYPE_CHECKING:
    from vitlab.evaluation.request import Request


@dataclass(frozen=True, kw_only=True)
class FrechetOptions:
    """The Frechet distance between generated and real images, by the features of a model; beside it those of the same
    number of training images, the floor for a generator, and of noise."""

    features: str = "vitlab/tiny"
    """The model whose features are compared: any that takes images, preferably one trained on such images; pixels: no
    model, but the colours at 8 x 8."""
    num: int | None = None
    """How many images are generated; by default as many as there are real ones."""
    seed: int = 0
    """The seed of the noise."""


def run(request: "Request") -> Result:
    import time

    import torch

    from vitlab.core.record import environment
    from vitlab.data.jpeg import decoder_name
    from vitlab.evaluation.cost import model_cost
    from vitlab.evaluation.frechet import diversity, feature_subject, frechet_distance, title
    from vitlab.evaluation.generated import Looking
    from vitlab.evaluation.request import BATCH_SIZE
    from vitlab.models.generator import is_generator

    start, how, options = time.perf_counter(), request.how, request.options
    if options.num is not None and options.num < 2:
        raise EvaluationError(f"protocol frechet: num must be at least 2, not {options.num}.")
    dataset, part = request.opened(learns=False)
    with request.lent_model(untrained=True) as (model, process), torch.no_grad():
        if not is_generator(model):
            raise EvaluationError(f"{request.name} makes no images: the Frechet distance is of those of a generator.")
        looking = Looking(
            subject=feature_subject(options.features, process.device),
            model=model.to(process.device),
            batch_size=how.batch_size or BATCH_SIZE,
            workers=how.workers or 0,
            share=process.share,
            progress=request.progress if process.first else None,
        )
        real = looking.real(dataset.splits[part])
        num = options.num or int(real.count)
        made = looking.made(num, options.seed)
        found = {title(options.features): made, "the same of noise": looking.noise(num)}
        if part != "train" and "train" in dataset.splits:
            found["the same of training images"] = looking.real(dataset.splits["train"], num)
        cost = model_cost(model)
    metrics = {
        name: Metric(value=frechet_distance(each, real), count=int(each.count), unit="number")
        for name, each in found.items()
    }
    settings = {"split": part, "features": options.features, "features weights": looking.subject.fingerprint}
    return Result(
        protocol=request.protocol,
        model=request.name,
        data=dataset.name,
        metrics={**metrics, "diversity": Metric(value=diversity(made, real), count=num, unit="number")},
        counts={part: int(real.count), "made": num},
        seeds=(options.seed,),
        settings={**settings, "resolution": list(model.preprocess.size), "data": dataset.fingerprint},
        cost=cost | request.run_cost(),
        seconds=time.perf_counter() - start,
        environment=environment(decoder_name()),
    )


PROTOCOL = Protocol(
    name="frechet",
    summary="the distance of a generator's images from real ones, by the features of a model",
    options=FrechetOptions,
    examples=(
        "--model runs/transgan-digits --data digits --features runs/digits",
        "--model runs/transgan-cifar10 --data cifar10 --features runs/cifar10 --num 10000",
    ),
    run=run,
    not_taken=("image_size", "crops", "flip", "resize", "cache", "no_cache", "precision"),
)

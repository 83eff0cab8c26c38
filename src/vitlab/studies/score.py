"""The score of a model's own task on a data set."""

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vitlab.evaluation.contract import EvaluationError, Metric, Protocol, Result

if TYPE_CHECKING:
    from vitlab.evaluation.request import Request


@dataclass(frozen=True, kw_only=True)
class ScoreOptions:
    """The score of the model's task: mIoU for segmentation, accuracy for classification."""

    task: str | None = None
    """The model's task, by default the one it was trained for; name a task in a file (mine.py:NAME) again."""


def run(request: "Request") -> Result:
    import torch

    from vitlab.core.record import environment
    from vitlab.core.registry import permit
    from vitlab.data.jpeg import decoder_name
    from vitlab.evaluation.cost import model_cost
    from vitlab.evaluation.request import BATCH_SIZE
    from vitlab.objectives.cross_entropy import Loss
    from vitlab.tasks import task_for
    from vitlab.tasks.scoring import held_batches

    start, sums = time.perf_counter(), list[torch.Tensor]()
    how, name = request.how, request.options.task
    permit(*([] if name is None else [name]))
    dataset, part = request.opened(learns=False)
    split, size = dataset.splits[part], how.batch_size or BATCH_SIZE
    with request.lent_model() as (model, process), torch.no_grad():
        task, model, share = task_for(model, name), model.to(process.device).eval(), process.share
        task.check(dataset)
        has, needed = getattr(model.config, "num_classes", 0), task.fields(dataset)["num_classes"]
        if has != needed:
            raise EvaluationError(f"{request.name} has {has} outputs and {dataset.name} needs {needed}: fine-tune it.")
        scorer, size = task.scorer(Loss(), dataset), -(-size // share.world)
        for held in held_batches(
            split, task.target, model.preprocess, num_classes=has, device=process.device,
            batch_size=size * share.world, num_workers=how.workers or 0, rank=share.rank, world=share.world,
        ):  # fmt: skip
            with torch.autocast(process.device.type, torch.bfloat16, enabled=how.measuring == "bf16"):
                sums.append(scorer.of(model, model, held))
            if request.progress is not None and process.first:
                request.progress(min(len(sums) * size * share.world, len(split)), len(split))
        scores = scorer.scores(torch.stack(share.gather(torch.stack(sums).sum(dim=0))).sum(dim=0))
    num = int(scores.pop("count"))
    units = {each: "fraction" if each in task.shares else "number" for each in scores}
    metrics = {each: Metric(value=value, count=num, unit=units[each]) for each, value in scores.items()}  # pyright: ignore[reportArgumentType]
    settings = {"split": part, "task": name or model.task, "resolution": list(model.preprocess.size)}
    return Result(
        protocol=request.protocol, model=request.name, data=dataset.name, metrics=metrics, counts={part: num},
        settings={**settings, "precision": how.measuring, "data": dataset.fingerprint},
        cost=model_cost(model) | request.run_cost(), seconds=time.perf_counter() - start,
        environment=environment(decoder_name()),
    )  # fmt: skip


PROTOCOL = Protocol(
    name="score",
    summary="the score of the model's own task: mIoU of a segmentation, or the score of a task of yours",
    options=ScoreOptions,
    examples=("--model runs/camvid --data camvid/", "--model runs/areas --data mine.py:SET --task mine.py:AREA"),
    run=run,
    not_taken=("crops", "flip", "resize", "cache", "no_cache"),
)

"""The cost protocol: what is counted, timed, planned and spent, as a result."""

import time
from typing import Any

import torch

from vitlab.core.config import to_dict
from vitlab.core.record import environment
from vitlab.data.jpeg import decoder_name
from vitlab.evaluation.contract import Result, Subject
from vitlab.evaluation.cost import (
    Spent,
    batch_fits,
    cost_metrics,
    device_days,
    exaflops,
    inference_speed,
    largest_batch,
    model_cost,
    peak_memory,
    reset_memory,
    training_speed,
)
from vitlab.evaluation.protocols.cost import CostOptions
from vitlab.models.contract import Model


def measure_cost(
    model: Model,
    subject: Subject | None,
    options: CostOptions,
    *,
    name: str,
    batch_size: int | None = None,
    bf16: bool = False,
    images: float | None = None,
    run: Spent | None = None,
    run_flops: float | None = None,
) -> Result:
    """Without a subject only what is counted; `images` is what training will see, `run` what a run used.

    Without a batch size speeds are of the largest that `options.seconds` suffice for, 64 images at most. `run_flops`
    are an image's in that run, where the model is measured at another resolution.
    """
    start = time.perf_counter()
    counted = model_cost(model)
    cost, found = dict(counted), {}
    speed = training = None
    if subject is not None:
        device = subject.device
        reset_memory(device)
        speed = inference_speed(subject, batch_size, seconds=options.seconds)
        found["memory"] = peak_memory(device)
        if device.type == "cuda":
            found["largest"] = largest_batch(batch_fits(model, device, training=False, bf16=bf16))
        if images is not None:
            training = training_speed(model, batch_size, device=device, bf16=bf16, seconds=options.seconds)
            cost["device_days"] = device_days(images, training.value)
    if images is not None:
        cost["exaflops"] = exaflops(counted["flops"], images)
    if run is not None:
        cost |= {"exaflops": exaflops(run_flops or counted["flops"], run.images), "device_days": run.device_days}
    return Result(
        protocol="cost",
        model=name,
        data="",
        metrics=cost_metrics(
            **counted, **found, speed=speed, images=images, training=training, run=run, run_flops=run_flops
        ),
        counts={} if run is None else {"images seen in training": run.images},
        settings={
            "resolution": list(model.config.image_size),
            "batch_size": None if speed is None else speed.batch_size,
            **({} if training is None else {"training_batch_size": training.batch_size}),
            "precision": "bf16" if bf16 else "float32",
            "device": _device_name(subject),
            "flops": "2 a multiply-add, matrix products and attention, one image forward; training 3 times that",
            **_given(options, images),
        },
        cost=cost,
        seconds=time.perf_counter() - start,
        environment=environment(decoder_name()),
    )


def _given(options: CostOptions, images: float | None) -> dict[str, Any]:
    chosen = {key: value for key, value in to_dict(options).items() if value is not None}
    return chosen if images is None else {**chosen, "images": images}


def _device_name(subject: Subject | None) -> str | None:
    if subject is None:
        return None
    return torch.cuda.get_device_name(subject.device) if subject.device.type == "cuda" else subject.device.type

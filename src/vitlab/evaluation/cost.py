"""What a model costs to run, and what training it will cost and did cost.

FLOPs are two a multiply-add, matrix products and attention, for one image forward. A training step counts three times
the forward pass (the gradients of the inputs and of the weights are a product each): six FLOPs a multiply-add, as the
paper counts its exaFLOPs.
"""

import copy
import resource
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vitlab.core.config import to_dict
from vitlab.core.record import environment, read_json, read_metrics
from vitlab.data.jpeg import decoder_name
from vitlab.evaluation.contract import EvaluationError, Metric, Result, Subject
from vitlab.evaluation.protocols.cost import CostOptions
from vitlab.models.contract import Model
from vitlab.models.counts import count_flops, count_parameters

TRAINING_FACTOR = 3
DAY = 24 * 3600
BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64)  # that speeds are tried at
MAX_BATCH = 2**15  # attention kernels take no batch above 65,535


@dataclass(frozen=True)
class Speed:
    """Images per second: the median of several timed parts, and their standard deviation."""

    value: float
    spread: float
    parts: int
    batch_size: int


@dataclass(frozen=True)
class Spent:
    """What a training run used, as its folder tells."""

    images: int
    seconds: float
    devices: int

    @property
    def device_days(self) -> float:
        return self.seconds * self.devices / DAY


def model_cost(model: Model, image_size: tuple[int, int] | None = None) -> dict[str, float]:
    """Parameters, and FLOPs of one image forward."""
    return {"parameters": count_parameters(model), "flops": count_flops(model, image_size)}


def exaflops(flops: float, images: float) -> float:
    """What training on so many images computes, in 10^18 FLOPs, from the FLOPs of one image forward."""
    return TRAINING_FACTOR * flops * images / 1e18


def device_days(images: float, images_per_second: float) -> float:
    """How long one device takes for so many images; several share the days, not the device-days."""
    if not images_per_second > 0:
        raise EvaluationError(f"A speed must be positive, not {images_per_second} images per second.")
    return images / images_per_second / DAY


def spent(folder: Path, *, devices: int | None = None) -> Spent:
    """What a run used so far: from result.json when it has ended, else from its metrics.

    The number of devices is what the run recorded, one if it did not, unless it is given.
    """
    if devices is None:
        about = folder / "environment.json"
        devices = int(read_json(about).get("processes", 1)) if about.exists() else 1
    if (folder / "result.json").exists():
        result = read_json(folder / "result.json")
        if "images_seen" in result and "seconds" in result:
            return Spent(int(result["images_seen"]), float(result["seconds"]), devices)
    if not (folder / "metrics.jsonl").exists():
        raise EvaluationError(f"{folder} is not a run's folder: it has neither result.json nor metrics.jsonl.")
    batch_size = int(read_json(folder / "recipe.json")["batch_size"])
    step, seconds = 0, 0.0
    for line in read_metrics(folder / "metrics.jsonl"):
        if line.get("seconds per step") is not None:
            seconds += (line["step"] - step) * line["seconds per step"]
            step = line["step"]
    return Spent(step * batch_size, seconds, devices)


def inference_speed(subject: Subject, batch_size: int | None, *, seconds: float = 2.0, parts: int = 5) -> Speed:
    """Images per second through the subject, from a batch on its device to its outputs.

    Without a batch size, the largest power of two up to 64 that can be timed in so many seconds.
    """
    function = subject.logits or subject.features

    def step_of(size: int) -> Callable[[], Any]:
        images = torch.randn(size, 3, *subject.preprocess.size, device=subject.device)
        return lambda: function(images)

    return _timed(step_of, _sizes(batch_size, 1), subject.device, seconds, parts)


def training_speed(
    model: Model,
    batch_size: int | None,
    *,
    device: torch.device,
    bf16: bool = False,
    seconds: float = 2.0,
    parts: int = 5,
) -> Speed:
    """Images per second forward and backward, with a cross-entropy at the end and no optimizer; sizes as above."""
    sizes = _sizes(batch_size, 2)  # some models' batch norms cannot be trained on one image
    trained = copy.deepcopy(model)  # gradients and running statistics are not the model's
    return _timed(lambda size: _training_step(trained, size, device, bf16=bf16), sizes, device, seconds, parts)


def peak_memory(device: torch.device) -> int:
    """Bytes: on a GPU the most that tensors took since `reset_memory`; else the most that this process ever held."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def reset_memory(device: torch.device) -> None:
    """Begin to watch for a new peak, where that can be done."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def largest_batch(fits: Callable[[int], bool], *, limit: int = MAX_BATCH) -> int:
    """The largest batch that fits, by doubling and then halving the gap; 0 if not even one image does."""
    good, bad = 0, 1
    while bad <= limit and fits(bad):
        good, bad = bad, bad * 2
    bad = min(bad, limit + 1)
    while bad - good > max(good // 64, 1):  # within 2%: each try runs the model
        middle = (good + bad) // 2
        good, bad = (middle, bad) if fits(middle) else (good, middle)
    return good


def batch_fits(model: Model, device: torch.device, *, training: bool, bf16: bool) -> Callable[[int], bool]:
    """Whether a batch of some size can be computed in the GPU's memory."""
    assert device.type == "cuda"

    def fits(batch_size: int) -> bool:
        try:
            if training:
                _training_step(model, batch_size, device, bf16=bf16)()
            else:
                images = _images(model, batch_size, device)
                with torch.inference_mode(), torch.autocast("cuda", torch.bfloat16, enabled=bf16):
                    model(images)
            torch.cuda.synchronize(device)
        except torch.cuda.OutOfMemoryError:
            return False
        finally:
            model.zero_grad(set_to_none=True)
            torch.cuda.empty_cache()
        return True

    return fits


def cost_metrics(
    *,
    parameters: float,
    flops: float,
    speed: Speed | None = None,
    memory: int = 0,
    largest: int | None = None,
    images: float | None = None,
    training: Speed | None = None,
    run: Spent | None = None,
    run_flops: float | None = None,
) -> dict[str, Metric]:
    """Figures of cost as metrics, those that are known."""
    found = {"GFLOPs per image": _number(flops / 1e9), "parameters (M)": _number(parameters / 1e6)}
    if speed is not None:
        found["images per second"] = _speed(speed)
        found[f"peak memory (MB) at batch {speed.batch_size}"] = _number(memory / 2**20)
    if training is not None:
        found["images per second, training"] = _speed(training)
    if largest is not None:
        found["largest batch"] = _number(largest)
    if images is not None:
        found["exaFLOPs to train"] = _number(exaflops(flops, images))
        if training is not None:
            found["device-days to train"] = _number(device_days(images, training.value))
    if run is not None:
        found["exaFLOPs of its run"] = _number(exaflops(run_flops or flops, run.images))
        found["device-days of its run"] = _number(run.device_days)
    return found


def _images(model: Model, batch_size: int, device: torch.device) -> Tensor:
    """Any numbers in a batch's shape, in the precision of the model's weights."""
    shape = (batch_size, model.config.channels, *model.config.image_size)
    return torch.randn(shape, device=device, dtype=next(model.parameters()).dtype)


def _training_step(model: Model, batch_size: int, device: torch.device, *, bf16: bool) -> Callable[[], None]:
    model.train()
    images = _images(model, batch_size, device)

    def step() -> None:
        with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
            outputs: Tensor = model(images)
        F.cross_entropy(outputs.float(), torch.zeros(batch_size, dtype=torch.int64, device=device)).backward()

    return step


def _sizes(batch_size: int | None, smallest: int) -> list[int]:
    return [size for size in BATCH_SIZES if size >= smallest] if batch_size is None else [batch_size]


def _timed(
    step_of: Callable[[int], Callable[[], Any]], sizes: Sequence[int], device: torch.device, seconds: float, parts: int
) -> Speed:
    """The speed at the largest size whose parts fit in so many seconds; at least one pass of the smallest is timed."""

    def run(step: Callable[[], Any], times: int) -> float:
        start = time.perf_counter()
        for _ in range(times):
            step()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter() - start

    larger = list(sizes)
    while True:
        size = larger.pop(0)
        step = step_of(size)
        run(step, 1)
        once = max(run(step, 1), 1e-9)
        if not larger or once * larger[0] / size > seconds / parts:
            break
    parts = min(parts, int(seconds / once))
    if parts < 2:
        return Speed(size / once, 0.0, 1, size)
    times = max(round(seconds / parts / once), 1)
    speeds = [size * times / run(step, times) for _ in range(parts)]
    return Speed(statistics.median(speeds), statistics.stdev(speeds), parts, size)


def _number(value: float) -> Metric:
    return Metric(value=float(value), count=1, unit="number")


def _speed(speed: Speed) -> Metric:
    if speed.parts == 1:
        return _number(speed.value)
    of = f"{speed.parts} timed parts, standard deviation"
    return Metric(value=speed.value, count=speed.parts, spread=speed.spread, spread_of=of, unit="number")


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

"""How a run is computed: precision, processes, compiling, where the data lies, capturing; decided in one place."""

import contextlib
import functools
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import torch

from vitlab.core.errors import ConfigError
from vitlab.core.preprocess import Preprocess
from vitlab.data.contract import Split, Values
from vitlab.data.loading.resident import Pixels, common_size, load_inputs, load_pixels
from vitlab.data.streams import StreamPlan
from vitlab.models.counts import count_parameters
from vitlab.training.distribution import How, World, resolve_strategy
from vitlab.training.learner import Learner
from vitlab.training.optimizers import ON_DEVICE
from vitlab.training.plan import Plan
from vitlab.training.recipe import Recipe
from vitlab.training.step import Autocast

Say: TypeAlias = Callable[[str], None]
RESIDENT_LIMIT = {"cuda": 0.25, "cpu": 0.1}  # the share of the device's memory that a resident set may take
RESIDENT_SIDE = 96  # px; larger pictures are stored encoded, and decoded in workers
# Parameters below which a CPU's threads wait for each other longer than they work: on a machine with other work, ten
# times as long.
ONE_THREAD = 1_000_000


@dataclass(frozen=True, kw_only=True)
class Execution:
    """What was decided, and the sentences that say so."""

    dtype: torch.dtype
    autocast: Autocast
    strategy: How
    compile: bool
    one_thread: bool  # a model so small that threads cost more than they give
    on_device: bool  # lrs and step counts live on the GPU
    capture: bool  # the whole step is one CUDA graph
    num_workers: int
    train: Mapping[str, Pixels]  # of each stream, where the training images lie on the device; empty: read by workers
    evaluated: Mapping[str, Pixels] = field(default_factory=dict)
    """Likewise of 'val' and 'test', as the model takes them; of 'val' as they are stored where no task is scored."""
    sentences: tuple[str, ...] = ()

    @property
    def resident(self) -> bool:
        return bool(self.train)


def decide(plan: Plan, learner: Learner, streams: tuple[StreamPlan, ...], world: World, say: Say) -> Execution:
    """The execution of a plan on this machine; reads what is to be resident. `say` reports what takes long."""
    recipe, sentences = plan.recipe, list[str]()
    objective = learner.objective
    if objective.whole_batch and recipe.accumulate > 1:
        raise ConfigError("This objective compares all images of a batch: accumulate must be 1.")
    how, note = resolve_strategy(recipe.strategy, learner.model, world.size, compiled=recipe.compile)
    sentences += [] if note is None else [note]
    dtype = _dtype(recipe, world)
    alone_on_gpu = world.device.type == "cuda" and world.size == 1 and how == "replicate"
    train = _resident_streams(recipe, streams, world.device, say)
    evaluated = _resident_parts(plan, learner.model.preprocess, world.device, say) if train else {}
    capture = (
        alone_on_gpu
        and bool(train)
        and recipe.accumulate == 1
        and recipe.optimizer.name in ON_DEVICE
        and objective.capturable
    )
    if recipe.compile:
        sentences.append("The model is compiled with its first step, which may take a minute or two.")
    return Execution(
        dtype=dtype,
        autocast=_autocast(dtype, how, world),
        strategy=how,
        compile=recipe.compile,
        one_thread=world.device.type == "cpu" and count_parameters(learner.model) < ONE_THREAD,
        on_device=alone_on_gpu,
        capture=capture,
        num_workers=recipe.data.workers if recipe.data.workers is not None else min(os.cpu_count() or 1, 16),
        train=train,
        evaluated=evaluated,
        sentences=tuple(sentences),
    )


def _dtype(recipe: Recipe, world: World) -> torch.dtype:
    bf16 = recipe.precision == "bf16" or (recipe.precision == "auto" and world.device.type == "cuda")
    return torch.bfloat16 if bf16 else torch.float32


def _autocast(dtype: torch.dtype, how: How, world: World) -> Autocast:
    if dtype is torch.float32 or how == "shard":
        return contextlib.nullcontext
    return functools.partial(torch.autocast, world.device.type, dtype)


def _resident_streams(
    recipe: Recipe, streams: tuple[StreamPlan, ...], device: torch.device, say: Say
) -> dict[str, Pixels]:
    """The pixels of every stream's images, or of none; streams of the same images share them."""
    found: dict[str, Pixels] = {}
    read: dict[int, Pixels | None] = {}
    for stream in streams:
        if not all(isinstance(stream.split.targets[name], Values) for name in stream.targets):
            if recipe.data.resident:
                raise ConfigError("data.resident is for labels; masks are read with their images: leave it out.")
            return {}
        images = id(stream.split.images)
        if images not in read:
            read[images] = _resident_pixels(recipe, stream.split, device, say)
        pixels = read[images]
        if pixels is None:
            return {}
        found[stream.name] = pixels
    return found


def _resident_pixels(recipe: Recipe, split: Split, device: torch.device, say: Say) -> Pixels | None:
    """The split's bytes on the device where the recipe wants them there, or where they fit and it does not say."""
    wanted = recipe.data.resident
    if wanted is False:
        return None
    size = common_size(split)
    if size is None or (wanted is None and (max(size) > RESIDENT_SIDE or _too_large(split, size, device))):
        if wanted:
            raise ConfigError("data.resident needs images of one size that fit in memory: leave it out for this set.")
        return None
    say(f"Reading {len(split):,} images of {size[0]} x {size[1]} into memory.")
    pixels = load_pixels(split, size, recipe.data.max_unreadable)
    if pixels is not None:
        return pixels.to(device)
    if wanted:
        raise ConfigError("data.resident needs images of one size, and there are others: leave it out for this set.")
    say("There are images of other sizes: they are read anew in every epoch.")
    return None


def _resident_parts(plan: Plan, preprocess: Preprocess, device: torch.device, say: Say) -> dict[str, Pixels]:
    """What the evaluated parts' images are to the model, on the device, where they fit.

    An objective's own loss is of augmented views, and of the validation part alone: it has the images as they are.
    """
    found: dict[str, Pixels] = {}
    if not plan.scores_task:
        size = None if plan.parts.val is None else common_size(plan.parts.val)
        if plan.parts.val is None or size is None or _too_large(plan.parts.val, size, device):
            return found
        pixels = load_pixels(plan.parts.val, size, plan.recipe.data.max_unreadable)
        return found if pixels is None else {"val": pixels.to(device)}
    for name, split in (("val", plan.parts.val), ("test", plan.parts.test)):
        if split is not None and not _too_large(split, preprocess.size, device):
            say(f"Reading {len(split):,} images of {preprocess.size[0]} x {preprocess.size[1]} into memory.")
            found[name] = load_inputs(split, preprocess, plan.recipe.data.max_unreadable).to(device)
    return found


def _too_large(split: Split, size: tuple[int, int], device: torch.device) -> bool:
    total = torch.cuda.mem_get_info(device)[1] if device.type == "cuda" else 16 * 2**30
    return len(split) * 3 * size[0] * size[1] > RESIDENT_LIMIT[device.type] * total

"""Several processes: who this one is, and the model spread over them, from outside the model."""

import atexit
import contextlib
import dataclasses
import gc
import json
import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

from vitlab.core.errors import ConfigError
from vitlab.evaluation.features import Share
from vitlab.models.contract import Model
from vitlab.training.experts import expert_layers, shard_experts
from vitlab.training.learner import Learner

How: TypeAlias = Literal["replicate", "shard", "experts"]


@dataclass(frozen=True)
class World:
    """This process among all that train together."""

    rank: int
    size: int
    device: torch.device

    @property
    def first(self) -> bool:
        return self.rank == 0


@contextlib.contextmanager
def join(device: str | None = None) -> Iterator[World]:
    """The world that torchrun's environment describes, or this process alone.

    The processes stay together until this one ends: they could not meet at the same address a second time.
    """
    size, local = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("LOCAL_RANK", "0"))
    chosen = device or ("cuda" if torch.cuda.is_available() else "cpu")
    where = torch.device(f"cuda:{local}") if chosen == "cuda" else torch.device(chosen)
    if where.type == "cuda":
        torch.cuda.set_device(where)
        torch.backends.cuda.enable_cudnn_sdp(False)  # its backward gives NaN in bf16: docs/decisions/0005
    if "RANK" not in os.environ:
        yield World(0, 1, where)
        return
    if not dist.is_initialized():
        dist.init_process_group("nccl" if where.type == "cuda" else "gloo", timeout=timedelta(minutes=10))
        atexit.register(_leave)
    yield World(dist.get_rank(), size, where)


def _leave() -> None:
    """Destroy the group and end its threads while Python still runs.

    A thread of gloo's that lets go of a tensor when the interpreter ends aborts the process (pytorch issue
    190489). These threads end with the last reference to their group. Meshes hold references, and torch's caches of
    sharded operations hold meshes.
    """
    if dist.is_initialized():
        dist.destroy_process_group()
    for mesh in [kept for kept in gc.get_objects() if type(kept) is DeviceMesh]:
        getattr(mesh, "_pg_registry", {}).clear()
    gc.collect()


def resolve_strategy(
    wanted: Literal["auto"] | How, model: Model, size: int, *, compiled: bool = False
) -> tuple[How, str | None]:
    """How the model is to be spread over so many processes, and where it has experts a sentence on them."""
    if wanted in ("replicate", "shard"):
        return wanted, None
    layers = expert_layers(model)
    if not layers and wanted == "experts":
        raise ConfigError("strategy=experts: this model has no experts; leave strategy out, or set it to shard.")
    if not layers or size == 1:
        return "replicate", None
    config = next(iter(layers.values())).config
    num = config.num_experts
    if num % size:
        why, remedy = f"evenly over {size} processes", f"start a number of processes that divides {num}"
    elif compiled and config.checkpoint_blocks:  # torch cannot save a mesh of processes for the second pass
        why, remedy = "over processes with both compile and model.checkpoint_blocks", "leave one of these out"
    else:
        return "experts", f"Each of {size} processes holds {num // size} of the {num} experts of a layer."
    reason = f"The {num} experts of a layer cannot be spread {why}"
    if wanted == "experts":
        raise ConfigError(f"{reason}: {remedy}, or set strategy to replicate or shard.")
    return "replicate", f"{reason}: each process holds all of them."


def wrap(learner: Learner, world: World, how: How, dtype: torch.dtype) -> dict[str, nn.Module]:
    """The module to call for each phase: the learner, also where its layers are sharded, or a replicated wrapper.

    A wrapper expects a gradient of all that requires one, so each phase has its own, over its own parameters. Spread
    experts stay out of the wrappers, which average the gradients of all else.
    """
    model = learner.model
    if how == "shard":
        if not dist.is_initialized():
            raise ConfigError("Sharding needs processes: start the run with torchrun, or with --strategy replicate.")
        policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
        for layers in (module for module in model.children() if isinstance(module, nn.ModuleList)):
            for layer in layers:
                if any(True for _ in layer.parameters()):
                    fully_shard(layer, mp_policy=policy)
        # targets and places keep their type: the learner casts the images
        fully_shard(learner, mp_policy=dataclasses.replace(policy, cast_forward_inputs=False))
        learner.cast_to = dtype
        return dict.fromkeys(learner.phases, learner)
    if world.size == 1:
        return dict.fromkeys(learner.phases, learner)
    if how == "experts":
        own = shard_experts(model, init_device_mesh(world.device.type, (world.size,)))
        _leave_out(learner, [f"model.{name}" for name in own])
    wrapped: dict[str, nn.Module] = {}
    for name, phase in learner.phases.items():
        if phase.again is not None:
            wrapped[name] = wrapped[phase.again]
            continue
        learner.turn(name)
        wrapped[name] = DistributedDataParallel(
            learner, device_ids=[world.device] if world.device.type == "cuda" else None
        )
    return wrapped


def _leave_out(module: nn.Module, names: list[str]) -> None:
    """Have DDP leave these parameters alone, by a method that is documented but private (pytorch issue 43690)."""
    ignore = getattr(DistributedDataParallel, "_set_params_and_buffers_to_ignore_for_model", None)
    if ignore is None:
        raise ConfigError(f"torch {torch.__version__} cannot spread experts: use --strategy replicate or shard.")
    ignore(module, names)


def without_sync(module: nn.Module, skip: bool) -> contextlib.AbstractContextManager[object]:
    """Gradients stay local for all but the last part of an accumulated batch."""
    if skip and isinstance(module, DistributedDataParallel):
        return module.no_sync()
    return contextlib.nullcontext()


def share_of(world: World) -> Share:
    """This process's part of an evaluation, and how the parts of all are put together."""

    def gather(part: Tensor) -> list[Tensor]:
        sent = part.to(torch.uint8) if part.dtype is torch.bool else part  # not every backend sends booleans
        parts = [torch.empty_like(sent) for _ in range(world.size)]
        dist.all_gather(parts, sent)
        return [item.to(part.dtype) for item in parts]

    return Share() if world.size == 1 else Share(world.rank, world.size, gather)


def mean_over(world: World, values: Tensor) -> Tensor:
    """The mean of a small tensor over all processes."""
    if world.size > 1:
        dist.all_reduce(values)
        values = values / world.size
    return values


def count_of(world: World, numbers: Collection[int], num: int) -> int:
    """How many of the numbers below `num` any process has."""
    found = torch.zeros(num, dtype=torch.uint8, device=world.device)
    found[list(numbers)] = 1
    if world.size > 1:
        dist.all_reduce(found, dist.ReduceOp.MAX)
    return int(found.sum().item())


def shared(value: Any) -> Any:
    """The first process's value, one that JSON can say, in all."""
    if not dist.is_initialized():
        return value
    first, device = dist.get_rank() == 0, group_device()
    content = torch.tensor(list(json.dumps(value).encode()) if first else [], dtype=torch.uint8, device=device)
    length = torch.tensor(len(content), device=device)
    dist.broadcast(length, 0)
    if not first:
        content = torch.zeros(int(length.item()), dtype=torch.uint8, device=device)
    dist.broadcast(content, 0)
    return json.loads(bytes(content.tolist()))


def group_device() -> torch.device:
    """Where tensors have to be to go from process to process."""
    return torch.device("cuda" if dist.get_backend() == "nccl" else "cpu")


def any_of(world: World, flag: bool) -> bool:
    """Whether any process raised the flag, so that all stop at the same step."""
    return bool(largest_of(world, int(flag)))


def largest_of(world: World, number: int) -> int:
    """The largest of the processes' numbers."""
    if world.size == 1:
        return number
    found = torch.tensor(number, device=world.device)
    dist.all_reduce(found, dist.ReduceOp.MAX)
    return int(found.item())

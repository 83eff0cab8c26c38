"""Lists of tensors of which some are whole in every process and some are spread: torch's kernels take one kind each."""

import functools
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor


def by_kind(tensors: Iterable[Tensor]) -> list[list[int]]:
    """The places of the tensors that are whole and of those that are spread; no empty list."""
    places: dict[bool, list[int]] = {}
    for i, tensor in enumerate(tensors):
        places.setdefault(isinstance(tensor, DTensor), []).append(i)
    return list(places.values())


def total_norm(parameters: Iterable[Tensor]) -> Tensor:
    """The norm of all gradients, what is spread counted once, the same in every process."""
    return norm_of([p.grad for p in parameters if p.grad is not None])


def norm_of(tensors: Sequence[Tensor]) -> Tensor:
    """The norm of all the tensors together."""
    norms = [
        torch.nn.utils.get_total_norm([tensors[i] for i in places], foreach=True) for places in by_kind(tensors) or [[]]
    ]
    whole = [_whole(norm) for norm in norms]
    return whole[0] if len(whole) == 1 else torch.linalg.vector_norm(torch.stack(whole))


def product_of(first: Sequence[Tensor], second: Sequence[Tensor]) -> Tensor:
    """The inner product of two lists of tensors of the same kinds and shapes."""
    products = [
        functools.reduce(torch.add, [(first[i] * second[i]).sum() for i in places]) for places in by_kind(first)
    ]
    return functools.reduce(torch.add, map(_whole, products))


def _whole(value: Tensor) -> Tensor:
    return value.full_tensor() if isinstance(value, DTensor) else value


def clip_by(parameters: Sequence[Tensor], largest: float, norm: Tensor) -> None:
    """Scale all gradients down where their norm is above the largest one."""
    trained = [p for p in parameters if p.grad is not None]
    for places in by_kind(trained):
        torch.nn.utils.clip_grads_with_norm_([trained[i] for i in places], largest, norm)

"""Randomness that is counted, not drawn from a stream: a number is a hash of where it is used.

`uniform(key, counters, draw)` is the same number whenever and wherever it is asked for, in NumPy on a worker and in
torch on a device alike, so nothing depends on the number of workers or ranks, and a resumed run sees what it would have
seen.
"""

import math
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

Ints = TypeVar("Ints", "np.ndarray[Any, Any]", Tensor)

MASK, SALT = 0xFFFFFFFF, 0x05EBCA6B


def key(*parts: int | str) -> int:
    """A 32-bit key from a seed and what it is for: key(seed, 'order', epoch)."""
    state = 0x9E3779B9
    for part in parts:
        if isinstance(part, str):
            text = part.encode()
            words, size = [int.from_bytes(text[i : i + 4], "little") for i in range(0, len(text), 4)], len(text)
        else:
            words, size = [part & MASK, part >> 32 & MASK], 8  # of 64 bits; torch's compiler knows no int.to_bytes
        for word in words:
            state = _mix_int(state ^ word)
        state = _mix_int(state + size & MASK)
    return state


def uniform(key: int | Tensor, counters: Ints, draw: int | Ints = 0) -> Ints:
    """Numbers in [0, 1) with 24 bits, one per counter; `draw` tells several numbers of one counter apart.

    `draw` may be an array that broadcasts against the counters, so that many numbers cost one pass.
    """
    return _unit(bits(key, counters, draw))


def bits(key: int | Tensor, counters: Ints, draw: int | Ints = 0) -> Ints:
    """32 random bits a counter, as int64."""
    if isinstance(counters, Tensor):
        words = counters.long()
        salt = _mix_int(draw + SALT & MASK) if isinstance(draw, int) else _mix(draw + SALT & MASK)
        return _mix(_mix(_mix((words & MASK) ^ key) ^ ((words >> 32) & MASK)) ^ salt)
    assert isinstance(key, int)
    words = counters.astype(np.int64)
    with np.errstate(over="ignore"):
        salt = _mix_int(draw + SALT & MASK) if isinstance(draw, int) else _mix(np.asarray(draw) + SALT & MASK)
        return _mix(_mix(_mix((words & MASK) ^ key) ^ ((words >> 32) & MASK)) ^ salt)


def uniform_at(key: int, counter: int, draw: int = 0) -> float:
    """What `uniform` gives for one counter, in plain Python: quicker than arrays for a number or two."""
    state = _mix_int(_mix_int(counter & MASK ^ key) ^ (counter >> 32 & MASK))
    return (_mix_int(state ^ _mix_int(draw + SALT & MASK)) >> 8) * 2.0**-24


def normal(key: int, counters: Tensor, num: int) -> Tensor:
    """Numbers of a standard normal distribution, [N, num], by Box and Muller from two uniform ones each."""
    draws = torch.arange(num, device=counters.device)
    radius = (-2 * torch.log1p(-uniform(key, counters[:, None], 2 * draws))).sqrt()
    return radius * torch.cos(2 * math.pi * uniform(key, counters[:, None], 2 * draws + 1))


def permutation(key: int, num: int, device: torch.device | None = None) -> Tensor:
    """The numbers 0 ... num - 1 in a counted order: sorted by their hashes."""
    places = torch.arange(num, device=device)
    return torch.argsort(bits(key, places) * num + places)  # ties broken by the number itself


def torch_seed(*parts: int | str) -> int:
    """A seed for torch's own generator, for dropout and initialisation."""
    return key(*parts) << 32 | key(*parts, "low")


def _unit(words: Ints) -> Ints:
    if isinstance(words, Tensor):
        return (words >> 8).float() * 2.0**-24
    return (words >> 8).astype(np.float32) * np.float32(2.0**-24)


def _mix(x: Any) -> Any:
    """Chris Wellons' lowbias32, in int64 so that torch has the operations; products wrap and are masked."""
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & MASK
    x = ((x ^ (x >> 15)) * 0x846CA68B) & MASK
    return x ^ (x >> 16)


def _mix_int(x: int) -> int:
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & MASK
    x = ((x ^ (x >> 15)) * 0x846CA68B) & MASK
    return x ^ (x >> 16)

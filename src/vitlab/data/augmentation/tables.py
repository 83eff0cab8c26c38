"""Tables that turn counted numbers into parameters, alike on every device.

Only sums, products, quotients of tensors, roots, floors and look-ups lie between a counted number and a parameter: they
round alike in every IEEE implementation, which exp, sin or the inverse of a distribution do not. Instead of dividing
by a constant its inverse is multiplied with: a GPU does that anyway, a CPU does not.
"""

import functools
import math
from statistics import NormalDist
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from vitlab.data.augmentation.config import Augmentation
from vitlab.data.augmentation.policies import JITTERED, ORDERS, SUB_POLICIES, choice_number, choices

Array: TypeAlias = np.ndarray[Any, Any]

POINTS = 4096
BLUR_SIGMA, BLUR_REACH = 2.0, 6  # the widest blur, and the pixels it takes on each side


class Tables(NamedTuple):
    """What one augmentation needs on one device; empty where it does not."""

    crop_aspect: Tensor  # [points]: for `look_up`, as all of points
    erase_aspect: Tensor
    mixup: Tensor  # the quantiles of Beta(alpha, alpha)
    cutmix: Tensor
    normal: Tensor  # the quantiles of the normal distribution; the ends, which are infinite, stand half a step inside
    turn: Tensor  # [points, 2]: cosine and sine of -180 ... 180 degrees
    blur: Tensor  # [points, reach]: a Gaussian's weights from the middle to one side, for sigma 0 ... BLUR_SIGMA
    choices: Tensor  # [choice, (operation, start, slope, signed, step, low, high)]
    sub_policies: Tensor  # [sub-policy, stage, (choice, probability, strength)]
    jitter: Tensor  # [order, stage, (which of the three, its operation)]
    fill: Tensor  # [3], bytes


def look_up(table: Tensor, number: Tensor) -> Tensor:
    """A table of a function on [0, 1] at `number`, linear in between; further axes of the table stay."""
    position = number * (len(table) - 1)
    low = position.long().clamp(0, len(table) - 2)
    share = (position - low).view(*position.shape, *[1] * (table.ndim - 1))
    start = table[low]
    return start + (table[low + 1] - start) * share


def tables_for(aug: Augmentation, device: torch.device, given: Tables | None) -> Tables:
    """The given tables, or else those kept for the device."""
    if given is not None:
        return given
    assert not torch.compiler.is_compiling(), "compiled code is handed its tables: tables=make_tables(aug, device)"
    return make_tables(aug, device)


@functools.lru_cache(maxsize=64)
def crop_aspects(aug: Augmentation) -> Array:
    """The table of aspects for NumPy."""
    return make_tables(aug, torch.device("cpu")).crop_aspect.numpy()


@functools.lru_cache(maxsize=64)
def make_tables(aug: Augmentation, device: torch.device) -> Tables:
    """The tables on a device; the same augmentation and device give the same tensors."""
    unit, empty = np.linspace(0, 1, POINTS + 1), np.empty(0)
    angle = (2 * unit - 1) * math.pi
    sub_policies = [
        [(choice_number(aug.policy, op), prob, magnitude / 9) for op, prob, magnitude in sub_policy]
        for sub_policy in SUB_POLICIES.get(aug.policy, ())
    ]

    def put(values: Array) -> Tensor:
        return torch.from_numpy(values.astype(np.float32)).to(device)

    with torch.inference_mode(False):
        return Tables(
            crop_aspect=put(_log_uniform(unit, aug.crop_aspect)),
            erase_aspect=put(_log_uniform(unit, aug.erase_aspect)),
            mixup=put(_beta(unit, aug.mixup) if aug.mixup > 0 else empty),
            cutmix=put(_beta(unit, aug.cutmix) if aug.cutmix > 0 else empty),
            normal=put(_normal(unit) if aug.erase > 0 or aug.policy == "randaugment" else empty),
            turn=put(np.stack([np.cos(angle), np.sin(angle)], axis=-1)),
            blur=put(_gaussians(unit * BLUR_SIGMA)),
            choices=put(np.array(choices(aug.policy, aug.magnitude))),
            sub_policies=put(np.array(sub_policies)),
            jitter=put(np.array([[(which, JITTERED[which]) for which in order] for order in ORDERS])),
            fill=put(np.array(aug.fill)).to(torch.uint8),
        )


def _log_uniform(unit: Array, ends: tuple[float, float]) -> Array:
    return ends[0] * (ends[1] / ends[0]) ** unit


def _beta(unit: Array, alpha: float) -> Array:
    from scipy.special import betaincinv

    return betaincinv(alpha, alpha, unit)


def _normal(unit: Array) -> Array:
    return np.array([NormalDist().inv_cdf(p) for p in np.clip(unit, 0.5 / POINTS, 1 - 0.5 / POINTS)])


def _gaussians(sigma: Array) -> Array:
    """Weights that sum to one over both sides, cut at three sigma."""
    sigma = np.maximum(sigma, 1e-3)[:, None]
    reach = np.arange(BLUR_REACH + 1)
    weights = np.where(reach <= np.ceil(3 * sigma), np.exp(-0.5 * (reach / sigma) ** 2), 0)
    return weights / (2 * weights.sum(axis=1, keepdims=True) - 1)

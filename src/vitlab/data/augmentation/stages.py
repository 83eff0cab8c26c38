"""What a policy and the colour jitter draw for each sample: stages of one operation and its value."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vitlab.data.augmentation.config import Augmentation
from vitlab.data.augmentation.draws import (
    BLUR,
    GRAY,
    HUE,
    JITTER,
    JITTERS,
    POLICY,
    SOLARIZE,
    Key,
    integer,
    numbers,
)
from vitlab.data.augmentation.policies import JITTERED, OPS, ORDERS, SUB_POLICIES, TRIVIAL_LEVELS, Op
from vitlab.data.augmentation.tables import Tables, look_up


class Stage(NamedTuple):
    """One operation per sample, its value, and which operations can occur: what cannot is not computed."""

    op: Int[Tensor, "b"]
    value: Float[Tensor, "b"]
    ops: frozenset[Op]
    center: Float[Tensor, "b 2"] | None = None  # of cutouts, where they can occur: fractions of height and width
    nearest: bool = False  # whether maps take the nearest pixel, not the four around


def stages(
    aug: Augmentation, tables: Tables, places: Int[Tensor, "b"], key: Key, height: int, width: int
) -> list[Stage]:
    """What happens to the samples at these places after cropping and flipping, in order."""
    found: list[Stage] = []
    match aug.policy:
        case "none":
            pass
        case "randaugment":
            found = _randaugment(aug, tables, places, key)
        case "randaugment-official":
            found = _official(aug, tables, places, key, height, width)
        case "autoaugment" | "autoaugment-cifar10":
            found = _autoaugment(aug, tables, places, key)
        case "three":
            drawn = numbers(key, places, POLICY, 4)
            choice = integer(drawn[:, 0], len(OPS[aug.policy]))
            found = [_stage(aug, tables, choice, drawn[:, 2], drawn[:, 3])]
        case "trivial":
            drawn = numbers(key, places, POLICY, 4)
            choice = integer(drawn[:, 0], len(OPS[aug.policy]))
            strength = integer(drawn[:, 2], TRIVIAL_LEVELS) * (1 / (TRIVIAL_LEVELS - 1))
            found = [_moved_by_pixels(_stage(aug, tables, choice, strength, drawn[:, 3]), height, width)]
    return found + _colors(aug, tables, places, key)


def _randaugment(aug: Augmentation, tables: Tables, places: Tensor, key: Key) -> list[Stage]:
    drawn = numbers(key, places, POLICY, 4 * aug.num_ops).view(len(places), aug.num_ops, 4)
    choice = integer(drawn[..., 0], len(OPS[aug.policy]))
    noise = look_up(tables.normal, drawn[..., 2])
    strength = ((aug.magnitude + aug.magnitude_std * noise) * 0.1).clamp(0, aug.magnitude_end * 0.1)
    applied = drawn[..., 1] < aug.op_prob
    return [
        _stage(aug, tables, choice[:, i], strength[:, i], drawn[:, i, 3], applied=applied[:, i])
        for i in range(aug.num_ops)
    ]


def _official(aug: Augmentation, tables: Tables, places: Tensor, key: Key, height: int, width: int) -> list[Stage]:
    drawn = numbers(key, places, POLICY, 4 * aug.num_ops).view(len(places), aug.num_ops, 4)
    choice = integer(drawn[..., 0], len(OPS[aug.policy]))
    found: list[Stage] = []
    for i in range(aug.num_ops):
        stage = _stage(aug, tables, choice[:, i], torch.ones_like(drawn[:, i, 0]), drawn[:, i, 3])
        stage = stage._replace(center=drawn[:, i, 1:3], nearest=True)
        found.append(_moved_by_pixels(stage, height, width))
    return found


def _autoaugment(aug: Augmentation, tables: Tables, places: Tensor, key: Key) -> list[Stage]:
    policies = SUB_POLICIES[aug.policy]
    drawn = numbers(key, places, POLICY, 8).view(len(places), 2, 4)
    rows = tables.sub_policies[integer(drawn[:, 0, 0], len(policies))]
    found: list[Stage] = []
    for i in range(2):
        choice, probability, strength = rows[:, i].unbind(dim=-1)
        stage = _stage(aug, tables, choice.long(), strength, drawn[:, i, 3], applied=drawn[:, i, 1] < probability)
        possible = frozenset(Op[policy[i][0].upper()] for policy in policies if policy[i][1] > 0)
        found.append(stage._replace(ops=possible | {Op.IDENTITY}))
    return found


def _jitter(aug: Augmentation, tables: Tables, places: Tensor, key: Key) -> list[Stage]:
    drawn = numbers(key, places, JITTER, 1 + len(JITTERED))
    factors = 1 - aug.jitter + 2 * aug.jitter * drawn[:, 1:]
    rows = tables.jitter[integer(drawn[:, 0], len(ORDERS))].long()
    values = factors.gather(1, rows[..., 0])
    return [Stage(rows[:, i, 1], values[:, i], frozenset(JITTERED)) for i in range(len(JITTERED))]


def _colors(aug: Augmentation, tables: Tables, places: Tensor, key: Key) -> list[Stage]:
    """Jitter, hue, greyscale, blur and solarisation, each as often as it should be."""
    found = _jitter(aug, tables, places, key) if aug.jitter > 0 else []
    if aug.hue > 0:
        turn = (2 * numbers(key, places, HUE, 1)[:, 0] - 1) * aug.hue
        found.append(Stage(torch.full_like(places, Op.HUE.value), turn, frozenset({Op.HUE})))
    if aug.jitter_prob < 1:
        jittered = numbers(key, places, JITTERS, 1)[:, 0] < aug.jitter_prob
        found = [_sometimes(stage, jittered) for stage in found]
    sigma = 0.1 + 1.9 * numbers(key, places, BLUR + 1, 1)[:, 0]
    for op, draw, probability, value in (
        (Op.COLOR, GRAY, aug.gray, torch.zeros_like(sigma)),
        (Op.BLUR, BLUR, aug.blur, sigma),
        (Op.SOLARIZE, SOLARIZE, aug.solarize, torch.full_like(sigma, 128)),
    ):
        if probability > 0:
            stage = Stage(torch.full_like(places, op.value), value, frozenset({op}))
            found.append(_sometimes(stage, numbers(key, places, draw, 1)[:, 0] < probability))
    return found


def _sometimes(stage: Stage, applied: Tensor) -> Stage:
    """The stage for some of the samples, nothing for the others."""
    op = torch.where(applied, stage.op, Op.IDENTITY.value)
    return stage._replace(op=op, ops=stage.ops | {Op.IDENTITY})


def _stage(
    aug: Augmentation, tables: Tables, choice: Tensor, strength: Tensor, sign: Tensor, *, applied: Tensor | None = None
) -> Stage:
    op, start, slope, signed, step, low, high = tables.choices[choice].unbind(dim=-1)
    amount = slope * strength
    amount = torch.where(step == 1, amount.trunc(), torch.where(step == 2, amount.round(), amount))
    value = (start + torch.where((signed > 0) & (sign < 0.5), -amount, amount)).clamp(low, high)
    stage = Stage(op.long(), value, frozenset(OPS[aug.policy]))
    return stage if applied is None else _sometimes(stage, applied)


def _moved_by_pixels(stage: Stage, height: int, width: int) -> Stage:
    """Translations of so many pixels, whatever the size."""
    value = torch.where(stage.op == Op.TRANSLATE_X.value, stage.value * (1 / width), stage.value)
    return stage._replace(value=torch.where(stage.op == Op.TRANSLATE_Y.value, value * (1 / height), value))

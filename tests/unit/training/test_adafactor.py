"""Adafactor against NumPy in float64, timm's port of big_vision's, and transformers' for the factored part."""

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from vitlab.models.create import create
from vitlab.training.adafactor import Adafactor
from vitlab.training.optimizers import Optimizer, build

Array = NDArray[np.float64]
SHAPES = [(40, 33), (33, 64), (3, 40, 36), (40, 8), (50,)]  # factored thrice, then twice kept whole


def bf16(values: Array) -> Array:
    return torch.tensor(values).float().bfloat16().double().numpy()


def by_numpy(weight: Array, gradients: list[Array], *, lr: float, clip: float | None, decay: float) -> Array:
    """The rule, with the momentum rounded to bfloat16 between steps."""
    whole = weight.ndim < 2 or min(weight.shape[-2:]) < 32
    square, row, column = np.zeros_like(weight), np.zeros(weight.shape[:-1]), np.zeros(())
    momentum = np.zeros_like(weight)
    for t, gradient in enumerate(gradients, 1):
        beta2 = min(0.999, 1 - t**-0.8)
        squares = gradient**2 + 1e-30
        if whole:
            square = beta2 * square + (1 - beta2) * squares
        else:
            row = beta2 * row + (1 - beta2) * squares.mean(-1)
            column = beta2 * column + (1 - beta2) * squares.mean(-2)
            square = row[..., :, None] * column[..., None, :] / row.mean(-1)[..., None, None]
        update = gradient / np.sqrt(square)
        if clip is not None:
            update = update / max(1.0, np.sqrt((update**2).mean()) / clip)
        momentum = 0.9 * bf16(momentum) + 0.1 * update
        weight = weight - lr * momentum - lr * decay * weight
    return weight


def steps(optimizer: torch.optim.Optimizer, parameter: nn.Parameter, gradients: list[Array]) -> Array:
    for gradient in gradients:
        parameter.grad = torch.tensor(gradient, dtype=parameter.dtype)
        optimizer.step()
    return parameter.detach().double().numpy()


def drawn(shape: tuple[int, ...], num: int = 6) -> tuple[Array, list[Array]]:
    """A weight, and gradients that grow, so that updates are clipped."""
    rng = np.random.default_rng(0)
    return rng.normal(size=shape), [rng.normal(size=shape) * 3.0**i for i in range(num)]


@pytest.mark.parametrize("clip", [1.0, None])
@pytest.mark.parametrize("shape", SHAPES)
def test_as_numpy_has_it(shape: tuple[int, ...], clip: float | None) -> None:
    weight, gradients = drawn(shape)
    parameter = nn.Parameter(torch.tensor(weight))
    optimizer = Adafactor([{"params": [parameter], "weight_decay": 0.3}], lr=0.05, update_clip=clip)
    expected = by_numpy(weight, gradients, lr=0.05, clip=clip, decay=0.3)
    np.testing.assert_allclose(steps(optimizer, parameter, gradients), expected, rtol=1e-9, atol=1e-11)
    unclipped = by_numpy(weight, gradients, lr=0.05, clip=None, decay=0.3)
    assert np.allclose(expected, unclipped) == (clip is None)


@pytest.mark.parametrize("clip", [1.0, None])
@pytest.mark.parametrize("shape", SHAPES)
def test_as_timms_port_of_big_vision_without_momentum(shape: tuple[int, ...], clip: float | None) -> None:
    """Its momentum is computed in bfloat16, the authors' and ours in float32 and kept in bfloat16."""
    from timm.optim.adafactor_bv import AdafactorBigVision

    weight, gradients = drawn(shape)
    one, other = (nn.Parameter(torch.tensor(weight, dtype=torch.float32)) for _ in range(2))
    ours = Adafactor([{"params": [one], "weight_decay": 0.1}], lr=0.01, momentum=0.0, update_clip=clip)
    theirs = AdafactorBigVision(
        [other], lr=0.01, momentum=None, weight_decay=0.1, clipping_threshold=clip, min_dim_size_to_factor=32
    )
    np.testing.assert_allclose(steps(ours, one, gradients), steps(theirs, other, gradients), rtol=1e-5, atol=1e-6)


def test_factored_part_as_transformers_has_it() -> None:
    from transformers import Adafactor as Theirs

    weight, gradients = drawn((40, 33))
    one, other = (nn.Parameter(torch.tensor(weight, dtype=torch.float32)) for _ in range(2))
    theirs = Theirs([other], lr=0.01, scale_parameter=False, relative_step=False, warmup_init=False)
    ours = Adafactor([one], lr=0.01, momentum=0.0)
    np.testing.assert_allclose(steps(ours, one, gradients), steps(theirs, other, gradients), rtol=1e-5, atol=1e-6)


def test_the_second_moment_never_forgets_more_slowly_than_999() -> None:
    """After 10,000 steps Adafactor's decay would be .99937; the paper's is capped."""
    parameter = nn.Parameter(torch.ones(3, dtype=torch.float64))
    optimizer = Adafactor([parameter], lr=0.0)
    steps(optimizer, parameter, [np.ones(3)])
    optimizer.state[parameter]["step"].fill_(10_000)
    steps(optimizer, parameter, [np.full(3, 11.0)])
    assert optimizer.state[parameter]["square"].tolist() == pytest.approx([1 + 0.001 * 120] * 3, rel=1e-6)


def test_what_it_keeps_is_small() -> None:
    parameter = nn.Parameter(torch.randn(64, 48))
    optimizer = Adafactor([parameter], lr=0.1)
    steps(optimizer, parameter, [np.ones((64, 48))])
    kept = {name: (tuple(value.shape), value.dtype) for name, value in optimizer.state[parameter].items()}
    assert kept == {
        "step": ((), torch.float32),
        "momentum": ((64, 48), torch.bfloat16),
        "row": ((64,), torch.float32),
        "column": ((48,), torch.float32),
    }


def test_reading_its_state_back_changes_nothing() -> None:
    weight, gradients = drawn((40, 33))
    whole = nn.Parameter(torch.tensor(weight, dtype=torch.float32))
    expected = steps(Adafactor([whole], lr=0.05), whole, gradients)
    parameter = nn.Parameter(torch.tensor(weight, dtype=torch.float32))
    first = Adafactor([parameter], lr=0.05)
    steps(first, parameter, gradients[:3])
    second = Adafactor([parameter], lr=0.05)
    second.load_state_dict(first.state_dict())
    assert second.state[parameter]["momentum"].dtype is torch.bfloat16
    assert np.array_equal(steps(second, parameter, gradients[3:]), expected)


@pytest.mark.parametrize("shape", [(40, 33), (5,)])
@pytest.mark.parametrize("bad_first", [True, False])
def test_a_step_that_is_not_finite_is_left_out_on_the_device(shape: tuple[int, ...], bad_first: bool) -> None:
    weight, gradients = drawn(shape, 4)
    whole, parameter = (nn.Parameter(torch.tensor(weight)) for _ in range(2))
    expected = steps(Adafactor([whole], lr=0.05), whole, gradients)
    optimizer = Adafactor([parameter], lr=0.05)
    optimizer.found_inf = torch.zeros(())
    at = 0 if bad_first else 2
    steps(optimizer, parameter, gradients[:at])
    optimizer.found_inf.fill_(1)
    steps(optimizer, parameter, [np.full(shape, np.nan)])
    optimizer.found_inf.fill_(0)
    assert np.array_equal(steps(optimizer, parameter, gradients[at:]), expected)


def test_the_head_decays_by_its_own() -> None:
    model = create("vit-digits")
    spec = Optimizer(name="adafactor", lr=8e-4, weight_decay=0.03, head_weight_decay=3.0, update_clip=None)
    (optimizer,) = build(model, [], spec)
    decay: dict[int, Any] = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    found = {name: decay[id(p)] for name, p in model.named_parameters()}
    assert (found["head.weight"], found["head.bias"]) == (3.0, 0.0)
    assert (found["blocks.0.mlp.up.weight"], found["blocks.0.mlp.up.bias"], found["prefix"]) == (0.03, 0.0, 0.0)
    assert all(group["update_clip"] is None for group in optimizer.param_groups)

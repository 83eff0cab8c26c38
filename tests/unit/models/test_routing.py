"""Routing against a slow reference that takes one token after the other, and cases worked out by hand."""

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from vitlab.models.routing import ExpertLinear, Router, buffer_size, importance_loss, load_loss, route

Array = NDArray[np.float64]


def routed_slowly(
    gates: Array, values: Array, scales: Array, k: int, room: int, by_max: bool
) -> tuple[Array, NDArray[np.int64]]:
    """One group, expert i multiplying by scales[i]: the outputs, and how many of its k experts each token reached."""
    size, num_experts = gates.shape
    queue = sorted(range(size), key=lambda t: -gates[t].max()) if by_max else list(range(size))
    used, reached, outputs = [0] * num_experts, np.zeros(size, np.int64), np.zeros_like(values)
    for choice in range(k):
        for token in queue:
            expert = int(np.argsort(-gates[token])[choice])
            if used[expert] < room:
                used[expert] += 1
                reached[token] += 1
                outputs[token] += gates[token, expert] * scales[expert] * values[token]
    return outputs, reached


@given(
    seed=st.integers(0, 1000),
    groups=st.integers(1, 3),
    size=st.integers(1, 12),
    num_experts=st.integers(1, 5),
    k=st.integers(1, 3),
    ratio=st.sampled_from([0.3, 0.5, 1.0, 1.05, 2.0, 6.0]),
    by_max=st.booleans(),
)
def test_as_one_token_after_the_other(
    seed: int, groups: int, size: int, num_experts: int, k: int, ratio: float, by_max: bool
) -> None:
    k = min(k, num_experts)
    rng = np.random.default_rng(seed)
    logits = rng.standard_normal((groups, size, num_experts))
    gates = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    values, scales = rng.standard_normal((groups, size, 3)), rng.standard_normal(num_experts)
    room = buffer_size(size, num_experts, k, ratio)
    assert 1 <= room <= size
    routes = route(torch.tensor(gates), num_selected=k, capacity=room, batch_priority=by_max)
    buffers = routes.dispatch(torch.tensor(values))
    assert buffers.shape == (num_experts, groups * room, 3)
    outputs = routes.combine(buffers * torch.tensor(scales)[:, None, None])
    for g in range(groups):
        expected, reached = routed_slowly(gates[g], values[g], scales, k, room, by_max)
        np.testing.assert_allclose(outputs[g].numpy(), expected, rtol=1e-12, atol=1e-12)
        assert routes.kept[g].sum(-1).tolist() == reached.tolist()


# Four tokens, two experts, one choice. Three want expert 0: .6, .7 and .9 of it; the fourth wants expert 1.
GATES = torch.tensor([[[0.6, 0.4], [0.7, 0.3], [0.2, 0.8], [0.9, 0.1]]], dtype=torch.float64)
VALUES = torch.tensor([[[1.0], [10.0], [100.0], [1000.0]]], dtype=torch.float64)


@pytest.mark.parametrize(
    ("by_max", "expected"),
    [
        (False, [0.6, 7.0, 80.0, 0.0]),  # in order: the last finds expert 0 full
        (True, [0.0, 7.0, 80.0, 900.0]),  # .9, .8, .7, .6: the first comes last
    ],
)
def test_four_tokens_by_hand(by_max: bool, expected: list[float]) -> None:
    routes = route(GATES, num_selected=1, capacity=2, batch_priority=by_max)
    assert routes.combine(routes.dispatch(VALUES))[0, :, 0].tolist() == pytest.approx(expected)


def test_first_choices_come_before_second_ones_by_hand() -> None:
    """With room for two: expert 0 takes the first choices of 0 and 1, expert 1 that of 2, then the second of 0."""
    routes = route(GATES, num_selected=2, capacity=2, batch_priority=False)
    assert routes.combine(routes.dispatch(VALUES))[0, :, 0].tolist() == pytest.approx([1.0, 7.0, 80.0, 0.0])
    assert routes.kept[0].tolist() == [[True, True], [True, False], [True, False], [False, False]]


def test_normalised_weights_add_up_to_one() -> None:
    gates = torch.tensor([[[0.5, 0.3, 0.2]]])
    routes = route(gates, num_selected=2, capacity=1, batch_priority=False, normalized=True)
    assert routes.weights[0, 0].tolist() == pytest.approx([0.625, 0.375])


def test_a_token_without_room_gets_no_gradient_and_gives_none() -> None:
    values, gates = VALUES.clone().requires_grad_(), GATES.clone().requires_grad_()
    routes = route(gates, num_selected=1, capacity=2, batch_priority=False)
    routes.combine(routes.dispatch(values)).sum().backward()
    assert values.grad is not None
    assert gates.grad is not None
    assert values.grad[0, :, 0].tolist() == pytest.approx([0.6, 0.7, 0.8, 0.0])
    assert gates.grad[0].tolist() == [[1.0, 0.0], [10.0, 0.0], [0.0, 100.0], [0.0, 0.0]]


@pytest.mark.parametrize(
    ("tokens", "experts", "k", "ratio", "expected"),
    [
        (1576, 8, 2, 1.05, 414),  # eight images of 197 tokens: 413.7
        (1576, 32, 2, 1.05, 103),  # 103.4
        (10, 4, 1, 1.0, 3),  # 2.5 is rounded up
        (1, 32, 2, 1.05, 1),
        (20, 4, 2, 5.0, 20),
    ],
)
def test_buffers_by_hand(tokens: int, experts: int, k: int, ratio: float, expected: int) -> None:
    assert buffer_size(tokens, experts, k, ratio) == expected


def test_losses_as_scipy_has_them() -> None:
    rng = np.random.default_rng(0)
    logits = rng.standard_normal((2, 7, 4))
    noisy = logits + 0.25 * rng.standard_normal(logits.shape)
    gates = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    importance, load = [], []
    for g in range(2):
        importance.append(scipy.stats.variation(gates[g].sum(0)) ** 2)
        chances = np.zeros(4)
        for token in range(7):
            threshold = np.sort(noisy[g, token])[-2]
            chances += 1 - scipy.stats.norm.cdf((threshold - logits[g, token]) / 0.25)
        load.append(scipy.stats.variation(chances) ** 2)
    assert importance_loss(torch.tensor(gates)).item() == pytest.approx(np.mean(importance), rel=1e-12)
    ours = load_loss(torch.tensor(logits), torch.tensor(noisy), num_selected=2, noise=0.25)
    assert ours.item() == pytest.approx(np.mean(load), rel=1e-12)


def test_losses_of_one_expert_and_of_equals() -> None:
    """Two experts, all weight on one: sums n and 0, mean n/2, deviation n/2, so 1; equal shares: 0."""
    one = torch.tensor([[[1.0, 0.0]] * 3])
    assert importance_loss(one).item() == pytest.approx(1.0)
    assert importance_loss(torch.full((1, 3, 2), 0.5)).item() == 0.0


def test_the_router_is_noisy_in_training_only() -> None:
    torch.manual_seed(0)
    router = Router(8, 4, noise=1.0)
    z = torch.randn(50, 40, 8)
    logits, noisy = router(z)
    assert (noisy - logits).std().item() == pytest.approx(0.25, rel=0.03)
    logits, noisy = router.eval()(z)
    assert torch.equal(logits, noisy)
    torch.testing.assert_close(logits, z @ router.dense.weight.T)


def test_the_router_stays_in_float32_under_autocast() -> None:
    router, z = Router(64, 4, noise=0.0), torch.randn(1, 9, 64)
    with torch.autocast("cpu", torch.bfloat16):
        logits, _ = router(z)
    torch.testing.assert_close(logits, z @ router.dense.weight.T)
    assert logits.dtype is torch.float32


def test_the_grouped_product_is_a_linear_layer_an_expert() -> None:
    grouped = ExpertLinear(3, 5, 4)
    torch.nn.init.normal_(grouped.weight)
    torch.nn.init.normal_(grouped.bias)
    x = torch.randn(3, 6, 5)
    for i in range(3):
        expected = torch.nn.functional.linear(x[i], grouped.weight[i], grouped.bias[i])
        torch.testing.assert_close(grouped(x)[i], expected)

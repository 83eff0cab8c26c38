import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vitlab.core.errors import Error
from vitlab.inspection.rollout import Rollout, attention_rollout


def softmaxed(*shape: int, seed: int = 0) -> np.ndarray:
    values = np.exp(2 * np.random.default_rng(seed).standard_normal(shape))
    return values / values.sum(axis=-1, keepdims=True)


def numpy_rollout(attentions: np.ndarray) -> np.ndarray:
    """Loops over everything, in float64."""
    layers, batch, heads, n, _ = attentions.shape
    out = np.empty((batch, n, n))
    for b in range(batch):
        flow = np.eye(n)
        for layer in range(layers):
            mean = sum(attentions[layer, b, h] for h in range(heads)) / heads
            mixed = 0.5 * mean + 0.5 * np.eye(n)
            flow = np.dot(np.array([row / row.sum() for row in mixed]), flow)
        out[b] = flow
    return out


def test_two_layers_by_hand() -> None:
    """(A2 + I)/2 (A1 + I)/2 = [[.75, .25], [0, 1]] [[1, 0], [.25, .75]]."""
    first, second = [[1.0, 0.0], [0.5, 0.5]], [[0.5, 0.5], [0.0, 1.0]]
    flow = attention_rollout(torch.tensor([first, second])[:, None, None])
    torch.testing.assert_close(flow, torch.tensor([[[0.8125, 0.1875], [0.25, 0.75]]]))


def test_heads_are_averaged_and_rows_normalised_by_hand() -> None:
    heads = torch.tensor([[[1.0, 0.0], [0.0, 1.0]], [[0.0, 1.0], [1.0, 0.0]]])
    torch.testing.assert_close(attention_rollout(heads[None, None]), torch.tensor([[[0.75, 0.25], [0.25, 0.75]]]))
    torch.testing.assert_close(  # rows that do not sum to 1: [2, 1] / 3 is mixed and normalised
        attention_rollout(torch.full((1, 1, 1, 2, 2), 1.0)), torch.tensor([[[2 / 3, 1 / 3], [1 / 3, 2 / 3]]])
    )


@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 3), st.integers(1, 6), st.integers(0, 99))
def test_as_numpy_has_it(layers: int, batch: int, heads: int, n: int, seed: int) -> None:
    attentions = softmaxed(layers, batch, heads, n, n, seed=seed)
    flow = attention_rollout(attentions)
    assert flow.shape == (batch, n, n)
    np.testing.assert_allclose(flow, numpy_rollout(attentions), rtol=1e-12)
    np.testing.assert_allclose(flow.sum(dim=-1), 1, rtol=1e-12)


def test_layers_one_at_a_time_and_in_half_precision() -> None:
    attentions = softmaxed(12, 1, 2, 9, 9)
    expected = numpy_rollout(attentions)
    rollout = Rollout()
    for layer in attentions:
        rollout.add(torch.from_numpy(layer))
    assert rollout.flow is not None
    np.testing.assert_allclose(rollout.flow, expected, rtol=1e-12)
    np.testing.assert_allclose(attention_rollout(iter(attentions)), expected, rtol=1e-12)
    half = attention_rollout(torch.from_numpy(attentions).bfloat16())
    assert half.dtype == torch.float32
    np.testing.assert_allclose(half, expected, atol=2e-3)


def test_weighted_by_gradients_by_hand() -> None:
    """Positive parts of A * dA, averaged over heads; then R <- R + A R from R = I."""
    attention = torch.tensor([[[0.5, 0.5], [1.0, 0.0]], [[0.0, 1.0], [0.5, 0.5]]])[None]
    gradient = torch.tensor([[[2.0, -2.0], [1.0, 1.0]], [[5.0, 1.0], [-4.0, 2.0]]])[None]
    rollout, falling = Rollout(), Rollout()
    # heads: [[1, 0], [1, 0]] and [[0, 1], [0, 1]]: mean [[.5, .5], [.5, .5]]
    for expected in ([[1.5, 0.5], [0.5, 1.5]], [[2.5, 1.5], [1.5, 2.5]]):
        rollout.add_weighted(attention, gradient)
        torch.testing.assert_close(rollout.flow, torch.tensor([expected]))
    falling.add_weighted(attention, -gradient.abs())
    torch.testing.assert_close(falling.flow, torch.eye(2)[None])


def test_what_cannot_be_multiplied_is_refused() -> None:
    with pytest.raises(Error, match="same tokens on both sides"):
        attention_rollout(torch.zeros(1, 1, 1, 4, 2))
    with pytest.raises(Error, match="layers of one size"):
        attention_rollout([torch.zeros(1, 1, 4, 4), torch.zeros(1, 1, 2, 2)])
    with pytest.raises(Error, match="at least one layer"):
        attention_rollout([])

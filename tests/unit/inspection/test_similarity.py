import numpy as np
import pytest
import torch
from scipy.stats import ortho_group

from vitlab.core.errors import Error
from vitlab.inspection.similarity import StreamingCka, aligned_rows, coarsest
from vitlab.models.contract import Tokens

rng = np.random.default_rng(0)


def gram_cka(x: np.ndarray, y: np.ndarray) -> float:
    """The biased estimate, by Gram matrices and the centring matrix."""
    n = len(x)
    centring = np.eye(n) - np.ones((n, n)) / n
    k, m = centring @ x @ x.T @ centring, centring @ y @ y.T @ centring
    return float((k * m).sum() / np.sqrt((k * k).sum() * (m * m).sum()))


def hsic1(x: np.ndarray, y: np.ndarray) -> float:
    """Song et al. 2012, equation 5, word for word."""
    n, ones = len(x), np.ones(len(x))
    k, m = x @ x.T, y @ y.T
    np.fill_diagonal(k, 0)
    np.fill_diagonal(m, 0)
    middle = (ones @ k @ ones) * (ones @ m @ ones) / ((n - 1) * (n - 2))
    return float((np.trace(k @ m) + middle - 2 / (n - 2) * ones @ k @ m @ ones) / (n * (n - 3)))


def streamed(batches: list[tuple[list[np.ndarray], list[np.ndarray] | None]]) -> torch.Tensor:
    cka = StreamingCka()
    for first, second in batches:
        cka.add(first, second)
    return cka.result()


def test_turning_scaling_and_shifting_change_nothing() -> None:
    x = rng.standard_normal((30, 6))
    turned = 4 * x @ ortho_group.rvs(6, random_state=0) + 2
    stretched = x * [1, 1, 1, 1, 1, 20]
    values = streamed([([x], [turned, stretched])])[0]
    assert values[0] == pytest.approx(1)
    assert values[1] < 0.9


def test_minibatches_as_numpy_has_it() -> None:
    layers = [rng.standard_normal((24, width)) + width for width in (3, 7)]
    others = [layers[0][:, :2] + rng.standard_normal((24, 2)), rng.standard_normal((24, 9)), layers[1]]
    parts = [slice(0, 8), slice(8, 12), slice(12, 24)]

    def total(x: np.ndarray, y: np.ndarray) -> float:
        return sum(hsic1(x[part], y[part]) for part in parts)

    expected = [[total(x, y) / np.sqrt(total(x, x) * total(y, y)) for y in others] for x in layers]
    ours = streamed([([x[part] for x in layers], [y[part] for y in others]) for part in parts])
    np.testing.assert_allclose(ours, expected, rtol=1e-9)
    within = streamed([([x[part] for x in layers], None) for part in parts])
    np.testing.assert_allclose(within.diagonal(), 1)
    np.testing.assert_allclose(within, within.T)


def test_few_unrelated_examples_are_unlike_only_without_bias() -> None:
    pairs = [([rng.standard_normal((16, 60))], [rng.standard_normal((16, 60))]) for _ in range(200)]
    assert np.mean([gram_cka(x[0], y[0]) for x, y in pairs]) > 0.7
    assert abs(float(streamed([(x, y) for x, y in pairs])[0, 0])) < 0.02


def test_tokens_of_two_grids_are_averaged_to_one() -> None:
    fine = Tokens(values=torch.arange(17.0)[None, :, None].expand(2, -1, 3), grid=(4, 4), num_prefix=1)
    coarse = Tokens(values=torch.arange(4.0)[None, :, None].expand(2, -1, 5), grid=(2, 2))
    assert coarsest([fine, coarse]) == (2, 2)
    first, second = aligned_rows([fine, coarse], (2, 2))
    assert first.shape == (8, 3)
    assert first[:4, 0].tolist() == [3.5, 5.5, 11.5, 13.5]  # (1 + 2 + 5 + 6) / 4, ...; 0 is the prefix
    assert second[:4, 0].tolist() == [0, 1, 2, 3]
    (some,) = aligned_rows([fine], (4, 4), most=4)
    assert some[:, 0].tolist() == [1, 11, 6, 16]  # rows 0, 10, 21, 31 of 32


def test_what_cannot_be_compared_is_refused() -> None:
    with pytest.raises(Error, match="not of 5 and 6"):
        streamed([([np.zeros((5, 2))], [np.zeros((6, 2))])])
    with pytest.raises(Error, match="at least 4 examples, not 3"):
        streamed([([np.zeros((3, 2))], None)])
    with pytest.raises(Error, match="every layer"):
        streamed([([np.zeros((5, 2)), np.zeros((6, 2))], None)])
    with pytest.raises(Error, match="one minibatch"):
        streamed([])

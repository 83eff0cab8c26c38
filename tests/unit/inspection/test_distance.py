import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vitlab.core.errors import Error
from vitlab.inspection.distance import attention_distance, patch_distances


def numpy_distance(
    attention: np.ndarray, grid: tuple[int, int], patch: tuple[float, float], num_prefix: int
) -> list[float]:
    """A loop over images, queries and keys."""
    places = [(row * patch[0], column * patch[1]) for row in range(grid[0]) for column in range(grid[1])]
    means: list[float] = []
    for head in range(attention.shape[1]):
        rows = []
        for image in range(attention.shape[0]):
            for q, here in enumerate(places):
                weights = [attention[image, head, num_prefix + q, num_prefix + k] for k in range(len(places))]
                apart = [math.dist(here, there) for there in places]
                rows.append(sum(w * d for w, d in zip(weights, apart, strict=True)) / sum(weights))
        means.append(sum(rows) / len(rows))
    return means


def test_by_hand_on_two_by_two_patches() -> None:
    """Equal attention: 0, 16, 16 and 16 sqrt 2 away; to oneself: 0; to the opposite corner: 16 sqrt 2."""
    equal, itself = torch.full((4, 4), 0.25), torch.eye(4)
    attention = torch.stack([equal, itself, itself.flip(0)])[None]
    far = attention_distance(attention, grid=(2, 2), patch_size=16, num_prefix=0)
    torch.testing.assert_close(far, torch.tensor([(32 + 16 * 2**0.5) / 4, 0, 16 * 2**0.5]))


def test_prefix_tokens_are_left_out_and_rows_divided_by_the_rest() -> None:
    """Half of each patch's attention goes to the prefix; of the rest, all or half to the other patch."""
    attention = torch.tensor([[0.9, 0.1, 0.0], [0.5, 0.0, 0.5], [0.5, 0.25, 0.25]])[None, None]
    far = attention_distance(attention, grid=(1, 2), patch_size=8)
    torch.testing.assert_close(far, torch.tensor([(8 + 4) / 2.0]))


def test_a_row_that_gives_the_patches_nothing_does_not_count() -> None:
    attention = torch.tensor([[0.0, 0, 1], [1, 0, 0], [0, 1, 0]])[None, None]
    torch.testing.assert_close(attention_distance(attention, grid=(1, 2), patch_size=8), torch.tensor([8.0]))
    none = torch.tensor([[1.0, 0, 0], [1, 0, 0], [1, 0, 0]])[None, None]
    assert attention_distance(none, grid=(1, 2), patch_size=8).isnan().all()


@given(
    st.tuples(st.integers(1, 4), st.integers(1, 4)),
    st.integers(0, 3),
    st.tuples(st.sampled_from([1.0, 7.5, 16.0]), st.sampled_from([2.0, 16.0])),
    st.integers(0, 99),
)
def test_as_numpy_has_it(grid: tuple[int, int], num_prefix: int, patch: tuple[float, float], seed: int) -> None:
    n = grid[0] * grid[1] + num_prefix
    values = np.exp(np.random.default_rng(seed).standard_normal((2, 3, n, n)))
    attention = values / values.sum(axis=-1, keepdims=True)
    expected = numpy_distance(attention, grid, patch, num_prefix)
    far = attention_distance(attention, grid=grid, patch_size=patch, num_prefix=num_prefix)
    np.testing.assert_allclose(far, expected, rtol=1e-12, atol=1e-12)
    single = attention_distance(attention.astype(np.float32), grid=grid, patch_size=patch, num_prefix=num_prefix)
    np.testing.assert_allclose(single, expected, rtol=1e-5, atol=1e-5)


def test_patches_are_in_row_major_order() -> None:
    assert patch_distances((2, 3), 10)[0].tolist() == pytest.approx([0, 10, 20, 10, 10 * 2**0.5, 10 * 5**0.5])


@pytest.mark.parametrize("shape", [(1, 1, 5, 3), (1, 1, 4, 4), (5, 5)])
def test_attention_of_other_places_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(Error, match="2 x 2 grid"):
        attention_distance(torch.zeros(shape), grid=(2, 2), patch_size=16)

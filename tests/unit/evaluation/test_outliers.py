"""Neighbours against scikit-learn, and a planted outlier."""

import numpy as np
import pytest
from sklearn.neighbors import NearestNeighbors

from vitlab.evaluation.outliers import nearest, outliers


@pytest.mark.parametrize("num", [5, 200])
def test_neighbours_are_scikit_learns(num: int) -> None:
    x = np.random.default_rng(0).normal(size=(num, 16)).astype(np.float32)
    similarities, rows = nearest(x, 10)
    k = min(10, num - 1)
    distances, expected = NearestNeighbors(n_neighbors=k + 1, metric="cosine").fit(x).kneighbors(x)
    np.testing.assert_array_equal(rows, expected[:, 1:])
    np.testing.assert_allclose(1 - similarities, distances[:, 1:], atol=1e-5)


def test_an_image_is_not_its_own_neighbour_among_equal_ones() -> None:
    x = np.repeat(np.eye(2, 4, dtype=np.float32), [6, 6], axis=0)
    similarities, rows = nearest(x, 3)
    assert similarities.shape == rows.shape == (12, 3)
    assert not (rows == np.arange(12)[:, None]).any()
    np.testing.assert_allclose(similarities, 1.0)


def test_what_is_far_from_all_is_found_farthest_first() -> None:
    rng = np.random.default_rng(1)
    x = (np.eye(8)[rng.integers(0, 3, 300)] + 0.05 * rng.normal(size=(300, 8))).astype(np.float32)
    x[17] = np.eye(8)[6] + 0.3 * np.eye(8)[0]
    x[40] = np.eye(8)[7]
    distances = 1 - nearest(x, 10)[0].mean(axis=1)
    found = outliers(distances).tolist()
    assert set(found[:2]) == {17, 40}
    assert len(found) == 3  # a hundredth
    assert distances[found].tolist() == sorted(distances[found].tolist(), reverse=True)
    assert outliers(np.array([0.1, 0.3, 0.2])).tolist() == [1]

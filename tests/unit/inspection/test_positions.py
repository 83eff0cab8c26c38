from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics.pairwise import cosine_similarity

from vitlab.core.errors import Error
from vitlab.inspection.positions import along_lines, nearness, neighbourhood, position_similarity


def test_as_scikit_learn_has_it() -> None:
    positions = np.random.default_rng(0).standard_normal((6, 5))
    ours = position_similarity(positions, (2, 3))
    assert ours.shape == (2, 3, 2, 3)
    np.testing.assert_allclose(ours.reshape(6, 6), cosine_similarity(positions), rtol=1e-12, atol=1e-12)
    assert ours[1, 2, 0, 1] == pytest.approx(cosine_similarity(positions)[5, 1])


def test_a_place_without_a_vector_is_like_no_other() -> None:
    similarity = position_similarity(torch.tensor([[0.0, 0.0], [1.0, 2.0]]), (1, 2))
    torch.testing.assert_close(similarity.reshape(2, 2), torch.tensor([[0.0, 0.0], [0.0, 1.0]]))


def test_rows_and_columns_by_hand() -> None:
    """Places of one row are the same, of two rows opposite."""
    positions = torch.tensor([[1.0], [1], [1], [-1], [-1], [-1]])
    means = neighbourhood(position_similarity(positions, (2, 3)))
    # next to each other: 4 pairs across, alike; 3 pairs down, opposite
    assert means == {"next_to": pytest.approx(1 / 7), "same_row": 1, "same_column": -1, "elsewhere": -1}
    assert neighbourhood(torch.ones(1, 1, 1, 1)) == dict.fromkeys(means)


def test_lines_are_compared_with_places_as_far_away() -> None:
    rows, columns = 5, 6
    places = np.mgrid[:rows, :columns].reshape(2, -1).T
    down, across = np.abs(places[:, None] - places[None]).transpose(2, 0, 1)
    apart = np.hypot(down, across)

    def lines(values: np.ndarray[Any, Any]) -> tuple[float | None, float | None]:
        return along_lines(torch.from_numpy(values).reshape(rows, columns, rows, columns))

    assert lines(5 - apart) == pytest.approx((0, 0), abs=0.02)  # straight lines between the distances that there are
    assert lines(5 - apart + 0.3 * (down == 0)) == pytest.approx((0.3, 0), abs=0.02)
    assert lines(5 - apart - 0.2 * (across == 0)) == pytest.approx((0, -0.2), abs=0.02)
    assert along_lines(torch.ones(1, 4, 1, 4)) == (None, None)  # one row: nothing is elsewhere
    assert along_lines(torch.ones(2, 2, 2, 2)) == (None, None)  # places of a line are nearer than any other


def test_positions_of_another_grid_are_refused() -> None:
    with pytest.raises(Error, match="3 x 3 grid: it has 9 places"):
        position_similarity(torch.zeros(8, 4), (3, 3))


def test_nearness_is_the_correlation_of_alike_and_near() -> None:
    rows, columns = 3, 4
    places = np.array([(row, column) for row in range(rows) for column in range(columns)], float)
    apart = np.linalg.norm(places[:, None] - places[None], axis=-1)
    line = torch.from_numpy(1 - apart / 10).reshape(rows, columns, rows, columns)
    assert nearness(line) == pytest.approx(1)
    assert nearness(-line) == pytest.approx(-1)
    noise = np.random.default_rng(0).standard_normal(apart.shape)
    noise += noise.T
    above = np.triu_indices(len(apart), 1)
    expected = np.corrcoef(noise[above], -apart[above])[0, 1]
    assert nearness(torch.from_numpy(noise).reshape(rows, columns, rows, columns)) == pytest.approx(expected)
    assert nearness(torch.ones(2, 2, 2, 2)) is None
    assert nearness(torch.ones(1, 1, 1, 1)) is None

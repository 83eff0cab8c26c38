"""Kinds of patches: k-means against scikit-learn's, and what is said of maps that were made by hand."""

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans
from torch import Tensor

from vitlab.inspection.captions import kinds_caption, last_layer_caption
from vitlab.inspection.kinds import Kinds, k_means, kinds_of, starts


def blobs(num: int = 300, width: int = 5, seed: int = 0) -> Tensor:
    """Clouds that overlap."""
    generator = torch.Generator().manual_seed(seed)
    middles = torch.randn(4, width, generator=generator, dtype=torch.float64) * 2
    around = torch.randn(num, width, generator=generator, dtype=torch.float64)
    return middles[torch.arange(num) % 4] + around


def test_rounds_are_lloyds() -> None:
    """From the same start scikit-learn comes to the same centres, rows and sum of squares."""
    rows = blobs()
    first = starts(rows, 4, seed=1)
    found = k_means(rows, first)
    how: dict[str, Any] = {"init": first.numpy(), "n_init": 1, "algorithm": "lloyd", "tol": 0}
    theirs: Any = KMeans(4, **how).fit(rows.numpy())
    assert found.labels.tolist() == theirs.labels_.tolist()
    np.testing.assert_allclose(found.centers.numpy(), theirs.cluster_centers_, rtol=1e-9)
    assert found.inertia == pytest.approx(theirs.inertia_, rel=1e-9)


def test_starts_are_far_apart_and_drawn_anew_for_another_seed() -> None:
    rows = torch.tensor([[0.0], [0.01], [0.02], [100.0], [200.0]], dtype=torch.float64)
    for seed in range(20):
        chosen = starts(rows, 3, seed)[:, 0]
        assert sorted((chosen > 50).tolist()) == [False, True, True]
    assert len({tuple(starts(blobs(), 3, seed).flatten().tolist()) for seed in range(5)}) == 5


def test_of_several_starts_the_best_counts() -> None:
    rows = blobs(400, 8, seed=3)
    picture = rows.view(20, 20, 8)
    found = kinds_of([picture], 4)
    unit = torch.nn.functional.normalize(rows, dim=1).numpy()
    how: dict[str, Any] = {"n_init": 10, "random_state": 0}
    theirs: Any = KMeans(4, **how).fit(unit)
    spread = np.square(unit - unit.mean(axis=0)).sum()
    assert found is not None
    assert found.explained >= 1 - theirs.inertia_ / spread - 0.01


def painted(areas: list[list[str]], noise: float = 0.05) -> Tensor:
    """Patches of a few kinds, each a direction of its own whatever its length, with some noise."""
    generator = torch.Generator().manual_seed(len(areas))
    directions = {name: torch.eye(8)[place] for place, name in enumerate("abcdef")}
    rows = [[directions[name] * (1 + 4 * torch.rand((), generator=generator)) for name in row] for row in areas]
    values = torch.stack([torch.stack(row) for row in rows])
    return values + noise * torch.randn(values.shape, generator=generator)


def test_the_same_kind_has_the_same_number_in_every_picture() -> None:
    halves = [list("aaaaaabb")] * 6 + [list("ccccccbb")] * 2
    turned = [list("bbbbaaaa")] * 4 + [list("ccaaaaaa")] * 4
    found = kinds_of([painted(halves), painted(turned)], 3)
    assert found is not None
    names = np.array([halves, turned])
    pairs = set(zip(names.ravel().tolist(), found.maps.ravel().tolist(), strict=True))
    assert pairs == {("a", 0), ("b", 1), ("c", 2)}  # the most frequent first
    assert found.explained > 0.95


def test_nothing_to_tell_apart() -> None:
    assert kinds_of([torch.ones(3, 4, 5)]) is None
    assert kinds_of([torch.randn(1, 2, 5)]) is None


def test_shares_of_pairs_by_hand() -> None:
    maps = np.array([[[0, 0, 1], [0, 1, 1]], [[0, 0, 0], [2, 2, 2]]])
    kinds = Kinds(maps, 0.5)
    # down: 0-0, 0-1, 1-1 and three of 0-2; across: 0-0 0-1 0-1 1-1 and all four of the second
    assert kinds.beside == pytest.approx((2 + 0 + 2 + 4) / 14)
    assert kinds.anywhere == pytest.approx(((9 + 9) / 36 + (9 + 9) / 36) / 2)
    assert kinds.same_place == pytest.approx(2 / 6)
    assert kinds.other_place == pytest.approx(0.5 * 0.5)
    alone = Kinds(maps[:1], 0.5)
    assert (alone.same_place, alone.other_place) == (None, None)


def test_captions_follow_from_the_maps() -> None:
    rng = np.random.default_rng(0)
    rows, columns = np.indices((12, 12))
    areas = np.stack([columns // 4, (rows + columns) // 8, 2 - columns // 4])
    assert "Here they form areas: patches beside each other are of one kind in" in kinds_caption(Kinds(areas, 0.6))
    assert kinds_caption(Kinds(areas, 0.6)).endswith("3 of the kinds are in more than one picture.")
    assert "3 kinds, found by k-means over all 3 pictures together, explain 60%" in kinds_caption(Kinds(areas, 0.6))
    noise = rng.integers(0, 3, (3, 12, 12))
    assert kinds_caption(Kinds(noise, 0.2)).endswith("this model does not tell areas of a picture apart.")
    placed = np.stack([columns // 4] * 3)
    assert "kinds follow the place more than what is there" in kinds_caption(Kinds(placed, 0.6))
    assert "in 100% of cases, any two places in 33%" in kinds_caption(Kinds(placed, 0.6))
    few = kinds_caption(Kinds(placed[:, :4, :4], 0.6))
    assert few.endswith("With 4 x 4 patches to a picture, little can be said of what they show.")
    alone = kinds_caption(Kinds(areas[:1], 0.6))
    assert "found by k-means, explain" in alone
    assert "more than one picture" not in alone


def test_what_heads_choose_is_told() -> None:
    point = np.zeros((10, 10))
    point[4, 4:9] = 1
    other = np.zeros((10, 10))
    other[0, :] = 1
    text = last_layer_caption(np.stack([point, np.ones((10, 10)) + 0.001 * other, other]), 12)
    assert "Where each head of layer 12 looks" in text
    assert "Head 1 is the most selective: a tenth of the patches gets 100% of its attention" in text
    assert "would give them 10%; head 2 is the least, with 10%." in text
    assert "They look at different places" in text
    assert "All look at much the same places (correlation 1.00)" in last_layer_caption(np.stack([point, 2 * point]), 3)
    assert last_layer_caption(point[None], 3).endswith("would give them 10%.")

"""The Frechet distance against scipy's matrix root and Gaussians whose distance is known."""

import numpy as np
import pytest
import torch
from scipy.linalg import sqrtm

from vitlab.evaluation.contract import EvaluationError
from vitlab.evaluation.frechet import (
    Gaussian,
    diversity,
    feature_subject,
    features_of,
    frechet_distance,
    gaussian,
    moments,
    title,
)


def of(values: np.ndarray) -> Gaussian:
    return gaussian(moments(torch.from_numpy(values)))


def plain(mean: list[float], covariance: list[list[float]]) -> Gaussian:
    return Gaussian(10, torch.tensor(mean, dtype=torch.float64), torch.tensor(covariance, dtype=torch.float64))


@pytest.mark.parametrize(("num", "width"), [(200, 12), (40, 30)])
def test_it_is_what_the_formula_gives_with_scipys_root(num: int, width: int) -> None:
    rng = np.random.default_rng(0)
    first = rng.normal(size=(num, width)) @ rng.normal(size=(width, width)) + rng.normal(size=width)
    second = rng.normal(size=(num + 5, width)) @ rng.normal(size=(width, width))
    covariances = [np.cov(each, rowvar=False) for each in (first, second)]
    root = sqrtm(covariances[0] @ covariances[1])
    apart = np.square(first.mean(0) - second.mean(0)).sum()
    expected = apart + np.trace(covariances[0] + covariances[1] - 2 * np.real(root))
    assert frechet_distance(of(first), of(second)) == pytest.approx(expected, rel=1e-8)
    assert frechet_distance(of(second), of(first)) == pytest.approx(expected, rel=1e-8)


def test_gaussians_by_hand() -> None:
    """Along axes it is |m1 - m2|^2 + sum (s1 - s2)^2: 3^2 + 4^2 + (2 - 1)^2 + (5 - 3)^2 = 30."""
    first, second = plain([0, 0], [[4, 0], [0, 25]]), plain([3, 4], [[1, 0], [0, 9]])
    assert frechet_distance(first, second) == pytest.approx(30, rel=1e-12)
    # a Gaussian of variances 4 and 1, and the same turned by a right angle: 4 + 1 + 1 + 4 - 2 (2 + 2) = 2
    assert frechet_distance(plain([0, 0], [[4, 0], [0, 1]]), plain([0, 0], [[1, 0], [0, 4]])) == pytest.approx(2)


def test_the_same_set_is_at_no_distance_also_with_fewer_images_than_features() -> None:
    rng = np.random.default_rng(0)
    for num in (100, 5):
        values = 10 + rng.normal(size=(num, 40))
        assert 0 <= frechet_distance(of(values), of(values)) < 1e-8
    one = of(np.ones((7, 3)))  # all alike: two points
    assert frechet_distance(one, of(np.zeros((7, 3)))) == pytest.approx(3)


def test_moments_add_up_over_batches() -> None:
    rng = np.random.default_rng(0)
    values = (100 + rng.normal(size=(50, 6))).astype(np.float32)  # far from 0, where float32 would not do
    parts = sum(moments(torch.from_numpy(part)) for part in (values[:20], values[20:20], values[20:]))
    assert isinstance(parts, torch.Tensor)
    found = gaussian(parts)
    assert found.count == 50
    np.testing.assert_allclose(found.mean, values.astype(np.float64).mean(0), rtol=1e-12)
    np.testing.assert_allclose(found.covariance, np.cov(values.astype(np.float64), rowvar=False), atol=1e-9)


def test_diversity_is_a_part_of_the_real_ones() -> None:
    rng = np.random.default_rng(0)
    real = rng.normal(size=(500, 4))
    assert diversity(of(real / 2), of(real)) == pytest.approx(0.25)
    assert diversity(of(np.ones((9, 4))), of(real)) == pytest.approx(0, abs=1e-12)


def test_pixels_in_the_place_of_a_model() -> None:
    subject = feature_subject("pixels", torch.device("cpu"))
    pixels = torch.randint(256, (3, 3, 8, 8), dtype=torch.uint8)
    torch.testing.assert_close(features_of(subject, pixels), (pixels.float() / 127.5 - 1).flatten(1))
    assert features_of(subject, torch.zeros(2, 3, 32, 24, dtype=torch.uint8)).shape == (2, 192)


def test_it_is_never_named_without_whose_features_it_is_of() -> None:
    assert title("runs/digits") == "Frechet distance of runs/digits's features"
    assert title("pixels") == "Frechet distance of 8 x 8 pixels"
    with pytest.raises(EvaluationError, match=r"^The features of the Frechet distance: .*nowhere"):
        feature_subject("nowhere", torch.device("cpu"))

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA

from vitlab.core.errors import Error
from vitlab.inspection.filters import as_pixels, filter_components


def test_as_scikit_learn_has_it() -> None:
    filters = np.random.default_rng(0).standard_normal((40, 3, 4, 4)) * np.linspace(0.1, 3, 48).reshape(3, 4, 4) + 5
    theirs = PCA(n_components=28).fit(filters.reshape(40, -1))
    ours = filter_components(filters)
    assert ours.pictures.shape == (28, 3, 4, 4)
    np.testing.assert_allclose(ours.explained, theirs.explained_variance_ratio_, rtol=1e-5)
    cosines = (ours.pictures.reshape(28, -1).numpy() * theirs.components_).sum(axis=1)
    np.testing.assert_allclose(np.abs(cosines), 1, rtol=1e-5)


def test_a_direction_by_hand() -> None:
    """Filters that differ along one picture only: it explains everything, its largest value positive."""
    picture = torch.tensor([[[-3.0, 0.0], [0.0, 4.0]]])
    filters = torch.stack([picture * strength + 7 for strength in (-2.0, 0.0, 1.0, 5.0)])
    pictures, explained = filter_components(filters, count=1)
    torch.testing.assert_close(pictures[0], picture / 5)
    torch.testing.assert_close(explained, torch.tensor([1.0]))


def test_pixels_are_grey_at_zero_and_full_at_the_strongest() -> None:
    pixels = as_pixels(torch.tensor([[[[-2.0, 0.0, 1.0]]]]))
    torch.testing.assert_close(pixels[0, 0, :, 0], torch.tensor([0.0, 0.5, 0.75]))
    assert pixels.shape == (1, 1, 3, 3)
    assert as_pixels(torch.randn(2, 5, 4, 4)).shape == (2, 4, 4, 3)


def test_filters_that_are_all_alike() -> None:
    pictures, explained = filter_components(torch.ones(3, 1, 2, 2))
    assert pictures.isfinite().all()
    assert explained.tolist() == [0] * 3
    with pytest.raises(Error, match="at least two"):
        filter_components(torch.ones(1, 1, 2, 2))

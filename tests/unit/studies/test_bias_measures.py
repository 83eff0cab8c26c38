"""Measures of bias on networks whose answer is known: convolutions, a mean, rows of positions."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from vitlab.models.outside import wrap
from vitlab.models.positions import sincos2d
from vitlab.studies.bias_measures import (
    accuracies,
    attention_reach,
    equivariance,
    gradient_reach,
    position_structure,
    shifted,
    shuffled,
    uniform_attention,
)
from vitlab.studies.bias_networks import Attention, build

IMAGES = torch.randn(6, 3, 8, 8, generator=torch.Generator().manual_seed(0))


class Placed(nn.Module):
    """A map that is the same whatever the picture is, one of a kind at each place."""

    def forward(self, images: Tensor) -> Tensor:
        places = torch.randn(1, 5, 8, 8, generator=torch.Generator().manual_seed(1))
        return places.expand(len(images), -1, -1, -1) + 0 * images.sum()


def test_a_shift_is_numpys() -> None:
    right = shifted(IMAGES, 2).numpy()
    np.testing.assert_array_equal(right[..., 2:], IMAGES.numpy()[..., :-2])
    np.testing.assert_array_equal(right[..., 0], IMAGES.numpy()[..., 0])
    np.testing.assert_array_equal(shifted(IMAGES, 0, down=-1).numpy()[..., :-1, :], IMAGES.numpy()[..., 1:, :])


def test_shuffled_patches_are_the_same_patches() -> None:
    def patches(images: Tensor) -> list[list[float]]:
        cut = images[0].unfold(1, 4, 4).unfold(2, 4, 4).permute(1, 2, 0, 3, 4).reshape(4, -1)
        return sorted(cut.tolist())

    moved = shuffled(IMAGES, 4)
    assert patches(moved) == patches(IMAGES)
    assert not torch.equal(moved, IMAGES)


def test_a_convolution_is_equivariant_and_places_are_not() -> None:
    torch.manual_seed(0)
    convolution = wrap(nn.Conv2d(3, 5, 3, padding=1), num_classes=10, image_size=(8, 8)).eval()
    # the column beside the border sees what came in: two of six columns of the shifted picture differ from the map
    assert equivariance(wrap(nn.Conv2d(3, 5, 1), num_classes=10, image_size=(8, 8)), IMAGES, 2) == pytest.approx(1)
    found = equivariance(convolution, IMAGES, 2)
    assert found is not None
    assert 0.7 < found < 1
    places = equivariance(wrap(Placed(), num_classes=10, image_size=(8, 8)), IMAGES, 2)
    assert places is not None
    assert abs(places) < 0.3
    assert equivariance(wrap(build("mlp", "8"), num_classes=10, image_size=(8, 8)).eval(), IMAGES, 2) is None


def test_the_reach_of_a_gradient_is_that_of_the_kernel() -> None:
    """A kernel of ones, 3 x 3: one place at 0, four at 1 and four at the diagonal."""
    network = nn.Conv2d(3, 1, 3, padding=1, bias=False)
    nn.init.ones_(network.weight)
    found = gradient_reach(wrap(network, num_classes=10, image_size=(8, 8)), IMAGES)
    assert found == pytest.approx((4 + 4 * math.sqrt(2)) / 9)


def test_fresh_attention_looks_nearly_everywhere() -> None:
    torch.manual_seed(0)
    vit = Attention(2, 8, positions="learned").vit
    found = attention_reach(vit, IMAGES)
    assert len(found) == 4
    assert all(abs(each / uniform_attention(vit) - 1) < 0.25 for each in found)


def test_structures_of_positions() -> None:
    rows = torch.randn(4, 6, generator=torch.Generator().manual_seed(0)).repeat_interleave(4, dim=0)
    found = position_structure(rows, (4, 4))
    assert found["row-like"] == pytest.approx(1)
    assert found["column-like"] == pytest.approx(0, abs=1e-12)
    assert position_structure(sincos2d((4, 4), 64), (4, 4))["sinusoidal"] == pytest.approx(1)
    noise = [torch.randn(16, 64, generator=torch.Generator().manual_seed(seed)) for seed in range(200)]
    by_chance = np.mean([position_structure(each, (4, 4))["row-like"] for each in noise])
    assert by_chance == pytest.approx(3 / 15, abs=0.01)


def test_accuracies_of_one_that_sees_only_ink() -> None:
    """The mean of a picture does not change when it is turned or its patches are moved."""

    class Ink(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            mean = images.mean(dim=(1, 2, 3))
            return torch.stack([mean, -mean], dim=1)

    model = wrap(Ink(), num_classes=2, image_size=(8, 8)).eval()
    labels = (IMAGES.mean(dim=(1, 2, 3)) < 0).long()
    found = accuracies(model, IMAGES, labels)
    assert found["as they are"] == found["turned by 90°"] == found["patches shuffled"] == 1

"""Random erasing: where, how often, with what, and alike for one image and for many."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from vitlab.core.random import key
from vitlab.data.augmentation import Augmentation, erase, make_tables
from vitlab.data.augmentation.erasing import erase_batch

KEY = key(3, "augment")


@given(
    first=st.integers(0, 2**40),
    height=st.integers(1, 20),
    width=st.integers(1, 20),
    mode=st.sampled_from(["pixel", "random", "const"]),
)
def test_images_one_by_one_and_a_batch_are_the_same(first: int, height: int, width: int, mode: str):
    aug = Augmentation(erase=0.7, erase_mode=mode)  # pyright: ignore[reportArgumentType]
    images, places = torch.randn(9, 3, height, width), torch.arange(first, first + 9)
    before = images.clone()
    one_by_one = erase(aug, images, places, KEY)
    assert torch.equal(images, before)
    assert torch.equal(
        one_by_one, erase_batch(aug, make_tables(aug, torch.device("cpu")), images, places, torch.tensor(KEY))
    )
    assert torch.equal(one_by_one[2:5], erase(aug, images[2:5], places[2:5], KEY))


def test_rectangles_have_the_area_and_the_aspect_asked_for():
    aug = Augmentation(erase=0.25, erase_mode="const")
    count, size = 4000, 60
    erased = (
        erase_batch(
            aug, make_tables(aug, torch.device("cpu")), torch.ones(count, 3, size, size), torch.arange(count), KEY
        )[:, 0]
        == 0
    )
    some = erased.flatten(1).any(dim=1)
    assert abs(float(some.float().mean()) - 0.25) < 0.03
    areas, aspects = [], []
    for mask in erased[some].numpy():
        rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
        height, width = np.ptp(rows) + 1, np.ptp(columns) + 1
        assert mask.sum() == height * width  # a full rectangle
        areas.append(height * width / size**2)
        aspects.append(np.log(height / width))
    assert 0.015 < min(areas) < 0.03
    assert 0.3 < max(areas) < 0.345
    assert abs(np.mean(areas) - (0.02 + 1 / 3) / 2) < 0.02
    assert abs(np.mean(aspects)) < 0.12
    assert 1.0 < max(aspects) < np.log(1 / 0.3) + 0.15


def test_noise_is_normal_and_every_pixel_has_its_own():
    aug = Augmentation(erase=1.0, erase_mode="pixel")
    found = erase(aug, torch.full((40, 3, 64, 64), 9.0), torch.arange(40), KEY)
    noise = found[found != 9.0].numpy()
    assert len(noise) > 20000
    assert stats.kstest(noise[:5000], "norm").pvalue > 0.01
    assert len(np.unique(noise)) > 0.9 * len(noise)


def test_one_colour_fills_the_rectangle():
    found = erase(Augmentation(erase=1.0, erase_mode="random"), torch.full((20, 3, 32, 32), 9.0), torch.arange(20), KEY)
    colors = set()
    for image in found:
        for channel in image:
            values = channel[channel != 9.0].unique()
            assert len(values) == 1
            colors.add(float(values))
    assert len(colors) > 50


@pytest.mark.parametrize("probability", [0.0, 1.0])
def test_never_and_always(probability: float):
    images = torch.full((50, 3, 32, 32), 9.0)
    found = erase(Augmentation(erase=probability), images, torch.arange(50), KEY)
    assert ((found != images).flatten(1).any(dim=1) == bool(probability)).all()

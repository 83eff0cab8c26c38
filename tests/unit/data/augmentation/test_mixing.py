"""Mixup and cutmix: of neighbours, in the right proportion, and alike however the batch is divided."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from vitlab.core.errors import ConfigError
from vitlab.core.random import key
from vitlab.data.augmentation import Augmentation, mix

KEY = key(11, "augment")


def plain(count: int, height: int = 10, width: int = 14) -> tuple[Tensor, Tensor]:
    """Images that are 0 at even places and 1 at odd ones, with the targets (1, 0) and (0, 1)."""
    odd = torch.arange(count) % 2
    return odd.float().view(-1, 1, 1, 1).expand(-1, 3, height, width), torch.eye(2)[odd]


@given(
    start=st.integers(0, 2**40),
    part=st.integers(1, 6),
    world=st.integers(1, 4),
    mixup=st.sampled_from([0.0, 0.2, 1.0]),
    cutmix=st.sampled_from([0.0, 1.0]),
    seed=st.integers(0, 99),
)
def test_mixing_does_not_depend_on_the_ranks(start: int, part: int, world: int, mixup: float, cutmix: float, seed: int):
    aug = Augmentation(mixup=mixup, cutmix=cutmix, mix_prob=0.9)
    count = 2 * part * world
    generator = torch.Generator().manual_seed(seed)
    images, targets = torch.randn(count, 3, 6, 7, generator=generator), torch.rand(count, 5, generator=generator)
    places = torch.arange(2 * start, 2 * start + count)
    whole = mix(aug, images, targets, places, KEY)
    parts = [
        mix(aug, images[a : a + 2 * part], targets[a : a + 2 * part], places[a : a + 2 * part], torch.tensor(KEY))
        for a in range(0, count, 2 * part)
    ]
    assert torch.equal(torch.cat([images for images, _ in parts]), whole[0])
    assert torch.equal(torch.cat([targets for _, targets in parts]), whole[1])
    # The pair exchanges: what one gives, the other has.
    assert torch.allclose(whole[0].view(-1, 2, 3, 6, 7).sum(1), images.view(-1, 2, 3, 6, 7).sum(1), atol=1e-5)
    assert torch.allclose(whole[1].view(-1, 2, 5).sum(1), targets.view(-1, 2, 5).sum(1), atol=1e-5)


@pytest.mark.parametrize("alpha", [0.2, 0.8, 1.0])
def test_mixup_blends_by_a_beta_and_the_targets_say_how(alpha: float):
    images, targets = plain(6000)
    found, labels = mix(Augmentation(mixup=alpha), images, targets, torch.arange(6000), KEY)
    share = found[:, 0, 0, 0]  # of the odd sample
    assert torch.allclose(found, share.view(-1, 1, 1, 1).expand_as(found))
    assert torch.allclose(labels[:, 1], share, atol=1e-6)
    assert torch.allclose(labels.sum(dim=1), torch.ones(6000), atol=1e-6)
    lam = 1 - share[::2].numpy()
    assert np.allclose(share[1::2].numpy(), lam, atol=1e-6)  # the same for both
    assert stats.kstest(lam, stats.beta(alpha, alpha).cdf).pvalue > 0.01


def test_cutmix_pastes_a_box_and_the_targets_are_its_area():
    images, targets = plain(4000, 20, 30)
    found, labels = mix(Augmentation(cutmix=1.0), images, targets, torch.arange(4000), KEY)
    assert set(found.unique().tolist()) == {0.0, 1.0}
    assert torch.equal(found[::2], 1 - found[1::2])  # the same box for both
    pasted = found[::2, 0].numpy() > 0
    assert np.allclose(labels[::2, 1].numpy(), pasted.mean(axis=(1, 2)), atol=1e-6)
    for mask in pasted[:200]:
        if mask.any():
            height, width = np.ptp(np.flatnonzero(mask.any(axis=1))) + 1, np.ptp(np.flatnonzero(mask.any(axis=0))) + 1
            assert mask.sum() == height * width
    # Every pixel is pasted over, the middle more often: boxes are cut at the edges.
    often = pasted.mean(axis=0)
    assert 0.05 < often.min() < often[8:12, 12:18].mean() < 0.6
    # Against a simulation of the method's own formula.
    rng = np.random.default_rng(0)
    side, y, x = np.sqrt(1 - rng.beta(1, 1, 20000)), rng.integers(20, size=20000), rng.integers(30, size=20000)
    tall, wide = (20 * side).astype(int) // 2, (30 * side).astype(int) // 2
    areas = (np.minimum(y + tall, 20) - np.maximum(y - tall, 0)) * (np.minimum(x + wide, 30) - np.maximum(x - wide, 0))
    assert stats.ks_2samp((labels[::2, 1] * 600).round().numpy(), areas).pvalue > 0.01  # pyright: ignore[reportAttributeAccessIssue]


def test_the_two_alternate_and_some_stay_as_they_are():
    images, targets = plain(6000)
    aug = Augmentation(mixup=0.8, cutmix=1.0, mix_prob=0.6, mix_switch=0.25)
    found, labels = mix(aug, images, targets, torch.arange(6000), KEY)
    blended = ((found > 0) & (found < 1)).flatten(1).any(dim=1)
    assert abs(float(blended.float().mean()) - 0.6 * 0.75) < 0.04
    same = (found == images).flatten(1).all(dim=1)
    assert abs(float(same.float().mean()) - 0.4) < 0.06  # and a few empty boxes
    assert torch.equal(labels[same], targets[same])
    assert torch.equal(same[::2], same[1::2])


def test_bfloat16_images_stay_bfloat16():
    images, targets = plain(8)
    found, labels = mix(Augmentation(mixup=1.0), images.bfloat16(), targets, torch.arange(8), KEY)
    assert found.dtype == torch.bfloat16
    assert labels.dtype == torch.float32


def test_off_is_off_and_odd_batches_are_refused():
    images, targets = plain(3)
    assert mix(Augmentation(), images, targets, torch.arange(3), KEY)[0] is images
    with pytest.raises(ConfigError, match="3 is odd"):
        mix(Augmentation(mixup=1.0), images, targets, torch.arange(3), KEY)
    with pytest.raises(AssertionError, match="follow each other"):
        mix(Augmentation(mixup=1.0), images[:2], targets[:2], torch.tensor([1, 2]), KEY)


def test_mixing_ends_where_it_is_to() -> None:
    images, targets = plain(40)
    places = torch.arange(100, 140)
    whole = mix(Augmentation(mixup=1.0), images, targets, places, KEY)
    found = mix(Augmentation(mixup=1.0), images, targets, places, KEY, until=120)
    for mixed, ended, own in zip(whole, found, (images, targets), strict=True):
        assert torch.equal(ended[:20], mixed[:20])
        assert torch.equal(ended[20:], own[20:])
        assert not torch.equal(mixed[20:], own[20:])

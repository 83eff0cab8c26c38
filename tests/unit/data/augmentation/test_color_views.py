"""What views of self-supervised learning add: hue, greyscale, blur and solarisation, each as often as it should."""

import numpy as np
import pytest
import torch

from vitlab.core.random import key
from vitlab.data.augmentation import Augmentation, augment, make_tables
from vitlab.data.augmentation.color import turn_hue
from vitlab.data.augmentation.policies import Op

PLAIN = Augmentation(crop="resize", flip=0.0)
RUN = key(3, "augment")


def pictures(num: int = 64, side: int = 12) -> torch.Tensor:
    return torch.randint(0, 256, (num, 3, side, side), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def varied(images: torch.Tensor, **fields: float) -> torch.Tensor:
    aug = Augmentation(crop="resize", flip=0.0, **fields)  # pyright: ignore[reportArgumentType]
    return augment(aug, images, torch.arange(len(images)), RUN)


def changed_share(found: torch.Tensor, images: torch.Tensor) -> float:
    return (found != images).flatten(1).any(dim=1).float().mean().item()


def test_hue_turns_about_grey() -> None:
    """By a third the channels change places; grey stays grey; the mean of the channels stays."""
    images, tables = pictures(3), make_tables(PLAIN, torch.device("cpu"))
    hue = torch.full((3,), Op.HUE.value)
    third = turn_hue(images, hue, torch.tensor([1 / 3, -1 / 3, 0.0]), tables)
    assert torch.equal(third[0], images[0].roll(1, dims=0))
    assert torch.equal(third[1], images[1].roll(-1, dims=0))
    assert torch.equal(third[2], images[2])
    soft = (images // 4 + 96).to(torch.uint8)  # nothing is clipped
    turned = turn_hue(soft, hue, torch.tensor([0.1, 0.25, -0.4]), tables)
    assert (turned.float().mean(dim=1) - soft.float().mean(dim=1)).abs().max() <= 0.5 + 1e-3
    assert (turned.int() - soft.int()).abs().max() > 10
    grey = soft[:, :1].expand(-1, 3, -1, -1)
    assert torch.equal(turn_hue(grey, hue, torch.tensor([0.1, 0.25, -0.4]), tables), grey)
    other = torch.full((3,), Op.COLOR.value)
    assert torch.equal(turn_hue(images, other, torch.tensor([0.1, 0.25, -0.4]), tables), images)


def test_greyscale_is_pillows() -> None:
    images = pictures(8)
    found = varied(images, gray=1.0)
    levels = images.permute(0, 2, 3, 1).numpy()
    from PIL import Image

    expected = [np.asarray(Image.fromarray(picture).convert("L")) for picture in levels]
    assert (found == torch.from_numpy(np.stack(expected))[:, None]).all()


def test_solarising_inverts_the_upper_half() -> None:
    images = pictures(8)
    assert torch.equal(varied(images, solarize=1.0), torch.where(images < 128, images, 255 - images))


def test_each_happens_as_often_as_it_should() -> None:
    """Within four deviations; the jitter's probability is the hue's too, and they happen together."""
    images = pictures(2000, 4)
    for name in ("gray", "blur", "solarize"):
        assert changed_share(varied(images, **{name: 0.3}), images) == pytest.approx(0.3, abs=0.041)
    jittered = (varied(images, jitter=0.4, jitter_prob=0.7) != images).flatten(1).any(dim=1)
    turned = (varied(images, hue=0.2, jitter_prob=0.7) != images).flatten(1).any(dim=1)
    assert jittered.float().mean().item() == pytest.approx(0.7, abs=0.041)
    assert (jittered != turned).float().mean() < 0.05  # a change may be too small to be seen
    grey = (varied(images, gray=0.5) != images).flatten(1).any(dim=1)
    blurred = (varied(images, blur=0.5) != images).flatten(1).any(dim=1)
    assert (grey & blurred).float().mean().item() == pytest.approx(0.25, abs=0.04)  # of one another they do not know


def test_one_image_and_a_batch_get_the_same_bytes() -> None:
    images, places = pictures(40), torch.arange(40)
    aug = Augmentation(jitter=0.4, hue=0.1, jitter_prob=0.8, gray=0.2, blur=0.5, solarize=0.2, crop="pad")
    batch = augment(aug, images, places, RUN)
    alone = [augment(aug, images[i : i + 1], places[i : i + 1], RUN) for i in range(40)]
    assert torch.equal(batch, torch.cat(alone))
    assert changed_share(batch, images) > 0.9


def test_a_jitter_that_is_always_there_is_what_it_was() -> None:
    images = pictures()
    assert torch.equal(varied(images, jitter=0.3, jitter_prob=1.0), varied(images, jitter=0.3))
    assert torch.equal(varied(images), images)

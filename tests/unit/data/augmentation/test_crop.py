"""The random resized crop: drawn alike for one picture and for many, and resized as Pillow resizes."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from vitlab.core.random import key
from vitlab.data.augmentation import Augmentation, crop, crop_and_resize, crop_box, crop_boxes

KEY = key(0, "augment")
sizes = st.integers(1, 600)
areas = st.sampled_from([(0.05, 1.0), (0.35, 1.0), (0.9, 1.0)])
aspects = st.sampled_from([(3 / 4, 4 / 3), (1.0, 1.0), (0.1, 10.0)])


@given(height=sizes, width=sizes, area=areas, aspect=aspects, first=st.integers(0, 2**45))
def test_one_box_and_many_boxes_are_the_same_and_lie_inside(
    height: int, width: int, area: tuple[float, float], aspect: tuple[float, float], first: int
):
    aug = Augmentation(crop_area=area, crop_aspect=aspect)
    places = torch.arange(first, first + 20)
    boxes = torch.stack(crop_boxes(aug, KEY, places, height, width), dim=1).tolist()
    assert boxes == [list(crop_box(aug, KEY, int(place), height, width)) for place in places]
    for top, left, box_height, box_width in boxes:
        assert 0 <= top <= top + box_height <= height
        assert 0 <= left <= left + box_width <= width
        assert box_height > 0
        assert box_width > 0


@given(height=sizes, width=sizes, part=st.sampled_from([0.8, 0.9375, 1.0, 0.01]), first=st.integers(0, 2**45))
def test_a_part_is_as_large_as_asked_and_anywhere(height: int, width: int, part: float, first: int):
    aug = Augmentation(crop="part", crop_part=part)
    places = torch.arange(first, first + 20)
    boxes = torch.stack(crop_boxes(aug, KEY, places, height, width), dim=1).tolist()
    assert boxes == [list(crop_box(aug, KEY, int(place), height, width)) for place in places]
    assert {(box[2], box[3]) for box in boxes} == {(max(round(part * height), 1), max(round(part * width), 1))}
    assert all(top + tall <= height and left + wide <= width for top, left, tall, wide in boxes)


def test_parts_begin_everywhere_alike():
    """BiT's crop of 128 from 160: 33 places a side, each as likely."""
    boxes = crop_boxes(Augmentation(crop="part", crop_part=0.8), KEY, torch.arange(6600), 160, 160)
    for begin in boxes[:2]:
        counts = torch.bincount(begin, minlength=33)
        assert len(counts) == 33
        assert (counts - 200).abs().max() < 5 * 200**0.5


@pytest.mark.parametrize(("height", "width"), [(375, 500), (224, 224), (100, 700)])
def test_boxes_are_distributed_as_torchvisions(height: int, width: int):
    from torchvision.transforms import RandomResizedCrop

    torch.manual_seed(0)
    picture = torch.empty(1, height, width)
    count = 1500
    theirs = np.array(
        [RandomResizedCrop.get_params(picture, [0.05, 1.0], [3 / 4, 4 / 3]) for _ in range(count)], dtype=float
    )
    ours = torch.stack(crop_boxes(Augmentation(), KEY, torch.arange(count), height, width), dim=1).numpy().astype(float)
    for a, b in zip(theirs.T, ours.T, strict=True):
        spread = math.hypot(a.std(), b.std()) / math.sqrt(count)
        assert abs(a.mean() - b.mean()) < 4 * spread + 1e-9
        assert abs(a.std() - b.std()) < 0.1 * a.std() + 1e-9


def test_where_nothing_fits_the_middle_is_taken():
    # All of 1000 x 10 with an aspect of at least 3/4 is 13.3 rows high.
    aug = Augmentation(crop_area=(0.9, 1.0))
    assert crop_box(aug, KEY, 5, 1000, 10) == (493, 0, 13, 10)
    assert crop_box(aug, KEY, 5, 10, 1000) == (0, 493, 10, 13)


def test_other_crops_take_the_whole_picture():
    for kind in ("pad", "resize"):
        assert crop_box(Augmentation(crop=kind), KEY, 3, 40, 50) == (0, 0, 40, 50)
    images = torch.randint(0, 256, (2, 3, 8, 8), dtype=torch.uint8)
    assert torch.equal(crop(Augmentation(crop="pad"), images, torch.arange(2), KEY, (8, 8)), images)
    assert crop(Augmentation(crop="resize"), images, torch.arange(2), KEY, (5, 6)).shape == (2, 3, 5, 6)


@given(seed=st.integers(0, 1000), height=st.integers(1, 40), width=st.integers(1, 40), size=st.integers(1, 40))
def test_resizing_a_box_is_pillows(seed: int, height: int, width: int, size: int):
    rng = np.random.default_rng(seed)
    pictures = rng.integers(0, 256, (3, height, width, 3), dtype=np.uint8)
    tops, lefts = rng.integers(0, height, 3), rng.integers(0, width, 3)
    heights, widths = height - tops, width - lefts
    boxes = tuple(torch.from_numpy(side) for side in (tops, lefts, heights, widths))
    images = torch.from_numpy(pictures).permute(0, 3, 1, 2)
    found = crop_and_resize(images, boxes, (size, size + 3))  # pyright: ignore[reportArgumentType]
    for i, picture in enumerate(pictures):
        part = Image.fromarray(picture[tops[i] : tops[i] + heights[i], lefts[i] : lefts[i] + widths[i]])
        expected = np.asarray(part.resize((size + 3, size), Image.Resampling.BILINEAR)).astype(int)
        difference = np.abs(found[i].permute(1, 2, 0).numpy() - expected)
        assert difference.max() <= 2
        assert difference.mean() < 0.35


def test_resizing_is_exact_where_it_can_be():
    flat = torch.full((2, 3, 50, 60), 255, dtype=torch.uint8)
    flat[1] = 77
    boxes = tuple(torch.tensor(side) for side in ([3, 0], [4, 1], [40, 50], [41, 7]))
    found = crop_and_resize(flat, boxes, (9, 33))  # pyright: ignore[reportArgumentType]
    assert torch.equal(found[0], torch.full_like(found[0], 255))
    assert torch.equal(found[1], torch.full_like(found[1], 77))
    images = torch.randint(0, 256, (1, 3, 20, 20), dtype=torch.uint8)
    box = tuple(torch.tensor([side]) for side in (2, 5, 8, 12))
    assert torch.equal(crop_and_resize(images, box, (8, 12)), images[:, :, 2:10, 5:17])  # pyright: ignore[reportArgumentType]


@given(first=st.integers(0, 10**6), split=st.integers(1, 11))
def test_cropped_bytes_do_not_depend_on_the_batch(first: int, split: int):
    generator = torch.Generator().manual_seed(first)
    images = torch.randint(0, 256, (12, 3, 32, 24), dtype=torch.uint8, generator=generator)
    places = torch.arange(first, first + 12)
    whole = crop(Augmentation(), images, places, KEY, (16, 20))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        parts = [
            crop(Augmentation(), images[a:b], places[a:b], torch.tensor(KEY), (16, 20))
            for a, b in ((0, split), (split, 12))
        ]
    assert torch.equal(torch.cat(parts), whole)

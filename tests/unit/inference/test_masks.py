"""Masks over the pictures that they were made from."""

import numpy as np

from vitlab.core.pictures import class_color, palette_image
from vitlab.core.preprocess import Preprocess
from vitlab.data.contract import IGNORED
from vitlab.inference.masks import over_picture

QUARTERS = np.array([[0, 1], [2, 3]], dtype=np.uint8)


def test_colours_are_those_of_pascal_voc() -> None:
    assert [class_color(k) for k in range(4)] == [(0, 0, 0), (128, 0, 0), (0, 128, 0), (128, 128, 0)]
    picture = palette_image(QUARTERS)
    assert np.array_equal(np.asarray(picture), QUARTERS)  # the stored values are the class numbers
    assert picture.convert("RGB").getpixel((1, 1)) == (128, 128, 0)


def test_a_squashed_picture_gets_its_whole_mask() -> None:
    found = over_picture(QUARTERS, Preprocess(size=(2, 2)), (4, 6))
    assert np.array_equal(found, np.repeat(np.repeat(QUARTERS, 2, axis=0), 3, axis=1))


def test_a_picture_that_shrinks_too() -> None:
    mask = np.repeat(np.repeat(QUARTERS, 4, axis=0), 4, axis=1)
    assert np.array_equal(over_picture(mask, Preprocess(size=(8, 8)), (2, 2)), QUARTERS)


def test_what_a_crop_leaves_out_is_ignored() -> None:
    found = over_picture(np.full((4, 4), 1, np.uint8), Preprocess(size=(4, 4), resize="shortest"), (40, 80))
    seen = np.flatnonzero(found[20] == 1)
    assert abs(seen.min() - 20) <= 2
    assert abs(seen.max() - 59) <= 2
    assert len(seen) == seen.max() - seen.min() + 1
    assert set(np.unique(found)) == {1, IGNORED}
    assert (found[:, 40] == 1).all()


def test_a_large_picture_has_more_rows_than_a_byte_counts() -> None:
    mask = np.repeat(np.arange(4, dtype=np.uint8), 2)[:, None].repeat(8, axis=1)
    found = over_picture(mask, Preprocess(size=(8, 8)), (1000, 20))
    assert np.array_equal(found, np.repeat(np.arange(4, dtype=np.uint8), 250)[:, None].repeat(20, axis=1))

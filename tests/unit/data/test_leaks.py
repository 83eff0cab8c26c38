"""The sentence on pictures that are in two parts."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitlab.data import leaks
from vitlab.data.copies import find_copies
from vitlab.data.leaks import leaks_in_words
from vitlab.data.open import open_data


def picture(seed: int) -> Image.Image:
    """Blobs that no other seed has."""
    coarse = np.random.default_rng(seed).integers(0, 256, (6, 6, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((64, 64), Image.Resampling.BICUBIC)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Two classes, in train/ and test/, of pictures that are all different."""
    for part, first in (("train", 0), ("test", 100)):
        for i in range(12):
            path = tmp_path / "photos" / part / "ab"[i % 2] / f"{i:02}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            picture(first + i).save(path)
    return tmp_path / "photos"


def test_where_there_are_none_nothing_is_said(photos: Path) -> None:
    assert leaks_in_words(open_data(photos, val_fraction=0), str(photos)) is None


def test_an_exact_and_a_near_copy_are_counted_by_part(photos: Path) -> None:
    Image.open(photos / "train" / "a" / "00.png").save(photos / "test" / "a" / "copy.png")
    Image.open(photos / "train" / "b" / "01.png").resize((48, 48)).save(photos / "test" / "b" / "near.jpg", quality=60)
    Image.open(photos / "train" / "b" / "03.png").save(photos / "train" / "b" / "twice.png")  # in one part: no leak
    said = leaks_in_words(open_data(photos, val_fraction=0), str(photos))
    assert said is not None
    assert said.startswith("2 images of test are copies of some in another part")
    assert "copy.png is " in said
    assert f"`vitlab data {photos}` lists them." in said


@pytest.mark.parametrize(("limit", "value"), [("MOST", 10), ("SECONDS", 0.0)])
def test_where_it_would_take_long_that_is_said(
    limit: str, value: float, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leaks, limit, value)
    said = leaks_in_words(open_data(photos, val_fraction=0), str(photos))
    assert said is not None
    assert "were not looked for" in said


def test_an_unlabelled_copy_of_a_training_picture_is_no_leak_and_one_of_a_test_picture_is(photos: Path) -> None:
    (photos / "unlabelled").mkdir()
    Image.open(photos / "train" / "a" / "00.png").save(photos / "unlabelled" / "0.png")
    dataset = open_data(photos, val_fraction=0)
    assert leaks_in_words(dataset, str(photos)) is None
    assert [pair.disagrees for pair in find_copies(dataset)] == [False]
    Image.open(photos / "test" / "a" / "00.png").save(photos / "unlabelled" / "1.png")
    said = leaks_in_words(open_data(photos, val_fraction=0), str(photos))
    assert said is not None
    assert said.startswith("1 image of unlabelled is a copy of one in another part")

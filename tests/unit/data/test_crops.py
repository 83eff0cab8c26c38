"""Cropped and mirrored copies of real photos are told from other photos."""

from collections.abc import Callable

import numpy as np
import pytest
from PIL import Image, ImageOps
from sklearn.datasets import load_sample_images

from vitlab.data.contract import DataSet, Split
from vitlab.data.copies import Place
from vitlab.data.crops import find_crops, parts_like, small
from vitlab.data.sources.pixels import Pixels

CHANGES: dict[str, tuple[Callable[[Image.Image], Image.Image], tuple[float, ...]]] = {
    "10% off each side": (lambda photo: photo.crop((20, 20, 180, 180)), (0.1, 0.1, 0.9, 0.9)),
    "a quarter off one side": (lambda photo: photo.crop((50, 0, 200, 200)), (0.25, 0.0, 1.0, 1.0)),
    "a corner, made small": (lambda photo: photo.crop((0, 40, 150, 200)).resize((75, 80)), (0.0, 0.2, 0.75, 1.0)),
    "mirrored": (ImageOps.mirror, (0.0, 0.0, 1.0, 1.0)),
}


@pytest.fixture(scope="module")
def photos() -> list[Image.Image]:
    """Twelve pieces of two photos: none is another's copy."""
    pieces: list[Image.Image] = []
    for pixels in load_sample_images().images:
        photo = Image.fromarray(pixels)
        pieces += [photo.crop((x, y, x + 200, y + 200)) for x in (0, 210, 420) for y in (0, 210)]
    return pieces


@pytest.mark.parametrize("name", CHANGES)
def test_the_part_is_found(name: str, photos: list[Image.Image]) -> None:
    change, box = CHANGES[name]
    for photo in photos[:4]:
        whole, part = small(np.asarray(photo)), small(np.asarray(change(photo)))
        assert whole is not None
        assert part is not None
        [match] = parts_like(whole, [part])
        assert match is not None
        assert match.mirrored == (name == "mirrored")
        assert match.box == pytest.approx(box, abs=0.03)


def test_other_photos_are_no_copies(photos: list[Image.Image]) -> None:
    kept = [small(np.asarray(photo)) for photo in photos]
    there = [each for each in kept if each is not None]
    assert len(there) == len(photos)
    for place, each in enumerate(there):
        others = [other for number, other in enumerate(there) if number != place]
        assert parts_like(each, others) == [None] * len(others)


def test_pairs_are_of_candidates_with_what_has_structure(photos: list[Image.Image]) -> None:
    pieces = [photos[0].crop((15, 15, 200, 200)).resize((200, 200)), photos[1], photos[0], ImageOps.mirror(photos[1])]
    pieces += [Image.new("RGB", (200, 200), "gray")] * 2
    split = Split(Pixels(np.stack([np.asarray(piece) for piece in pieces]), "set.npz"))
    dataset = DataSet("set", (), {"train": split}, "")
    places = [Place("train", index, f"image {index}") for index in range(len(split))]
    all_pairs = np.array([(i, j) for i in range(len(split)) for j in range(i)])
    found = find_crops(dataset, places, all_pairs)
    assert [(pair.kind, pair.first.index, pair.second.index) for pair in found] == [
        ("cropped", 0, 2),
        ("mirrored", 1, 3),
    ]
    assert all(pair.similarity > 0.95 for pair in found)
    assert find_crops(dataset, places, np.array([(0, 1), (2, 3)])) == []
    assert find_crops(dataset, places, np.empty((0, 2), np.int64)) == []

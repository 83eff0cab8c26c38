"""ObjectNet: its mapping to ImageNet, and its border."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitlab.core.errors import DataError
from vitlab.core.imagenet import wordnet_id, wordnet_ids
from vitlab.data.open import open_data

FOLDERS = {"alarm_clock": "Alarm clock", "banana": "Banana", "squeegee": "Squeegee"}
MAPPING = {"Alarm clock": "analog clock; digital clock", "Banana": "banana"}


def write(root: Path, mapping: dict[str, object] | None = None) -> Path:
    (root / "mappings").mkdir(parents=True)
    (root / "mappings" / "folder_to_objectnet_label.json").write_text(json.dumps(FOLDERS))
    (root / "mappings" / "objectnet_to_imagenet_1k.json").write_text(json.dumps(mapping or MAPPING))
    for number, folder in enumerate(FOLDERS):
        for i in range(2):
            pixels = np.full((12, 14, 3), 50 * number + i, np.uint8)
            pixels[[0, -1]] = pixels[:, [0, -1]] = (255, 0, 0)  # a line of red around
            (root / "images" / folder).mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(root / "images" / folder / f"{i}.png")
    return root


def test_the_classes_that_imagenet_has_without_the_border(tmp_path: Path) -> None:
    dataset = open_data(write(tmp_path / "objectnet-1.0"))
    assert dataset.name == "objectnet"
    assert dataset.classes == ("Alarm clock (n02708093 n03196217)", "Banana (n07753592)")
    assert wordnet_ids(dataset.classes[0]) == ("n02708093", "n03196217")
    assert wordnet_id(dataset.classes[0]) is None
    assert wordnet_ids("n07753592") == wordnet_ids("banana (n07753592)") == ("n07753592",)
    assert wordnet_ids("a crane (machine)") == ()
    test = dataset.splits["test"]
    assert test.labels.tolist() == [0, 0, 1, 1]
    for i, level in enumerate([0, 1, 50, 51]):
        np.testing.assert_array_equal(test.images.read(i), np.full((8, 10, 3), level, np.uint8))
    assert any("1 of 3 classes are none of ImageNet's" in note for note in dataset.notes)


def test_a_mapping_that_is_damaged_is_said(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="names 'clock', which is no class of ImageNet|names clock, which is no class"):
        open_data(write(tmp_path / "a", {"Banana": "clock"}))
    with pytest.raises(DataError, match="Banana is no text"):
        open_data(write(tmp_path / "b", {"Banana": 3}))
    with pytest.raises(DataError, match="has no folder of a class that"):
        open_data(write(tmp_path / "c", {"Bed": "studio couch, day bed"}))

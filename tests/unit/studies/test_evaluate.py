"""The data of an evaluation, as training would divide it."""

from pathlib import Path

import numpy as np
from PIL import Image

from vitlab.studies.evaluate import HOST


def test_a_folder_without_parts_is_divided_by_class(tmp_path: Path) -> None:
    """50 images of one class and 3 of another: both are in every part, and what is measured chose nothing."""
    for name, num in (("many", 50), ("few", 3)):
        (tmp_path / name).mkdir()
        for i in range(num):
            Image.new("RGB", (8, 8), (i, 0, num)).save(tmp_path / name / f"{i:02}.png")
    dataset = HOST.open(str(tmp_path), None)
    labels = {part: split.labels for part, split in dataset.splits.items()}
    found = {part: np.bincount(numbers).tolist() for part, numbers in labels.items()}
    assert found == {"train": [1, 40], "val": [1, 5], "test": [1, 5]}

"""A set whose results are reported on val is divided alike by path and by name."""

from pathlib import Path

import pytest
from PIL import Image

from vitlab.training.plan import open_parts
from vitlab.training.recipe import DataChoice, Recipe


def test_tiny_imagenet_by_path_and_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "tiny-imagenet-200"
    for split, num in (("train", 20), ("val", 3)):
        for wnid in ("n00000001", "n00000002"):
            (root / split / wnid).mkdir(parents=True)
            for i in range(num):
                Image.new("RGB", (4, 4)).save(root / split / wnid / f"{wnid}_{i}.JPEG")
    monkeypatch.setenv("VITLAB_DATA", str(tmp_path))
    by_name, by_path = (open_parts(Recipe(data=DataChoice(source=data))) for data in ("tiny-imagenet", str(root)))
    assert len(by_path.splits["train"]) + len(by_path.splits["val"]) == 40
    assert len(by_path.splits["test"]) == 6
    assert by_path.fingerprint == by_name.fingerprint

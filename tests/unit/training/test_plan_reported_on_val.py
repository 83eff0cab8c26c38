"""How sets are divided for a run: those that are reported on val, and those without parts."""

from pathlib import Path

import pytest
from PIL import Image

from vitlab.core.config import to_dict
from vitlab.data.open import open_data
from vitlab.training.plan import open_parts
from vitlab.training.recipe import DataChoice, Recipe, read_recipe


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


def test_a_train_part_alone_is_held_out_from_once(tmp_path: Path) -> None:
    """Of two classes of twenty, two each in val and in test; the val part of earlier runs is what it was."""
    root = tmp_path / "tiny-imagenet-200"
    for wnid in ("n00000001", "n00000002"):
        (root / "train" / wnid).mkdir(parents=True)
        for i in range(20):
            Image.new("RGB", (4, 4)).save(root / "train" / wnid / f"{wnid}_{i}.JPEG")
    recipe = Recipe(data=DataChoice(source=str(root)))
    parts = open_parts(recipe).splits
    assert {part: split.counts(2).tolist() for part, split in parts.items()} == {
        "train": [16, 16], "val": [2, 2], "test": [2, 2],
    }  # fmt: skip


def test_a_run_is_divided_by_the_rule_that_it_recorded(tmp_path: Path) -> None:
    root = tmp_path / "photos"
    for name, num in (("cat", 30), ("dog", 10)):
        (root / name).mkdir(parents=True)
        for i in range(num):
            Image.new("RGB", (4, 4)).save(root / name / f"{i}.png")
    recipe = Recipe(data=DataChoice(source=str(root)))
    now = open_parts(recipe)
    assert {part: split.counts(2).tolist() for part, split in now.splits.items()} == {
        "train": [24, 8], "val": [3, 1], "test": [3, 1],
    }  # fmt: skip
    stored = to_dict(recipe)
    assert open_parts(read_recipe(stored, where="here")).fingerprint == now.fingerprint
    del stored["data"]["division"]  # as runs were stored before there was a choice
    earlier, whole = open_parts(read_recipe(stored, where="here")), open_data(root, val_fraction=0.1)
    assert earlier.fingerprint == whole.fingerprint != now.fingerprint
    assert set(earlier.splits) == {"train", "val"}

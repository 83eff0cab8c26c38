"""A small set and a short recipe, for whole runs in seconds."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitlab.data.augmentation import Augmentation
from vitlab.training.optimizers import Optimizer
from vitlab.training.recipe import DataChoice, ModelChoice, Recipe
from vitlab.training.schedules import Schedule


def write_small_set(path: Path) -> Path:
    """120 pictures of 8 x 8 in three classes that differ in brightness."""
    rng = np.random.default_rng(0)
    labels = np.arange(120) % 3
    images = rng.integers(0, 120, size=(120, 8, 8, 3)) + labels[:, None, None, None] * 60
    np.savez(path, images=images.astype(np.uint8), labels=labels)
    return path


def write_damaged_folder(root: Path, damaged: dict[str, list[int]]) -> None:
    """Small pictures in two classes under train/ and val/, some cut off after their header."""
    rng = np.random.default_rng(0)
    for split, num in (("train", 60), ("val", 12)):
        for i in range(num):
            path = root / split / "ab"[i % 2] / f"{i:02}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray((rng.integers(0, 120, (8, 8, 3)) + 80 * (i % 2)).astype(np.uint8)).save(path)
            if i in damaged.get(split, []):
                path.write_bytes(path.read_bytes()[:60])


def short_recipe(source: Path) -> Recipe:
    """24 steps with all that randomness touches: workers aside, which `data.resident` decides."""
    return Recipe(
        name="short",
        model=ModelChoice(source="vit-digits", dropout=0.1, drop_path=0.1, set=("depth=1",)),
        data=DataChoice(source=str(source), val_fraction=0.2, division="hash"),
        augmentation=Augmentation(crop="pad", pad=1, mixup=0.8, cutmix=1.0, erase=0.2),
        optimizer=Optimizer(lr=3e-3, weight_decay=0.1, clip=1.0, ema=0.9),
        schedule=Schedule(total="24 steps", warmup="4 steps"),
        batch_size=16,
        evaluate_every="6 steps",
        checkpoint_every="8 steps",
        log_every="3 steps",
    )


@pytest.fixture
def small_set(tmp_path: Path) -> Path:
    return write_small_set(tmp_path / "a set.npz")


@pytest.fixture
def short(small_set: Path) -> Recipe:
    return short_recipe(small_set)

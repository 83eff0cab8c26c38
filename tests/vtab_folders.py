"""VTAB's public folders in little."""

from pathlib import Path

import numpy as np
from PIL import Image


def make_task(root: Path, name: str, num_classes: int, *, train: int = 2, val: int = 1, test: int = 1) -> Path:
    """A task with so many pictures of 4 x 4 per class and split, brighter from class to class."""
    folder, rng = root / name, np.random.default_rng(num_classes)
    lists: dict[str, list[str]] = {}
    for split, count in (("train800", train), ("val200", val), ("test", test)):
        (folder / "images" / split).mkdir(parents=True)
        for label in range(num_classes):
            for i in range(count):
                file = f"images/{split}/{label} {i}.png"
                pixels = rng.integers(0, 40, (4, 4, 3)) + 215 * label // max(num_classes - 1, 1)
                Image.fromarray(pixels.astype(np.uint8)).save(folder / file)
                lists.setdefault(split, []).append(f"{file} {label}")
    lists["train800val200"] = lists["train800"] + lists["val200"]
    for file, lines in lists.items():
        (folder / f"{file}.txt").write_text("\n".join(lines) + "\n")
    return folder

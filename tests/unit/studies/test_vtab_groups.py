"""The three tasks made of digits are what they are called, and a group's mean is over its tasks for each seed."""

from pathlib import Path

import numpy as np
import pytest
from scipy.ndimage import center_of_mass

from vitlab.data.open import open_data
from vitlab.studies.findings import Sample
from vitlab.studies.vtab_groups import group_means, made_tasks


def test_made_tasks(tmp_path: Path) -> None:
    tasks = made_tasks(tmp_path)
    assert list(tasks) == ["natural", "specialised", "structured"]
    opened = {group: open_data(source, val_fraction=0) for group, own in tasks.items() for source in own.values()}
    assert {len(each.splits["train"]) for each in opened.values()} == {1000}
    assert [each.num_classes for each in opened.values()] == [10, 3, 9]
    where = opened["structured"].splits["train"]
    for number in range(20):
        middle = center_of_mass(np.asarray(where.images.read(number)).reshape(16, 16, -1)[..., 0])
        row, column = np.asarray(middle, np.float64).tolist()
        place = 3 * round((row - 3.5) / 4) + round((column - 3.5) / 4)
        assert place == where.labels[number]
    ink = opened["specialised"].splits["test"]
    sums = [int(np.asarray(ink.images.read(number)).sum()) for number in range(100)]
    by_class = [[value for value, label in zip(sums, ink.labels, strict=False) if label == k] for k in range(3)]
    assert max(by_class[0]) <= min(by_class[1])
    assert max(by_class[1]) <= min(by_class[2])


def test_means_of_groups() -> None:
    scores = {"a": Sample((0.2, 0.4)), "b": Sample((0.4, 0.8)), "c": Sample((0.5, 0.5))}
    found = group_means({"one": {"a": "", "b": ""}, "two": {"c": "", "d": ""}}, scores)
    assert found["one"].values == pytest.approx((0.3, 0.6))
    assert list(found) == ["one"]

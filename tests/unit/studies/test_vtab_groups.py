"""The three made tasks are what they are called, and a group's mean is over its tasks for each seed."""

from pathlib import Path

import numpy as np
import pytest
from scipy.ndimage import center_of_mass

from vitlab.data.contract import Split
from vitlab.data.open import open_data
from vitlab.data.sources.published.vtab import GROUPS
from vitlab.evaluation.published.tables import group_means as group_means_of_all
from vitlab.recipes.scales import scale_recipe
from vitlab.studies.findings import Sample
from vitlab.studies.paper import vtab_groups
from vitlab.studies.running import run_study
from vitlab.studies.vtab_groups import MADE, STUDY, group_means, make_tasks
from vitlab.training.plan import open_parts


def test_made_tasks(tmp_path: Path) -> None:
    tasks = {group: {name: str(tmp_path / f"{group}.npz")} for group, name in MADE.items()}
    digits = open_parts(scale_recipe("digits"))
    make_tasks(tasks, digits, 16)
    opened = {group: open_data(source, val_fraction=0) for group, own in tasks.items() for source in own.values()}
    assert {len(each.splits["train"]) for each in opened.values()} == {1000}
    assert {len(each.splits["test"]) for each in opened.values()} == {len(digits.splits["test"])}
    assert [each.num_classes for each in opened.values()] == [10, 3, 9]
    where = opened["structured"].splits["train"]
    for number in range(20):
        middle = center_of_mass(np.asarray(where.images.read(number))[..., 0])
        row, column = np.asarray(middle, np.float64).tolist()
        place = 3 * round((row - 3.5) / 4) + round((column - 3.5) / 4)
        assert place == where.labels[number]
    light = opened["specialised"].splits["test"]
    sums = [int(np.asarray(light.images.read(number)).sum()) for number in range(100)]
    by_class = [[value for value, label in zip(sums, light.labels, strict=False) if label == k] for k in range(3)]
    assert max(by_class[0]) <= min(by_class[1])
    assert max(by_class[1]) <= min(by_class[2])


def test_what_tasks_are_tested_on_was_not_pretrained_on(tmp_path: Path) -> None:
    """Pictures are compared by their pixels; some digits of scikit-learn's could be there twice, none is."""
    tasks = {group: {name: str(tmp_path / f"{group}.npz")} for group, name in MADE.items()}
    digits = open_parts(scale_recipe("digits"))
    make_tasks(tasks, digits, 16)
    parts = {name: pixels(split) for name, split in digits.splits.items()}
    task = open_data(tasks["natural"]["which class"], val_fraction=0)
    inner = {
        part: {np.asarray(each)[4:12, 4:12, 0].tobytes() for each in map(split.images.read, range(len(split)))}
        for part, split in task.splits.items()
    }
    assert inner["train"] <= parts["train"]
    assert inner["test"] == parts["test"]
    assert not inner["test"] & parts["train"]


def pixels(split: Split) -> set[bytes]:
    return {np.asarray(split.images.read(number)).tobytes() for number in range(len(split))}


def test_a_forecast_writes_nothing(tmp_path: Path) -> None:
    """Else the folder would hold something that is no study's, and the study could not be started there."""
    run_study(STUDY, {}, scale="digits", folder=tmp_path / "study", device="cpu", dry=True)
    assert not (tmp_path / "study").exists()


def test_means_of_groups() -> None:
    scores = {"a": Sample((0.2, 0.4)), "b": Sample((0.4, 0.8)), "c": Sample((0.5, 0.5))}
    found = group_means({"one": {"a": "", "b": ""}, "two": {"c": "", "d": ""}}, scores)
    assert found["one"].values == pytest.approx((0.3, 0.6))
    assert list(found) == ["one"]


def test_the_papers_means_are_of_the_same_tasks() -> None:
    """Figure 2's natural bar of ViT-H/14 is 86.7 over seven tasks; of CIFAR-100 alone table 9 has 85.5."""
    found = vtab_groups({"natural": GROUPS["natural"]})["ViT-H/14 (JFT)"]
    assert found["natural"] == pytest.approx(group_means_of_all("ViT-H/14 (JFT)")["natural"] / 100)
    assert vtab_groups({"natural": ["cifar"]})["ViT-H/14 (JFT)"] == {"natural": pytest.approx(0.855)}

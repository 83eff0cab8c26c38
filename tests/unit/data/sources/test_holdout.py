"""Sets without parts, divided by class into train, val and test."""

import dataclasses
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest

from vitlab.core.errors import DataError
from vitlab.data.contract import Array, DataSet, Split
from vitlab.data.sources.holdout import divide_by_class, fraction_of_train, hold_out, labelled_part_of_train

PARTS = ("train", "val", "test")


@dataclass(frozen=True)
class Named:
    """Images that are told apart by a number of their own."""

    numbers: Array

    def __len__(self) -> int:
        return len(self.numbers)

    def read(self, index: int) -> bytes:
        raise AssertionError(index)

    def where(self, index: int) -> str:
        return str(self.numbers[index])

    def identities(self) -> Array:
        return self.numbers


def a_set(*counts: int, first: int = 0) -> DataSet:
    """A data set of so many images per class, numbered from `first` on within each."""
    labels = np.repeat(np.arange(len(counts)), counts)
    numbers = np.concatenate([1_000_000 * k + first + np.arange(count) for k, count in enumerate(counts)])
    train = Split.labelled(Named(numbers), labels)
    return DataSet("set", tuple(f"class {k}" for k in range(len(counts))), {"train": train}, "print")


def members(dataset: DataSet) -> dict[str, set[str]]:
    return {part: {split.images.where(i) for i in range(len(split))} for part, split in dataset.splits.items()}


@pytest.mark.parametrize(
    ("num", "parts"),
    [
        (1, (1, 0, 0)),
        (2, (1, 1, 0)),
        (3, (1, 1, 1)),
        (4, (2, 1, 1)),
        (10, (8, 1, 1)),
        (15, (11, 2, 2)),
        (100, (80, 10, 10)),
    ],
)
def test_each_class_has_its_share_of_each_part(num: int, parts: tuple[int, int, int]) -> None:
    divided = divide_by_class(a_set(num, 40), 0.1)
    found = tuple(int(divided.splits[part].counts(2)[0]) for part in PARTS)
    assert found == parts
    assert [int(divided.splits[part].counts(2)[1]) for part in PARTS] == [32, 4, 4]


def test_every_image_is_in_one_part_and_keeps_its_label() -> None:
    whole = a_set(20, 7, 33)
    divided = divide_by_class(whole, 0.2)
    found = members(divided)
    assert sum(map(len, found.values())) == 60
    assert set.union(*found.values()) == members(whole)["train"]
    for split in divided.splits.values():
        for i in range(len(split)):
            assert int(split.images.where(i)) // 1_000_000 == split.labels[i]
    assert "Of 60 images 12 are val and 12 are test: of each class about 20% each" in divided.notes[-1]
    assert members(divide_by_class(whole, 0.2, seed=1)) != found
    assert members(divide_by_class(whole, 0.2)) == found


def test_added_images_move_few_others() -> None:
    """One image more in a class moves at most one other across each border of train, and none of other classes."""
    before = members(divide_by_class(a_set(50, 50), 0.1))
    for more in range(51, 70):
        after = members(divide_by_class(a_set(more, 50), 0.1))
        moved = sum(len(before[part] - after[part]) for part in PARTS)
        assert moved <= 2
        assert all(int(name) < 1_000_000 for part in PARTS for name in before[part] - after[part])
        before = after


def test_what_cannot_be_divided_is_left_and_said() -> None:
    alone = divide_by_class(a_set(1, 1), 0.1)
    assert set(alone.splits) == {"train"}
    assert "Nothing was held out" in alone.notes[-1]
    assert set(divide_by_class(a_set(9, 9), 0).splits) == {"train"}
    bare = DataSet("photos", (), {"train": Split(Named(np.arange(50)))}, "print")
    assert set(divide_by_class(bare, 0.1).splits) == {"train", "val"}  # without labels there is nothing to test


def test_images_with_several_labels_are_divided_as_one() -> None:
    labels = (np.random.default_rng(0).random((50, 4)) < 0.4).astype(np.int64)
    several = DataSet("set", tuple("abcd"), {"train": Split.labelled(Named(np.arange(50)), labels, "several")}, "print")
    divided = divide_by_class(several, 0.1)
    assert {part: len(split) for part, split in divided.splits.items()} == {"train": 40, "val": 5, "test": 5}
    assert "Of 50 images 5 are val and 5 are test: about 10% each, by" in divided.notes[-1]


@pytest.mark.parametrize(
    ("fraction", "counts"), [(0.01, (1, 1, 1)), (0.1, (10, 4, 1)), (0.25, (25, 10, 1)), (1, (100, 40, 3))]
)
def test_a_fraction_of_train_is_of_each_class_and_of_one_image_at_least(
    fraction: float, counts: tuple[int, int, int]
) -> None:
    part = fraction_of_train(a_set(100, 40, 3), fraction)
    assert tuple(part.splits["train"].counts(3)) == counts
    assert (part.fingerprint != "print") == (fraction != 1)


def test_a_smaller_fraction_lies_within_a_larger_one_and_other_parts_stay() -> None:
    divided = divide_by_class(a_set(100, 40), 0.1)
    parts = [members(fraction_of_train(divided, fraction)) for fraction in (0.01, 0.1, 0.5, 1)]
    assert all(small["train"] < large["train"] for small, large in pairwise(parts))
    assert all(part["val"] == parts[0]["val"] and part["test"] == parts[0]["test"] for part in parts)


def test_another_seed_takes_other_images_as_many_of_each_class() -> None:
    divided = divide_by_class(a_set(100, 40), 0.1)
    for choose in (fraction_of_train, labelled_part_of_train):
        first, other = (choose(divided, 0.1, seed) for seed in (0, 1))
        assert list(first.splits["train"].counts(2)) == list(other.splits["train"].counts(2))
        assert members(first)["train"] != members(other)["train"]
        assert members(first)["test"] == members(other)["test"]
        assert first.fingerprint != other.fingerprint


def test_adding_images_to_a_class_leaves_the_others_as_they_are() -> None:
    before, after = (members(fraction_of_train(a_set(100, num), 0.1))["train"] for num in (40, 60))
    assert {name for name in before if int(name) < 1_000_000} == {name for name in after if int(name) < 1_000_000}


def test_the_labelled_part_is_that_fraction_of_train_and_all_images_are_unlabelled() -> None:
    divided = divide_by_class(a_set(100, 40, 7), 0.1)
    whole, before = members(divided), set[str]()
    for fraction in (0.01, 0.05, 0.1, 0.5):
        few = labelled_part_of_train(divided, fraction)
        found = members(few)
        assert found["train"] == members(fraction_of_train(divided, fraction))["train"]
        assert found["unlabelled"] == whole["train"]
        assert (found["val"], found["test"]) == (whole["val"], whole["test"])
        assert before <= found["train"]
        assert few.splits["unlabelled"].targets == {}
        assert all(few.splits["train"].counts(3) >= 1)
        before = found["train"]
    assert labelled_part_of_train(divided, 1) is divided
    assert list(few.splits) == ["train", "val", "test", "unlabelled"]
    assert "Labels are those of 59 of the 117 images of train: of each class 50%" in few.notes[-1]


def test_the_labelled_part_of_a_fraction_and_images_that_never_had_labels() -> None:
    """Both choices take the first of one order, so that the labels are within those of the labelled part alone."""
    divided = divide_by_class(a_set(100, 40), 0.1)
    others = Split(Named(np.arange(5_000_000, 5_000_009)))
    beside = dataclasses.replace(divided, splits={**divided.splits, "unlabelled": others})
    few = members(labelled_part_of_train(fraction_of_train(beside, 0.5), 0.1))
    assert few["train"] < members(labelled_part_of_train(divided, 0.1))["train"]
    assert few["unlabelled"] == members(fraction_of_train(divided, 0.5))["train"] | members(beside)["unlabelled"]
    assert fraction_of_train(beside, 0.5).splits["unlabelled"] is others


def test_parts_are_held_out_of_train_alone() -> None:
    others = Split(Named(np.arange(9)))
    whole = a_set(50, 50)
    beside = dataclasses.replace(whole, splits={**whole.splits, "unlabelled": others})
    assert beside.undivided
    for divided in (divide_by_class(beside, 0.1), hold_out(beside, 0.1)):
        assert divided.splits["unlabelled"] is others
        assert members(divided)["train"] | members(divided)["val"] <= members(whole)["train"]
        assert not divided.undivided


def test_few_labels_need_labels() -> None:
    bare = DataSet("photos", (), {"train": Split(Named(np.arange(50)))}, "print")
    with pytest.raises(DataError, match=r"photos has no labels.*for 10% of its images: leave out data\.labelled"):
        labelled_part_of_train(bare, 0.1)

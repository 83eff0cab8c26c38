"""VTAB's folders: what is read of them, and what is refused."""

from pathlib import Path

import numpy as np
import pytest

from vitlab.core.errors import DataError
from vitlab.data.open import hold_out, open_data
from vitlab.data.sources.published.vtab import GROUPS, TASKS, find_tasks, task_called
from vitlab.tasks.classification import Classification
from vitlab.training.plan import divide
from vtab_folders import make_task


def test_the_nineteen() -> None:
    """Counted by hand from the benchmark's paper."""
    assert {group: len(tasks) for group, tasks in GROUPS.items()} == {
        "natural": 7,
        "specialised": 4,
        "structured": 8,
    }
    assert sum(task.num_classes for task in TASKS.values()) == (
        (102 + 100 + 47 + 102 + 37 + 397 + 10) + (2 + 10 + 45 + 5) + (8 + 6 + 6 + 4 + 16 + 16 + 18 + 9)
    )
    names = [name for task in TASKS.values() for name in (task.name, *task.aliases)]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("folder", "task"),
    [
        ("cifar", "cifar"),
        ("CIFAR-100", "cifar"),
        ("Oxford-Flowers102", "oxford_flowers102"),
        ("pets", "oxford_iiit_pet"),
        ("clevr-distance", "clevr_dist"),
        ("smallnorb_azimuth", "smallnorb_azi"),
        ("dsprites orientation", "dsprites_ori"),
        ("patch-camelyon", "patch_camelyon"),
    ],
)
def test_names(folder: str, task: str) -> None:
    found = task_called(folder)
    assert found is not None
    assert found.name == task


def test_a_task_is_read(tmp_path: Path) -> None:
    dataset = open_data(str(make_task(tmp_path, "kitti", 4, train=3, val=2, test=5)))
    assert dataset.name == "kitti"
    assert dataset.classes == ("0", "1", "2", "3")
    assert {split: len(part) for split, part in dataset.splits.items()} == {"train": 12, "val": 8, "test": 20}
    assert dataset.splits["val"].labels.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert dataset.splits["test"].images.where(7) == str(tmp_path / "kitti" / "images/test/1 2.png")
    assert isinstance(dataset.splits["test"].images.read(7), bytes)
    assert any("train800.txt names 12 images, not 800" in note for note in dataset.notes)


def test_a_name_that_no_disk_can_have(tmp_path: Path) -> None:
    folder = make_task(tmp_path, "kitti", 4)
    (folder / "train800val200.txt").unlink()
    (folder / "train800.txt").write_text(f"{'x' * 5000} 0\n")
    with pytest.raises(DataError, match="1 of the 1 images that .* names is not"):
        open_data(str(folder))


def test_paths_may_start_below_images(tmp_path: Path) -> None:
    folder = make_task(tmp_path, "kitti", 4)
    expected = open_data(str(folder)).fingerprint
    for file in folder.glob("*.txt"):
        file.write_text(file.read_text().replace("images/", ""))
    assert open_data(str(folder)).fingerprint == expected


def test_parts_arranged_anew(tmp_path: Path) -> None:
    folder = make_task(tmp_path, "kitti", 4)
    plain = open_data(str(folder))
    dataset = open_data(f"arranged:train=train+val,test=test:{folder}", val_fraction=0)
    assert {split: len(part) for split, part in dataset.splits.items()} == {"train": 12, "test": 4}
    train = dataset.splits["train"]
    both = [plain.splits["train"], plain.splits["val"]]
    assert np.array_equal(train.labels, np.concatenate([split.labels for split in both]))
    assert [train.images.read(i) for i in range(12)] == [
        split.images.read(i) for split in both for i in range(len(split))
    ]
    assert train.images.where(9) == plain.splits["val"].images.where(1)
    assert dataset.fingerprint != plain.fingerprint
    assert "test" not in open_data(f"arranged:train=train,val=val:{folder}").splits


def test_the_same_images_are_held_out_of_an_arranged_set() -> None:
    """Of digits, whose images are known by their numbers alone."""
    expected = hold_out(open_data("digits"), 0.1).splits["val"]
    held = open_data("arranged:train=train:digits", val_fraction=0.1).splits["val"]
    assert len(held) == len(expected) > 100
    assert all(np.array_equal(held.images.read(i), expected.images.read(i)) for i in range(len(held)))


@pytest.mark.parametrize(
    "name", ["arranged:digits", "arranged:train=:digits", "arranged:mine=train:digits", "arranged:train=all:digits"]
)
def test_no_arrangement(name: str) -> None:
    with pytest.raises(DataError, match="is no arrangement of parts"):
        open_data(name)


def test_a_part_that_is_not_there() -> None:
    with pytest.raises(DataError, match="digits has no part 'val': it has train, test"):
        open_data("arranged:train=train+val:digits")


def test_train_may_lack_a_class_that_test_has(tmp_path: Path) -> None:
    """As in Sun397, whose thousand images are drawn without regard to its 397 classes."""
    task = make_task(tmp_path, "kitti", 4)
    for file in ("train800.txt", "val200.txt", "train800val200.txt"):
        lines = (task / file).read_text().splitlines()
        (task / file).write_text("\n".join(line for line in lines if not line.endswith(" 3")))
    dataset = open_data(f"arranged:train=train+val,test=test:{task}", val_fraction=0)
    assert dataset.num_classes == 4
    assert dataset.splits["train"].counts(4).tolist() == [3, 3, 3, 0]
    assert dataset.splits["test"].counts(4).tolist() == [1, 1, 1, 1]
    assert any("train has no image of 3, which test has" in note for note in dataset.notes)
    Classification().check(dataset)  # and it can be trained on
    assert divide(dataset).test is not None


def replace(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))


class TestRefused:
    @pytest.fixture
    def task(self, tmp_path: Path) -> Path:
        return make_task(tmp_path / "vtab", "kitti", 4)

    def test_images_that_are_not_there(self, task: Path) -> None:
        (task / "images/val200/2 0.png").unlink()
        with pytest.raises(DataError, match=r"1 of the 4 images that .*val200\.txt names is not below .*2 0\.png"):
            open_data(str(task))

    @pytest.mark.parametrize("label", ["4", "-1"])
    def test_labels_out_of_range(self, task: Path, label: str) -> None:
        replace(task / "test.txt", "3 0.png 3", f"3 0.png {label}")
        with pytest.raises(
            DataError, match=rf"test\.txt: the label {label} of .*3 0\.png is out of range; the 4 classes"
        ):
            open_data(str(task))

    @pytest.mark.parametrize("line", ["images/test/0.png", "images/test/0.png cat", "images/test/0.png 1.5"])
    def test_lines_that_are_none(self, task: Path, line: str) -> None:
        (task / "test.txt").write_text(line + "\n")
        with pytest.raises(DataError, match="is not a path and a class number"):
            open_data(str(task))

    def test_a_list_of_the_thousand_that_is_another(self, task: Path) -> None:
        replace(task / "train800val200.txt", "1 0.png 1", "1 0.png 2")
        with pytest.raises(DataError, match=r"train800val200\.txt does not name the images of train800\.txt and"):
            open_data(str(task))
        (task / "train800val200.txt").unlink()  # it is not needed
        assert len(open_data(str(task)).splits["train"]) == 8

    def test_a_missing_or_empty_list(self, task: Path) -> None:
        (task / "test.txt").write_text("\n")
        with pytest.raises(DataError, match=r"test\.txt names no images"):
            open_data(str(task))
        (task / "test.txt").unlink()
        with pytest.raises(DataError, match=r"There is no .*test\.txt"):
            open_data(str(task))

    def test_the_folder_of_all_tasks_is_no_data_set(self, task: Path) -> None:
        with pytest.raises(DataError, match=r"holds the tasks of VTAB: give the folder of one \(kitti\)"):
            open_data(str(task.parent))

    def test_a_task_twice(self, task: Path) -> None:
        make_task(task.parent, "kitti_distance", 4)
        with pytest.raises(DataError, match="holds kitti twice, kitti and kitti_distance"):
            find_tasks(task.parent)

    def test_no_task_at_all(self, tmp_path: Path) -> None:
        (tmp_path / "photos").mkdir()
        with pytest.raises(DataError, match=r"holds no task of VTAB: .* train800\.txt, val200\.txt, test\.txt"):
            find_tasks(tmp_path)
        with pytest.raises(DataError, match="is no folder"):
            find_tasks(tmp_path / "nothing")


def test_images_of_test_among_the_training_images_are_told(tmp_path: Path) -> None:
    task = make_task(tmp_path, "kitti", 4)
    replace(task / "test.txt", "images/test/0 0.png", "images/train800/0 0.png")
    assert any("1 of the images of test are among the training images" in note for note in open_data(str(task)).notes)

"""Image folders and the held-out part."""

import os
import pickle
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from peers import torchvision
from vitlab.core.errors import DataError, ImageError
from vitlab.data.contract import DataSet, Split
from vitlab.data.open import describe, hold_out, open_data
from vitlab.data.sources.files import Files
from vitlab.data.sources.holdout import identities
from vitlab.data.sources.pixels import Pixels
from vitlab.data.sources.source import make
from vitlab.data.sources.wording import natural


def picture(path: Path, seed: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (6, 5, 3), np.uint8)).save(path)
    return path


def photos(root: Path, **classes: int) -> Path:
    for name, count in classes.items():
        for i in range(count):
            picture(root / name / f"{i}.png", i)
    return root


def names(split: Split) -> set[str]:
    return {split.images.where(i) for i in range(len(split))}


def everything(dataset: DataSet) -> dict[str, str]:
    return {name: split for split, part in dataset.splits.items() for name in names(part)}


def test_splits_and_classes_match_torchvision(tmp_path: Path) -> None:
    for split, count in (("train", 3), ("val", 2), ("test", 1)):
        photos(tmp_path / split, cat=count, dog=count + 1, ant=1)
    picture(tmp_path / "train" / "dog" / "deeper" / "more.jpg")
    reference = torchvision
    dataset = open_data(tmp_path)
    assert list(dataset.splits) == ["train", "val", "test"]
    for split, part in dataset.splits.items():
        theirs = reference.datasets.ImageFolder(str(tmp_path / split))
        assert list(dataset.classes) == theirs.classes
        ours = {(part.images.where(i), int(part.labels[i])) for i in range(len(part))}
        assert ours == set(theirs.samples)
        raw = part.images.read(0)
        assert raw == Path(part.images.where(0)).read_bytes()


def test_other_words_for_splits(tmp_path: Path) -> None:
    photos(tmp_path / "Training", a=2, b=2)
    photos(tmp_path / "valid", a=1, b=1)
    dataset = open_data(tmp_path)
    assert {split: len(part) for split, part in dataset.splits.items()} == {"train": 4, "val": 2}


@pytest.mark.parametrize(
    ("train", "other", "split"),
    [
        ("train_images", "test_images", "test"),
        ("my_train", "my_val", "val"),
        ("train", "Test images", "test"),
        ("seg_train/seg_train", "seg_test/seg_test", "test"),
        ("train/train", "val/val", "val"),
    ],
)
@pytest.mark.parametrize("beside", ["", "docs", "seg_pred/seg_pred"])
def test_splits_by_one_word_of_their_names(tmp_path: Path, train: str, other: str, split: str, beside: str) -> None:
    photos(tmp_path / train, cat=2, dog=2)
    photos(tmp_path / other, cat=1, dog=1)
    if beside == "docs":
        (tmp_path / beside).mkdir()
    elif beside:
        picture(tmp_path / beside / "0.png")
    (tmp_path / "backup.tar").touch()
    dataset = open_data(tmp_path, val_fraction=0)
    assert dataset.classes == ("cat", "dog")
    assert {name: len(part) for name, part in dataset.splits.items()} == {"train": 4, split: 2}
    left_out = f"The folder beside the splits left out: {beside.partition('/')[0]}."
    assert (left_out in dataset.notes) == bool(beside)


def test_splits_of_links_to_classes(tmp_path: Path) -> None:
    photos(tmp_path / "all", cat=2, dog=2)
    for name in ("train_images", "test_images"):
        (tmp_path / "set" / name).mkdir(parents=True)
        for of in ("cat", "dog"):
            (tmp_path / "set" / name / of).symlink_to(tmp_path / "all" / of)
    assert set(open_data(tmp_path / "set").splits) == {"train", "test"}


@pytest.mark.parametrize(
    "classes",
    [
        ("test tube", "car"),
        ("test tube", "train", "car", "plane"),
        ("freight train", "passenger train"),
        ("freight train/2024", "freight train/2025", "test tube/2024", "test tube/2025", "car/2024", "car/2025"),
    ],
)
def test_classes_with_a_word_for_a_split(tmp_path: Path, classes: tuple[str, ...]) -> None:
    photos(tmp_path, **dict.fromkeys(classes, 2))
    assert set(open_data(tmp_path, val_fraction=0).classes) == {name.partition("/")[0] for name in classes}


def test_folders_that_are_neither_splits_nor_classes(tmp_path: Path) -> None:
    photos(tmp_path, train_images=2, test_images=2)
    (tmp_path / "docs").mkdir()
    with pytest.raises(
        DataError, match=r"test_images, train_images are called as splits are, .* as in train/cat/1.jpg\."
    ):
        open_data(tmp_path)
    (tmp_path / "labels.csv").touch()
    with pytest.raises(DataError, match=r"; or give .*labels\.csv, if that holds the labels"):
        open_data(tmp_path)
    photos(tmp_path / "train_images", cat=1, dog=1)
    photos(tmp_path, train_masks=2)
    with pytest.raises(
        DataError, match=r"test_images, train_images, train_masks are called .*: .* as in train/cat/1.jpg"
    ):
        open_data(tmp_path)


def test_two_folders_for_one_split(tmp_path: Path) -> None:
    photos(tmp_path / "val", a=1, b=1)
    photos(tmp_path / "valid", a=1, b=1)
    with pytest.raises(DataError, match="both val and valid"):
        open_data(tmp_path)


def test_a_class_may_be_called_train(tmp_path: Path) -> None:
    dataset = open_data(photos(tmp_path, train=20, bus=20, tram=20))
    assert dataset.classes == ("bus", "train", "tram")


def test_classes_in_natural_order(tmp_path: Path) -> None:
    photos(tmp_path, **{"10": 1, "9": 1, "b2": 1, "b10": 1, "B": 1})
    assert open_data(tmp_path, val_fraction=0).classes == ("9", "10", "B", "b2", "b10")


@given(st.lists(st.text(max_size=6)))
def test_natural_order_is_total(texts: list[str]) -> None:
    backwards = list(reversed(texts))
    assert sorted(texts, key=natural) == sorted(backwards, key=natural)


def test_what_is_left_out_is_told(tmp_path: Path) -> None:
    photos(tmp_path, cat=3, dog=3)
    picture(tmp_path / "loose.png")
    picture(tmp_path / ".cache" / "cached.png")
    (tmp_path / "cat" / "notes.txt").write_text("x")
    (tmp_path / "cat" / "._0.png").write_bytes(b"x")
    (tmp_path / "dog" / "broken.png").symlink_to(tmp_path / "nowhere.png")
    (tmp_path / "dog" / "zero.png").touch()
    (tmp_path / "empty").mkdir()
    (tmp_path / "dog" / "circle").symlink_to(tmp_path / "dog")
    dataset = open_data(tmp_path, val_fraction=0)
    assert dataset.classes == ("cat", "dog")
    assert len(dataset.splits["train"]) == 7
    said = "\n".join(dataset.notes)
    assert "1 hidden file was left out" in said
    assert "1 file that is not an image was left out: cat/notes.txt." in said
    assert "1 link that leads nowhere was left out: dog/broken.png." in said
    assert "1 image in no class folder: loose.png" in said
    assert "1 folder holds no images: empty" in said
    assert "1 image is empty: dog/zero.png" in said


@pytest.mark.parametrize("split", ["", "train"])
def test_links_that_lead_up_are_not_followed(tmp_path: Path, split: str) -> None:
    root = photos(tmp_path / "set" / split, cat=3, dog=4).parent / ("" if split else "set")
    photos(tmp_path / "beside", more=2)
    picture(tmp_path / "loose" / "x.png")
    cat = tmp_path / "set" / split / "cat"
    for name, target in (("up", ".."), ("top", tmp_path / "set"), ("above", tmp_path), ("far", tmp_path / "beside")):
        (cat / name).symlink_to(target)
    (tmp_path / "elsewhere").mkdir()
    picture(tmp_path / "elsewhere" / "1.png")
    (tmp_path / "elsewhere" / "back").symlink_to(tmp_path / "set")  # up by its place in the set, not on the disk
    (tmp_path / "set" / split / "cow").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "set" / split / "all").symlink_to(".")
    dataset = open_data(root, val_fraction=0)
    assert dataset.classes == ("cat", "cow", "dog")
    found = {(Path(name).relative_to(cat.parent).as_posix()) for name in names(dataset.splits["train"])}
    expected = {f"cat/{i}.png" for i in range(3)} | {f"dog/{i}.png" for i in range(4)}
    assert found == expected | {"cat/far/more/0.png", "cat/far/more/1.png", "cow/1.png"}


def test_unreadable_images_are_found(tmp_path: Path) -> None:
    photos(tmp_path / "train", cat=3, dog=3)
    (tmp_path / "train" / "cat" / "bad.jpg").write_bytes(b"not a picture")
    whole = picture(tmp_path / "train" / "dog" / "cut.png").read_bytes()
    (tmp_path / "train" / "dog" / "cut.png").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "train" / "dog" / "zero.png").touch()
    dataset = open_data(tmp_path, val_fraction=0)
    found = describe(dataset, look=True).unreadable
    assert [Path(item.where).name for item in found] == ["bad.jpg", "cut.png", "zero.png"]
    assert all(item.where == dataset.splits["train"].images.where(item.index) for item in found)
    assert "is empty" in found[2].reason
    text = str(describe(dataset, look=True))
    assert "unreadable: 3 of all 9 images" in text
    assert "bad.jpg" in text


def test_reading_errors_name_the_file(tmp_path: Path) -> None:
    photos(tmp_path, cat=2, dog=2)
    images = open_data(tmp_path, val_fraction=0).splits["train"].images
    Path(images.where(0)).write_bytes(b"")
    Path(images.where(1)).unlink()
    with pytest.raises(ImageError, match=r"cat/0\.png is empty"):
        images.read(0)
    with pytest.raises(ImageError, match=r"Cannot read .*cat/1\.png: No such file"):
        images.read(1)


def test_images_are_picklable_and_read_from_threads(tmp_path: Path) -> None:
    photos(tmp_path, cat=8, dog=8)
    images = pickle.loads(pickle.dumps(open_data(tmp_path, val_fraction=0).splits["train"].images))
    got: list[bool] = []

    def check() -> None:
        got.extend(images.read(i) == Path(images.where(i)).read_bytes() for i in range(len(images)))

    threads = [threading.Thread(target=check) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == [True] * 64


def test_names_that_are_no_text(tmp_path: Path) -> None:
    photos(tmp_path, cat=2, dog=2)
    strange = os.fsdecode(b"\xff\xfe caf\xe9.png")
    picture(tmp_path / "cat" / "9.png").rename(tmp_path / "cat" / strange)
    images = open_data(tmp_path, val_fraction=0).splits["train"].images
    assert images.read(2) == (tmp_path / "cat" / strange).read_bytes()


@pytest.mark.parametrize(
    ("make_folder", "message"),
    [
        (lambda _: None, "holds no images"),
        (lambda root: photos(root, cat=3), "one class only, 'cat'"),
        (lambda root: photos(root / "train", cat=1, dog=1) and picture(root / "val" / "1.png"), "labels are missing"),
        (lambda root: photos(root / "train", cat=1, dog=1) and photos(root / "val", cow=1), "images of the class cow"),
        (lambda root: [(root / name).mkdir() for name in ("train", "val")], "holds no images"),
        (lambda root: [(root / name).mkdir() for name in ("cat", "dog")], "holds no images"),
    ],
)
def test_bad_folders(tmp_path: Path, make_folder: object, message: str) -> None:
    make_folder(tmp_path)  # pyright: ignore[reportCallIssue]
    with pytest.raises(DataError, match=message) as raised:
        open_data(tmp_path)
    assert "\n" not in str(raised.value)


def test_only_empty_images(tmp_path: Path) -> None:
    for name in ("cat/1.png", "dog/1.png"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).touch()
    with pytest.raises(DataError, match="All 2 images .* are empty files"):
        open_data(tmp_path)


def test_a_hint_at_the_csv(tmp_path: Path) -> None:
    picture(tmp_path / "1.png")
    (tmp_path / "labels.csv").write_text("path,label\n1.png,a\n")
    (note,) = [note for note in open_data(tmp_path).notes if "no labels" in note]
    assert note.endswith(f"; or give {tmp_path / 'labels.csv'}, if that holds the labels.")


@pytest.mark.parametrize("inside", ["", "train", "test"])
def test_images_in_no_class_folder_have_no_labels(tmp_path: Path, inside: str) -> None:
    for i in range(20):
        picture(tmp_path / "photos" / inside / f"{i}.png")
    (tmp_path / "photos" / inside / "notes.txt").touch()
    dataset = open_data(tmp_path / "photos", val_fraction=0)
    assert dataset.classes == ()
    ((name, split),) = dataset.splits.items()
    assert name == (inside or "train")
    assert split.targets == {}
    assert {Path(name).name for name in names(split)} == {f"{i}.png" for i in range(20)}
    assert not dataset.multi_label
    with pytest.raises(DataError, match=r"These images have no labels, and this needs them"):
        _ = split.label
    lines = describe(dataset, look=True).lines()
    assert lines[:3] == ["photos: no labels", f"{name}: 20 images", "unreadable: none of all 20 images"]
    assert any("1 file that is not an image was left out" in line for line in lines)


def test_part_of_unlabelled_images_is_held_out(tmp_path: Path) -> None:
    for i in range(60):
        picture(tmp_path / f"{i}.png")
    first = open_data(tmp_path, val_fraction=0.2)
    assert {*first.splits} == {"train", "val"}
    assert 3 <= len(first.splits["val"]) <= 22  # 12 +- 3 standard deviations
    before = everything(first)
    for i in range(60, 80):
        picture(tmp_path / f"{i}.png")
    after = everything(open_data(tmp_path, val_fraction=0.2))
    assert {name: after[name] for name in before} == before
    assert open_data(tmp_path, val_fraction=0.2).fingerprint != first.fingerprint


def test_one_unlabelled_image_stays_in_train(tmp_path: Path) -> None:
    picture(tmp_path / "1.png")
    dataset = open_data(tmp_path)
    assert {name: len(part) for name, part in dataset.splits.items()} == {"train": 1}
    assert any("it has one image only" in note for note in dataset.notes)


def test_all_photos_below_a_folder(tmp_path: Path) -> None:
    """However deep they lie, and whatever folders are called; mistyped, the nearest folder is named."""
    for name in ("1.png", "train/2.png", "holiday/spain/3.png", "holiday/.hidden/4.png"):
        picture(tmp_path / "all" / name)
    dataset = open_data(f"photos:{tmp_path / 'all'}", val_fraction=0)
    assert {*dataset.splits} == {"train"}
    assert not dataset.splits["train"].targets
    assert {Path(name).name for name in names(dataset.splits["train"])} == {"1.png", "2.png", "3.png"}
    with pytest.raises(DataError, match=r"Did you mean .*all\?"):
        open_data(f"photos:{tmp_path / 'alll'}")


def test_a_test_part_without_labels_is_left_out(tmp_path: Path) -> None:
    photos(tmp_path / "train", cat=5, dog=5)
    picture(tmp_path / "test" / "1.png")
    dataset = open_data(tmp_path)
    assert "test" not in dataset.splits
    assert any("no labels: it was left out" in note for note in dataset.notes)


def test_only_a_test_part(tmp_path: Path) -> None:
    photos(tmp_path / "test", cat=2, dog=2)
    assert list(open_data(tmp_path).splits) == ["test"]


def test_val_without_some_classes_is_told(tmp_path: Path) -> None:
    photos(tmp_path / "train", cat=2, dog=2, cow=1)
    photos(tmp_path / "val", cat=1, dog=1)
    notes = "\n".join(open_data(tmp_path).notes)
    assert "val has no images of 1 of the classes: cow" in notes
    assert "1 class has one image only: cow" in notes


def test_the_held_out_part_is_stable(tmp_path: Path) -> None:
    root = photos(tmp_path / "one place", a=40, b=60)
    first = open_data(root, val_fraction=0.2)
    before = everything(first)
    assert 8 <= len(first.splits["val"]) <= 32  # 20 +- 3 standard deviations
    photos(root, b=90, c=30)
    after = everything(open_data(root, val_fraction=0.2))
    assert {name: after[name] for name in before} == before
    assert everything(open_data(root, val_fraction=0.2, seed=1)) != after

    root.rename(tmp_path / "another")
    moved = open_data(tmp_path / "another", val_fraction=0.2)
    assert {name.replace("another", "one place"): split for name, split in everything(moved).items()} == after


def test_more_is_held_out_of_the_same(tmp_path: Path) -> None:
    photos(tmp_path, a=50, b=50)
    small, large = open_data(tmp_path, val_fraction=0.1), open_data(tmp_path, val_fraction=0.3)
    assert names(small.splits["val"]) < names(large.splits["val"])


def test_a_class_with_one_image_is_in_train(tmp_path: Path) -> None:
    photos(tmp_path, a=30, **{f"rare{i}": 1 for i in range(20)})
    dataset = open_data(tmp_path, val_fraction=0.5)
    assert (dataset.splits["train"].counts(21) >= 1).all()
    assert dataset.splits["val"].counts(21)[1:].sum() == 0
    assert any("20 classes have one image only: rare0, rare1, rare2 and 17 more" in note for note in dataset.notes)


@given(
    labels=st.lists(st.integers(0, 4), min_size=1, max_size=40),
    fraction=st.sampled_from([0.01, 0.1, 0.5, 0.99]),
    seed=st.integers(0, 5),
)
def test_holding_out_keeps_every_class_in_train(labels: list[int], fraction: float, seed: int) -> None:
    pixels = Pixels(np.zeros((len(labels), 2, 2), np.uint8), "x")
    dataset = make("x", "abcde", {"train": (pixels, np.array(labels))})
    held = hold_out(dataset, fraction, seed)
    train = held.splits["train"]
    assert set(train.labels.tolist()) == set(labels)
    parts = [identities(part.images).tolist() for part in held.splits.values()]
    assert sorted(number for part in parts for number in part) == list(range(len(labels)))
    assert ("val" in held.splits) == (len(labels) > len(set(labels)))  # something is held out where anything can be


def test_holding_out_twice_is_independent() -> None:
    pixels = Pixels(np.zeros((1000, 2, 2), np.uint8), "x")
    dataset = make("x", "ab", {"train": (pixels, np.arange(1000) % 2)})
    both = hold_out(hold_out(dataset, 0.2, into="test"), 0.2, into="val")
    assert [part.images.where(0).startswith("image") for part in both.splits.values()] == [True] * 3
    assert 100 < len(both.splits["val"]) < 220  # a fifth of four fifths
    assert list(both.splits) == ["train", "val", "test"]


@pytest.mark.parametrize("fraction", [-0.1, 1, 1.5, float("nan")])
def test_bad_fractions(tmp_path: Path, fraction: float) -> None:
    with pytest.raises(DataError, match="fraction"):
        open_data(photos(tmp_path, a=2, b=2), val_fraction=fraction)


def test_fingerprints(tmp_path: Path) -> None:
    root = photos(tmp_path / "a", cat=5, dog=5)
    first = open_data(root).fingerprint
    assert open_data(root).fingerprint == first
    assert open_data(root, seed=3).fingerprint != first
    assert open_data(root, val_fraction=0.3).fingerprint != first
    moved = root.rename(tmp_path / "b")
    assert open_data(moved).fingerprint == first
    data = (moved / "cat" / "0.png").read_bytes()
    (moved / "cat" / "0.png").write_bytes(data + b"x")
    assert open_data(moved).fingerprint != first
    (moved / "cat" / "0.png").write_bytes(data)
    assert open_data(moved).fingerprint == first
    (moved / "cat" / "0.png").rename(moved / "dog" / "x.png")
    assert open_data(moved).fingerprint != first


def test_names_in_a_block() -> None:
    listed = ["a/1.png", "", "dog/ü.png", "x"]
    files = Files(Path("root"), listed, [1, 2, 3, 4])
    assert [files.name(i) for i in range(4)] == listed
    assert files.name(-1) == "x"
    with pytest.raises(IndexError):
        files.name(4)
    assert len(set(files.identities().tolist())) == 4
    assert (files.identities()[2:] == Files(Path("other"), listed[2:], [0, 0]).identities()).all()


def test_a_folder_of_unlabelled_images_beside_train(tmp_path: Path) -> None:
    """However deep they lie; nothing of it is held out, and a set without it keeps its fingerprint."""
    photos(tmp_path / "train", cat=12, dog=12)
    before = open_data(tmp_path)
    for i, name in enumerate(("1.png", "more/2.png", "more/deep/3.png")):
        picture(tmp_path / "unlabelled" / name, i)
    (tmp_path / "unlabelled" / "notes.txt").touch()
    dataset = open_data(tmp_path)
    others = dataset.splits["unlabelled"]
    assert dataset.classes == before.classes == ("cat", "dog")
    assert names(others) == {str(tmp_path / "unlabelled" / name) for name in ("1.png", "more/2.png", "more/deep/3.png")}
    assert others.targets == {}
    assert {part: names(dataset.splits[part]) for part in before.splits} == {
        part: names(split) for part, split in before.splits.items()
    }
    assert dataset.fingerprint != before.fingerprint
    lines = describe(dataset, look=True).lines()
    assert "unlabelled: 3 images" in lines
    assert not any("beside the splits" in line for line in lines)
    assert any("1 file that is not an image was left out" in line for line in lines)
    mark = dataset.fingerprint
    picture(tmp_path / "unlabelled" / "4.png")
    assert open_data(tmp_path).fingerprint != mark


def test_unlabelled_images_beside_other_forms(tmp_path: Path) -> None:
    """Beside tables, with an American name, and beside a train part that has no labels either."""
    photos(tmp_path / "table" / "train", cat=3, dog=3)
    rows = [f"train/{name}/{i}.png,{name}" for name in ("cat", "dog") for i in range(3)]
    (tmp_path / "table" / "train.csv").write_text("\n".join(["path,label", *rows]) + "\n")
    picture(tmp_path / "table" / "unlabeled" / "1.png")
    for part in ("train", "unlabelled"):
        picture(tmp_path / "bare" / part / "1.png")
    assert {part: len(split) for part, split in open_data(tmp_path / "table", val_fraction=0).splits.items()} == {
        "train": 6,
        "unlabelled": 1,
    }
    assert {*open_data(tmp_path / "bare", val_fraction=0).splits} == {"train", "unlabelled"}


def test_without_train_beside_it_unlabelled_is_a_class(tmp_path: Path) -> None:
    photos(tmp_path, cat=2, unlabelled=2)
    assert open_data(tmp_path).classes == ("cat", "unlabelled")

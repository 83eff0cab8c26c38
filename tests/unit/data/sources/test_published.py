"""Published sets, written as their authors' archives are and compared with torchvision's readers."""

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from peers import torchvision
from vitlab.core.errors import DataError
from vitlab.data.contract import DataSet
from vitlab.data.decoding import decode
from vitlab.data.open import open_data

RANDOM = np.random.default_rng(0)


@pytest.fixture
def reference(monkeypatch: pytest.MonkeyPatch) -> Any:
    """torchvision's data sets without their checksums."""
    datasets = torchvision.datasets
    for module in (datasets.svhn, datasets.stl10, datasets.flowers102):
        monkeypatch.setattr(module, "check_integrity", lambda *_: True)
    return datasets


def picture(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(RANDOM.integers(0, 256, (5, 4, 3), np.uint8)).save(path, quality=95)


def same(dataset: DataSet, split: str, theirs: Any) -> None:
    """That a split holds what torchvision's data set holds, in the same order."""
    part = dataset.splits[split]
    assert len(part) == len(theirs)
    for i, (image, label) in enumerate(theirs):
        assert part.labels[i] == label
        ours = np.asarray(decode(part.images.read(i), ""), np.int16)
        assert np.abs(ours - np.asarray(image.convert("RGB"), np.int16)).max() <= 2  # two decoders of JPEG


def test_svhn(tmp_path: Path, reference: Any) -> None:
    for split, num in (("train", 20), ("test", 10)):
        labels = (np.arange(num) % 10 + 1).astype(np.uint8)[:, None]
        savemat(
            tmp_path / f"{split}_32x32.mat", {"X": RANDOM.integers(0, 256, (32, 32, 3, num), np.uint8), "y": labels}
        )
    (tmp_path / "extra_32x32.mat").touch()
    dataset = open_data(tmp_path)
    assert dataset.name == "svhn"
    assert dataset.classes == tuple("0123456789")
    assert dataset.splits["train"].labels[:10].tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0]
    for split in dataset.splits:
        same(dataset, split, reference.SVHN(str(tmp_path), split))
    assert any("extra_32x32.mat is not used" in note for note in dataset.notes)


def test_bad_svhn(tmp_path: Path) -> None:
    file = tmp_path / "train_32x32.mat"
    file.write_bytes(b"MATLAB 7.3 or so")
    with pytest.raises(DataError, match="damaged, or not a MATLAB file"):
        open_data(tmp_path)
    savemat(file, {"y": [1, 2]})
    with pytest.raises(DataError, match="holds no array 'X'"):
        open_data(tmp_path)
    savemat(file, {"X": np.zeros((32, 32, 3, 4), np.uint8), "y": [[1], [2]]})
    with pytest.raises(DataError, match=r"\[32, 32, 3, 4\] for 2 labels"):
        open_data(tmp_path)
    savemat(file, {"X": np.zeros((32, 32, 3, 2), np.uint8), "y": [[1], [77]]})
    with pytest.raises(DataError, match="labels reach from 1 to 77"):
        open_data(tmp_path)


def write_stl(root: Path) -> None:
    root.mkdir()
    for split, num in (("train", 20), ("test", 10)):
        RANDOM.integers(0, 256, num * 3 * 96 * 96, np.uint8).tofile(root / f"{split}_X.bin")
        (np.arange(num) % 10 + 1).astype(np.uint8).tofile(root / f"{split}_y.bin")
    names = "airplane bird car cat deer dog horse monkey ship truck"
    (root / "class_names.txt").write_text("\n".join(names.split()) + "\n")
    RANDOM.integers(0, 256, 7 * 3 * 96 * 96, np.uint8).tofile(root / "unlabeled_X.bin")


def test_stl10(tmp_path: Path, reference: Any) -> None:
    write_stl(tmp_path / "stl10_binary")
    dataset = open_data(tmp_path)
    assert dataset.name == "stl10"
    assert dataset.classes[7] == "monkey"
    for split in ("train", "test"):
        theirs = reference.STL10(str(tmp_path), split)
        same(dataset, split, theirs)
        assert list(dataset.classes) == theirs.classes
    others, theirs = dataset.splits["unlabelled"], reference.STL10(str(tmp_path), "unlabeled")
    assert others.targets == {}
    assert len(others) == len(theirs) == 7
    assert all(np.array_equal(others.images.read(i), np.asarray(theirs[i][0])) for i in range(7))
    assert len(pickle.dumps(dataset.splits["train"].images)) < 2000
    without_names = open_data(tmp_path).fingerprint
    (tmp_path / "stl10_binary" / "class_names.txt").unlink()
    assert open_data(tmp_path).fingerprint == without_names


def test_bad_stl10(tmp_path: Path) -> None:
    write_stl(tmp_path / "stl")
    others = tmp_path / "stl" / "unlabeled_X.bin"
    whole = others.read_bytes()
    others.write_bytes(whole[:-1])
    with pytest.raises(DataError, match="193,535 bytes are no whole number of images"):
        open_data(tmp_path / "stl")
    others.write_bytes(whole)
    labels = tmp_path / "stl" / "train_y.bin"
    labels.write_bytes(labels.read_bytes()[:-1])
    with pytest.raises(DataError, match="552,960 bytes for the 19 labels"):
        open_data(tmp_path / "stl")
    labels.write_bytes(bytes(20))
    with pytest.raises(DataError, match="not all in 1 to 10"):
        open_data(tmp_path / "stl")
    labels.unlink()
    with pytest.raises(DataError, match="there is no train_y.bin"):
        open_data(tmp_path / "stl")


def write_flowers(root: Path) -> None:
    for i in range(1, 13):
        picture(root / "jpg" / f"image_{i:05d}.jpg")
    savemat(root / "imagelabels.mat", {"labels": np.array([[77, 1, 102, 1, 77, 102, 1, 1, 77, 1, 102, 77]], np.uint8)})
    ids = {"trnid": [[6, 1, 2]], "valid": [[3, 4, 12]], "tstid": [[5, 7, 8, 9, 10, 11]]}
    savemat(root / "setid.mat", {key: np.array(value, np.uint16) for key, value in ids.items()})


def test_flowers(tmp_path: Path, reference: Any) -> None:
    write_flowers(tmp_path / "flowers-102")
    dataset = open_data(tmp_path)
    assert dataset.name == "flowers102"
    assert list(dataset.classes) == reference.Flowers102.classes
    assert dataset.classes[76] == "passion flower"
    assert list(dataset.splits) == ["train", "val", "test"]
    for split in dataset.splits:
        same(dataset, split, reference.Flowers102(str(tmp_path), split))
    assert any("99 of 102 classes have no images" in note for note in dataset.notes)


def test_bad_flowers(tmp_path: Path) -> None:
    write_flowers(tmp_path)
    (tmp_path / "jpg" / "image_00003.jpg").unlink()
    with pytest.raises(DataError, match=r"1 of the 3 images that .*setid.mat names is not .*: jpg/image_00003.jpg"):
        open_data(tmp_path)
    savemat(tmp_path / "imagelabels.mat", {"labels": np.arange(5)})
    with pytest.raises(DataError, match="not all in 1 to 102"):
        open_data(tmp_path)
    savemat(tmp_path / "imagelabels.mat", {"labels": np.arange(1, 6)})
    with pytest.raises(DataError, match="names images that imagelabels.mat has no labels for"):
        open_data(tmp_path)
    (tmp_path / "setid.mat").unlink()
    with pytest.raises(DataError, match=r"There is no .*setid.mat"):
        open_data(tmp_path)


def write_pets(root: Path) -> None:
    lists = {
        "trainval": [
            "Abyssinian_100 1 1 1",
            "american_bulldog_2 2 2 1",
            "Abyssinian_101 1 1 1",
            "yorkshire_terrier_9 3 2 25",
        ],
        "test": ["yorkshire_terrier_7 3 2 25", "american_bulldog_1 2 2 1"],
    }
    (root / "annotations").mkdir(parents=True)
    for name, lines in lists.items():
        (root / "annotations" / f"{name}.txt").write_text("\n".join(lines) + "\n")
        for line in lines:
            picture(root / "images" / f"{line.split()[0]}.jpg")
    (root / "images" / "Abyssinian_100.mat").touch()


def test_pets(tmp_path: Path, reference: Any) -> None:
    write_pets(tmp_path / "oxford-iiit-pet")
    dataset = open_data(tmp_path)
    assert dataset.name == "pets"
    assert dataset.classes == ("Abyssinian", "american_bulldog", "yorkshire_terrier")
    same(dataset, "train", reference.OxfordIIITPet(str(tmp_path), "trainval"))
    same(dataset, "test", reference.OxfordIIITPet(str(tmp_path), "test"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Abyssinian_1 one 1 1\n", "is not a name and three numbers"),
        ("Abyssinian_1 1 1 1\nBengal_1 1 1 2\n", "Bengal_1 has the number 1 of Abyssinian"),
        ("Abyssinian_1 1 1 1\nBengal_1 3 1 2\n", "without a gap"),
        ("Abyssinian_1 1 1 1\nBengal_1 2 1 2\n", "2 of the 2 images"),
        ("# nothing\n", "not complete"),
    ],
)
def test_bad_pets(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / "annotations").mkdir()
    (tmp_path / "annotations" / "trainval.txt").write_text(text)
    (tmp_path / "annotations" / "test.txt").touch()
    with pytest.raises(DataError, match=message):
        open_data(tmp_path)


def test_dtd(tmp_path: Path, reference: Any) -> None:
    root = tmp_path / "dtd" / "dtd"  # torchvision's place for it
    (root / "labels").mkdir(parents=True)
    for split in ("train", "val", "test"):
        names = [f"{kind}/{kind}_{split}{i}.jpg" for kind in ("zigzagged", "banded", "cracked") for i in range(2)]
        (root / "labels" / f"{split}1.txt").write_text("\n".join(names) + "\n")
        (root / "labels" / f"{split}2.txt").write_text("nothing/here.jpg\n")
        for name in names:
            picture(root / "images" / name)
    for path in (tmp_path, tmp_path / "dtd", root):
        dataset = open_data(path)
        assert dataset.name == "dtd"
        for split in ("train", "val", "test"):
            theirs = reference.DTD(str(tmp_path), split)
            assert list(dataset.classes) == theirs.classes
            same(dataset, split, theirs)
    (root / "labels" / "val1.txt").write_text("banded_1.jpg\n")
    with pytest.raises(DataError, match="'banded_1.jpg' is not a class and a file"):
        open_data(root)


def test_food(tmp_path: Path, reference: Any) -> None:
    root = tmp_path / "food-101"
    (root / "meta").mkdir(parents=True)
    kinds = ["apple_pie", "beef_tartare", "waffles"]
    (root / "meta" / "classes.txt").write_text("\n".join(kinds) + "\n")
    for split, num in (("train", 3), ("test", 2)):
        names = {kind: [f"{kind}/{split}{i}" for i in range(num)] for kind in kinds}
        (root / "meta" / f"{split}.txt").write_text(
            "\n".join(name for found in names.values() for name in found) + "\n"
        )
        (root / "meta" / f"{split}.json").write_text(json.dumps(names))
        for name in (name for found in names.values() for name in found):
            picture(root / "images" / f"{name}.jpg")
    dataset = open_data(tmp_path)
    assert dataset.name == "food101"
    assert list(dataset.classes) == kinds
    for split in ("train", "test"):
        same(dataset, split, reference.Food101(str(tmp_path), split))
    (root / "meta" / "test.txt").write_text("pizza/1\n")
    with pytest.raises(DataError, match=r"'pizza/1' is of no class in classes.txt"):
        open_data(root)


def test_eurosat(tmp_path: Path, reference: Any) -> None:
    kinds = ["AnnualCrop", "Forest", "HerbaceousVegetation", "SeaLake"]
    for kind in kinds:
        for i in range(5):
            picture(tmp_path / "eurosat" / "2750" / kind / f"{kind}_{i}.jpg")
    dataset = open_data(tmp_path, val_fraction=0)
    theirs = reference.EuroSAT(str(tmp_path))
    assert list(dataset.classes) == theirs.classes == kinds
    same(dataset, "train", theirs)
    assert "Its authors publish no split." in dataset.notes
    (tmp_path / "eurosat" / "2750" / "AllBands").mkdir()
    dataset = open_data(tmp_path, val_fraction=0.3)
    assert list(dataset.splits) == ["train", "val"]
    assert any("no class of it: AllBands" in note for note in dataset.notes)


def test_caltech(tmp_path: Path, reference: Any) -> None:
    root = tmp_path / "caltech101" / "101_ObjectCategories"
    kinds = ["BACKGROUND_Google", "Faces", "accordion", "yin_yang"]
    for kind in kinds:
        for i in range(1, 4):
            picture(root / kind / f"image_{i:04d}.jpg")
    for archive in ("101_ObjectCategories.tar.gz", "Annotations.tar"):  # as torchvision leaves them
        (root.parent / archive).touch()
    assert open_data(root.parent).name == "caltech101"
    dataset = open_data(tmp_path, val_fraction=0)
    assert dataset.name == "caltech101"
    theirs = reference.Caltech101(str(tmp_path))
    assert list(dataset.classes) == theirs.categories == kinds[1:]
    same(dataset, "train", theirs)
    assert any("BACKGROUND_Google" in note for note in dataset.notes)

"""A data set with planted mistakes: each is found, by features that are plain enough to be known."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits, load_sample_images
from torch import Tensor

from vitlab.core.preprocess import Preprocess
from vitlab.data.open import open_data
from vitlab.evaluation.contract import EvaluationError, Subject
from vitlab.evaluation.examination import Examination, examine
from vitlab.evaluation.subject import subject_from

CHANGED = ("train/3/5", "train/5/1", "test/7/0")


def pixels(images: Tensor) -> Tensor:
    return images.mean(dim=1).flatten(1)


def subject() -> Subject:
    return subject_from(pixels, name="pixels", preprocess=Preprocess(size=(8, 8)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Digits in two parts, three of them under the next class, with a photo among them and an unreadable file."""
    root = tmp_path_factory.mktemp("digits")
    images, labels = load_digits(return_X_y=True)
    for label in range(10):
        for number, levels in enumerate(images[labels == label][:30]):
            name = f"{'train' if number < 24 else 'test'}/{label}/{number % 24}"
            given = (label + 1) % 10 if name in CHANGED else label
            path = root / name.split("/")[0] / str(given) / f"{label}-{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray((levels.reshape(8, 8) * 15).astype(np.uint8)).save(path)
    Image.fromarray(load_sample_images().images[1][:200, :200]).save(root / "train" / "1" / "flower.png")
    (root / "train" / "1" / "broken.png").write_text("nothing")
    return root


@pytest.fixture(scope="module")
def found(folder: Path) -> Examination:
    return examine(open_data(folder, val_fraction=0), subject())


def test_changed_labels_come_first(found: Examination) -> None:
    assert found.labels is not None
    names = {"3-5.png", "5-1.png", "7-24.png"}
    first = [each for each in found.labels.suspects[:5] if Path(each.place.where).name in names]
    assert len(first) == 3
    assert {(each.place.label, each.predicted) for each in first} == {("4", "3"), ("6", "5"), ("8", "7")}
    assert found.labels.judged == found.num_features == 301
    assert found.labels.agreement > 0.9
    assert [each.margin for each in found.labels.suspects] == sorted(each.margin for each in found.labels.suspects)
    assert {each.place.split for each in first} == {"train", "test"}


def test_the_photo_among_digits_is_the_outlier(found: Examination) -> None:
    assert Path(found.outliers[0].place.where).name == "flower.png"
    assert found.outliers[0].times > 1.5


def test_unreadable_files_and_sizes_are_told(found: Examination) -> None:
    assert [Path(item.where).name for item in found.description.unreadable] == ["broken.png"]
    assert found.description.pictures is not None
    assert (found.description.pictures.median, found.description.pictures.largest) == ((8, 8), (200, 200))
    assert "pictures: median 8 x 8 pixels, from 8 x 8 to 200 x 200" in found.description.lines()


def test_features_of_some_are_enough_and_said(folder: Path) -> None:
    found = examine(open_data(folder, val_fraction=0), subject(), most=100)
    assert found.num_features == 100
    assert "Features were computed of 100 of 301 images, evenly spread; --most takes more." in found.notes


def test_cropped_leaks_are_found_by_features(tmp_path: Path) -> None:
    photos = [Image.fromarray(each) for each in load_sample_images().images]
    pieces = [photo.crop((x, y, x + 150, y + 150)) for photo in photos for x in range(0, 490, 160) for y in (0, 160)]
    for number, piece in enumerate(pieces):
        (tmp_path / "train" / "ab"[number % 2]).mkdir(parents=True, exist_ok=True)
        piece.save(tmp_path / "train" / "ab"[number % 2] / f"{number}.png")
        for name in "ab":
            (tmp_path / "test" / name).mkdir(parents=True, exist_ok=True)
    for number in (1, 5, 10, 12):
        pieces[number].crop((30, 0, 150, 130)).save(tmp_path / "test" / "ab"[number % 2] / f"{number}.png")
    dataset = open_data(tmp_path, val_fraction=0)
    assert examine(dataset).leaks == ()
    leaks = examine(dataset, subject()).leaks
    assert {(pair.kind, Path(pair.first.where).name, Path(pair.second.where).name) for pair in leaks} == {
        ("cropped", f"{number}.png", f"{number}.png") for number in (1, 5, 10, 12)
    }
    assert examine(dataset, subject(), near=1.1).copies == ()


def test_what_cannot_be_judged_is_said(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    pictures = rng.integers(0, 256, (24, 8, 8, 3), dtype=np.uint8)
    np.savez(tmp_path / "few.npz", images=pictures[:8], labels=np.arange(8) % 2)
    np.savez(tmp_path / "rare.npz", images=pictures, labels=np.arange(24) % 8)
    few = examine(open_data(tmp_path / "few.npz", val_fraction=0), subject())
    assert (few.labels, few.num_features) == (None, 0)
    assert few.notes == ("Labels and outliers were not looked at: that takes 20 images that can be read.",)
    rare = examine(open_data(tmp_path / "rare.npz", val_fraction=0), subject())
    assert rare.labels is None
    assert rare.notes == ("Labels were not looked at: that takes two classes with 5 images each.",)
    with pytest.raises(EvaluationError, match="must be at least 1"):
        examine(open_data(tmp_path / "few.npz", val_fraction=0), subject(), most=0)


def test_features_that_know_nothing_are_said_to_be_worth_little(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    pictures = rng.integers(0, 256, (60, 8, 8, 3), dtype=np.uint8)
    np.savez(tmp_path / "noise.npz", images=pictures, labels=np.arange(60) % 6)
    found = examine(open_data(tmp_path / "noise.npz", val_fraction=0), subject())
    assert found.labels is not None
    assert found.labels.agreement < 0.5
    assert "worth little: give another --model" in found.notes[0]

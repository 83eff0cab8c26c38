"""ImageNet-V2, -A, -R and -Sketch, in folders as their archives make them."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitlab.core.errors import DataError, UnknownNameError
from vitlab.core.imagenet import imagenet_classes
from vitlab.data.open import open_data

THOUSAND = [wordnet for wordnet, _ in imagenet_classes()]


def picture(path: Path, level: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((4, 4, 3), level, np.uint8)).save(path)


def test_v2_is_by_class_number_and_not_by_text(tmp_path: Path) -> None:
    """'10' comes before '2' as a text: each folder's images keep the class of their number."""
    root = tmp_path / "imagenetv2-matched-frequency-format-val"
    for number in (0, 2, 10, 999):
        for i in range(2):
            picture(root / str(number) / f"{i}.jpeg")
    dataset = open_data(root)
    assert dataset.name == "imagenet-v2"
    assert list(dataset.splits) == ["test"]
    assert [name[-10:-1] for name in dataset.classes] == [THOUSAND[number] for number in (0, 2, 10, 999)]
    test = dataset.splits["test"]
    for i in range(len(test)):
        number = int(Path(test.images.where(i)).parent.name)
        assert dataset.classes[test.labels[i]].endswith(f"({THOUSAND[number]})")


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        ("imagenetv2-threshold0.7-format-val", "imagenet-v2-threshold"),
        ("imagenetv2-top-images-format-val", "imagenet-v2-top"),
        ("imagenetv2-matched-frequency", "imagenet-v2"),
    ],
)
def test_the_three_of_v2(folder: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in (0, 1):
        picture(tmp_path / folder / str(number) / "0.jpeg")
    assert open_data(tmp_path / folder).name == name
    monkeypatch.setenv("VITLAB_DATA", str(tmp_path))
    assert open_data(name).name == name


@pytest.mark.parametrize(
    ("folder", "name"),
    [("imagenet-a", "imagenet-a"), ("imagenet-r", "imagenet-r"), ("sketch", "imagenet-sketch")],
)
def test_the_sets_by_wordnet_id(folder: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in (6, 1):
        picture(tmp_path / folder / THOUSAND[number] / "x.jpg")
    (tmp_path / folder / "README.txt").write_text("hello")
    dataset = open_data(tmp_path / folder)
    assert dataset.name == name
    assert dataset.classes == (f"goldfish ({THOUSAND[1]})", f"stingray ({THOUSAND[6]})")
    assert dataset.splits["test"].labels.tolist() == [0, 1]
    monkeypatch.setenv("VITLAB_DATA", str(tmp_path))
    assert open_data(name).fingerprint == dataset.fingerprint


def test_a_folder_of_another_name_is_an_image_folder(tmp_path: Path) -> None:
    for number in (6, 1):
        for i in range(10):
            picture(tmp_path / "imagenet-animals" / THOUSAND[number] / f"{i}.jpg")
    assert open_data(tmp_path / "imagenet-animals").name == "imagenet-animals"
    assert "train" in open_data(tmp_path / "imagenet-animals").splits


def test_what_is_missing_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITLAB_DATA", str(tmp_path))
    with pytest.raises(DataError, match="imagenet-a was not found.*natural-adv-examples"):
        open_data("imagenet-a")
    with pytest.raises(UnknownNameError, match="Did you mean .*imagenet-sketch"):
        open_data("imagenet-sketsch")

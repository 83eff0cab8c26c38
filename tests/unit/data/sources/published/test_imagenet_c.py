"""ImageNet-C in the folders of its archives."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitlab.core.errors import DataError
from vitlab.data.conditions import conditions_of, meaning
from vitlab.data.open import open_data

WNIDS = ("n01440764", "n01443537")
FOLDERS = {"noise/gaussian_noise": "gaussian_noise", "weather/fog": "fog", "extra/spatter": "spatter"}


def write(root: Path, folders: dict[str, str], skip: str = "") -> Path:
    for folder in folders:
        for severity in range(1, 6):
            for wnid in WNIDS:
                for i in range(2):
                    path = root / folder / str(severity) / wnid / f"ILSVRC2012_val_0000000{i}.JPEG"
                    if f"{folder}/{severity}" != skip:
                        path.parent.mkdir(parents=True, exist_ok=True)
                        Image.new("RGB", (4, 4)).save(path)
    return root


@pytest.mark.parametrize("flat", [False, True])
def test_each_image_has_its_condition(flat: bool, tmp_path: Path) -> None:
    folders = {name: name for name in FOLDERS.values()} if flat else FOLDERS
    dataset = open_data(write(tmp_path / "ImageNet-C", folders))
    assert dataset.name == "imagenet-c"
    assert [name[-10:-1] for name in dataset.classes] == list(WNIDS)
    test = dataset.splits["test"]
    conditions = conditions_of(test)
    assert len(test) == len(conditions) == 3 * 5 * 4
    for i in range(len(test)):
        corruption, severity, wnid = Path(test.images.where(i)).parts[-4:-1]
        assert meaning(int(conditions[i])) == (corruption, int(severity))
        assert dataset.classes[test.labels[i]].endswith(f"({wnid})")
    assert [meaning(number)[0] for number in dict.fromkeys(conditions.tolist())][::5] == [
        *("gaussian_noise", "fog", "spatter")  # in the order of the paper
    ]


def test_tiny_imagenet_c_has_its_own_name(tmp_path: Path) -> None:
    assert open_data(write(tmp_path / "Tiny-ImageNet-C", {"fog": "fog"})).name == "tiny-imagenet-c"


def test_a_severity_that_is_missing_is_said(tmp_path: Path) -> None:
    root = write(tmp_path / "imagenet-c", FOLDERS, skip="weather/fog/3")
    with pytest.raises(DataError, match="weather/fog/3"):
        open_data(root)
    (root / "weather/fog/3").mkdir()
    with pytest.raises(DataError, match="fog/3 has no class folders .*unpack fog again"):
        open_data(root)


def test_conditions_are_taken_with_their_images(tmp_path: Path) -> None:
    test = open_data(write(tmp_path / "imagenet-c", FOLDERS)).splits["test"]
    some = test.take([25, 3])
    np.testing.assert_array_equal(conditions_of(some), conditions_of(test)[[25, 3]])

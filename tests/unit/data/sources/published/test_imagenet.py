"""ImageNet's, ImageNet-21k's and Tiny-ImageNet's folders."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from vitlab.core.errors import DataError
from vitlab.data.contract import DataSet
from vitlab.data.open import open_data

WNIDS = ("n01440764", "n01443537", "n02119789")
NAMES = ("tench (n01440764)", "goldfish (n01443537)", "kit fox (n02119789)")
TRUTH = {f"ILSVRC2012_val_{i:08d}.JPEG": WNIDS[(2 * i) % 3] for i in range(1, 7)}


def picture(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (4, 4)).save(path, "JPEG")


def write_train(root: Path) -> None:
    for wnid in WNIDS:
        for i in range(2):
            picture(root / "train" / wnid / f"{wnid}_{i}.JPEG")


def write_flat(root: Path) -> None:
    for name in TRUTH:
        picture(root / "val" / name)


def val_labels(dataset: DataSet) -> dict[str, str]:
    val = dataset.splits["val"]
    return {Path(val.images.where(i)).name: WNIDS[NAMES.index(dataset.classes[val.labels[i]])] for i in range(len(val))}


def test_class_folders(tmp_path: Path) -> None:
    write_train(tmp_path)
    for wnid in WNIDS:
        picture(tmp_path / "val" / wnid / f"ILSVRC2012_val_0000000{WNIDS.index(wnid)}.JPEG")
    picture(tmp_path / "test" / "ILSVRC2012_test_00000001.JPEG")
    dataset = open_data(tmp_path)
    assert dataset.classes == NAMES
    assert {split: part.labels.tolist() for split, part in dataset.splits.items()} == {
        "train": [0, 0, 1, 1, 2, 2],
        "val": [0, 1, 2],
    }
    assert any("test has no labels" in note for note in dataset.notes)


def test_flat_val_with_the_devkit(tmp_path: Path) -> None:
    write_train(tmp_path)
    write_flat(tmp_path)
    devkit = tmp_path / "ILSVRC2012_devkit_t12" / "data"
    devkit.mkdir(parents=True)
    own = {"n02119789": 1, "n01443537": 2, "n01440764": 3}  # the devkit counts in an order of its own
    synsets = np.zeros((3, 1), [("ILSVRC2012_ID", "O"), ("WNID", "O"), ("words", "O"), ("num_children", "O")])
    for i, (wnid, number) in enumerate(own.items()):
        synsets[i, 0] = (float(number), wnid, "a fish, a", 0.0)
    savemat(devkit / "meta.mat", {"synsets": synsets})
    lines = [str(own[wnid]) for _, wnid in sorted(TRUTH.items())]
    (devkit / "ILSVRC2012_validation_ground_truth.txt").write_text("\n".join(lines) + "\n")
    assert val_labels(open_data(tmp_path)) == TRUTH
    (devkit / "ILSVRC2012_validation_ground_truth.txt").write_text("1\n2\n")
    with pytest.raises(DataError, match="has 2 labels for 6 images"):
        open_data(tmp_path)
    (devkit / "ILSVRC2012_validation_ground_truth.txt").write_text("9\n" * 6)
    with pytest.raises(DataError, match="do not fit each other"):
        open_data(tmp_path)


@pytest.mark.parametrize("given", ["", "ILSVRC/Data/CLS-LOC"])
def test_kaggles_archive(tmp_path: Path, given: str) -> None:
    base = tmp_path / "ILSVRC" / "Data" / "CLS-LOC"
    write_train(base)
    write_flat(base)
    rows = [f"{Path(name).stem},{wnid} 1 2 3 4 {wnid} 5 6 7 8 \n" for name, wnid in TRUTH.items()]
    (tmp_path / "LOC_val_solution.csv").write_text("ImageId,PredictionString\n" + "".join(rows))
    assert val_labels(open_data(tmp_path / given)) == TRUTH


@pytest.mark.parametrize("numbers", [False, True])
def test_flat_val_with_a_list(tmp_path: Path, numbers: bool) -> None:
    write_train(tmp_path)
    write_flat(tmp_path)
    lines = [f"{name} {WNIDS.index(wnid) if numbers else wnid}" for name, wnid in TRUTH.items()]
    (tmp_path / "val.txt").write_text("\n".join(lines))
    assert val_labels(open_data(tmp_path)) == TRUTH
    (tmp_path / "val.txt").write_text("\n".join(lines[1:]))
    with pytest.raises(DataError, match=r"no labels for 1 images .*: val/ILSVRC2012_val_00000001.JPEG"):
        open_data(tmp_path)
    (tmp_path / "val.txt").write_text("a b c\n")
    with pytest.raises(DataError, match="'a b c' is not a file and a class"):
        open_data(tmp_path)


def test_flat_val_without_labels(tmp_path: Path) -> None:
    write_train(tmp_path)
    write_flat(tmp_path)
    with pytest.raises(
        DataError, match=r"labels are missing: .*val has no class folders, and none of LOC_val_solution"
    ):
        open_data(tmp_path)


def test_val_alone(tmp_path: Path) -> None:
    write_flat(tmp_path)
    (tmp_path / "val.txt").write_text("\n".join(f"{name} {wnid}" for name, wnid in TRUTH.items()))
    dataset = open_data(tmp_path)
    assert list(dataset.splits) == ["val"]
    assert val_labels(dataset) == TRUTH


def test_tiny_imagenet(tmp_path: Path) -> None:
    root = tmp_path / "tiny-imagenet-200"
    for wnid in WNIDS:
        picture(root / "train" / wnid / "images" / f"{wnid}_0.JPEG")
        (root / "train" / wnid / f"{wnid}_boxes.txt").touch()
    truth = {f"val_{i}.JPEG": WNIDS[i % 3] for i in range(5)}
    for name in truth:
        picture(root / "val" / "images" / name)
    (root / "val" / "val_annotations.txt").write_text("".join(f"{n}\t{w}\t0\t32\t44\t62\n" for n, w in truth.items()))
    picture(root / "test" / "images" / "test_0.JPEG")
    for path in (root, tmp_path, tmp_path / "tiny"):
        if path.name == "tiny":
            root.rename(path)  # now only its list of labels tells
        dataset = open_data(path)
        assert dataset.name == "tiny-imagenet"
        assert "Read as Tiny-ImageNet's folders" in dataset.notes[0]
        assert val_labels(dataset) == truth
        assert dataset.splits["train"].labels.tolist() == [0, 1, 2]


def test_imagenet21k(tmp_path: Path) -> None:
    for split in ("train", "val"):
        for wnid in WNIDS:
            picture(tmp_path / "imagenet21k_resized" / f"imagenet21k_{split}" / wnid / "1.JPEG")
    (tmp_path / "imagenet21k_resized.tar.gz").touch()
    dataset = open_data(tmp_path)
    assert dataset.name == "imagenet21k"
    assert {split: len(part) for split, part in dataset.splits.items()} == {"train": 3, "val": 3}


def test_class_folders_at_the_root(tmp_path: Path) -> None:
    for wnid in WNIDS:
        picture(tmp_path / wnid / "1.JPEG")
        (tmp_path / f"{wnid}.tar").touch()  # the archive that it was unpacked from
    dataset = open_data(tmp_path, val_fraction=0)
    assert dataset.classes == NAMES
    assert any(note.startswith("3 files that are not images were left out: n01440764.tar") for note in dataset.notes)


def test_what_is_beside_the_class_folders_is_said(tmp_path: Path) -> None:
    write_train(tmp_path)
    wnid = next(path.name for path in (tmp_path / "train").iterdir())
    for name in (f"val/{wnid}/0.jpg", "val/dog/0.jpg", "val/1.jpg", "val/2.jpg", "train/3.jpg"):
        picture(tmp_path / name)
    dataset = open_data(tmp_path)
    assert len(dataset.splits["val"]) == 1
    notes = " ".join(dataset.notes)
    assert "dog is no WordNet id, and was left out" in notes
    assert f"2 images outside of the class folders of {tmp_path / 'val'} left out" in notes
    assert f"1 image outside of the class folders of {tmp_path / 'train'} left out" in notes
    picture(tmp_path / "validation" / wnid / "0.jpg")
    with pytest.raises(DataError, match="both val and validation"):
        open_data(tmp_path)


@pytest.mark.parametrize("content", ["ImageId,PredictionString\n".encode("utf-16"), b"a," + b"x" * 200_000])
def test_a_damaged_table_of_labels(tmp_path: Path, content: bytes) -> None:
    write_train(tmp_path)
    write_flat(tmp_path)
    (tmp_path / "LOC_val_solution.csv").write_bytes(content)
    with pytest.raises(DataError, match="is damaged"):
        open_data(tmp_path)

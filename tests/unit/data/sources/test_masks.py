"""Images with masks: folders, CamVid and Pets' trimaps, by small stand-ins of their layouts."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from vitlab.core.errors import DataError
from vitlab.data.contract import IGNORED, Array, DataSet, Masks
from vitlab.data.decoding import read_mask
from vitlab.data.open import describe, open_data

SIZE = (6, 8)


def write(path: Path, values: Array | None = None) -> None:
    """A picture, or a mask of these values."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((*SIZE, 3), 90, np.uint8) if values is None else values.astype(np.uint8)).save(path)


def both(images: Path, masks: Path, *names: str, values: tuple[int, ...] = (0, 1, 2)) -> None:
    for i, name in enumerate(names):
        write(images / f"{name}.jpg")
        write(masks / f"{name}.png", np.resize(np.array(values) if i == 0 else values[0], SIZE))


def masks_of(dataset: DataSet, split: str = "train") -> Masks:
    masks = dataset.splits[split].targets["mask"]
    assert isinstance(masks, Masks)
    return masks


@pytest.mark.parametrize("of", ["masks", "labels", "annotations"])
def test_two_folders(tmp_path: Path, of: str) -> None:
    both(tmp_path / "set" / "images", tmp_path / "set" / of, "a", "b", "c/d", values=(0, 3, 255, 7))
    write(tmp_path / "set" / "images" / "alone.jpg")
    write(tmp_path / "set" / of / "lonely.png", np.zeros(SIZE))
    dataset = open_data(tmp_path / "set", val_fraction=0)
    assert dataset.name == "set"
    assert dataset.classes == ()
    masks = masks_of(dataset)
    assert masks.classes == ("0", "3", "7")
    images = dataset.splits["train"].images
    for i in range(3):
        assert Path(images.where(i)).stem == Path(masks.images.where(i)).stem
    assert read_mask(masks, 0, SIZE)[0, :4].tolist() == [0, 1, IGNORED, 2]
    said = "\n".join(dataset.notes)
    assert "Read as images with masks" in said
    assert "1 images without a mask left out: images/alone.jpg." in said
    assert f"1 masks without an image left out: {of}/lonely.png." in said
    assert "masks: 3 classes of pixels (0, 3, 7)" in describe(dataset).lines()


@pytest.mark.parametrize("layout", ["{split}/images {split}/masks", "images/{split} annotations/{split}"])
def test_splits_inside(tmp_path: Path, layout: str) -> None:
    for split, names in (("training", "abc"), ("validation", "de")):
        images, masks = layout.format(split=split).split()
        both(tmp_path / images, tmp_path / masks, *names)
    (tmp_path / "classes.txt").write_text("sky\ntree\nroad\nnever\n")
    dataset = open_data(tmp_path)
    assert {split: len(part) for split, part in dataset.splits.items()} == {"train": 3, "val": 2}
    assert masks_of(dataset).classes == ("sky", "tree", "road", "never")
    assert read_mask(masks_of(dataset, "val"), 0, SIZE)[0, :3].tolist() == [0, 1, 2]


def test_a_part_is_held_out_with_its_masks(tmp_path: Path) -> None:
    both(tmp_path / "images", tmp_path / "masks", *(f"{i}" for i in range(40)))
    dataset = open_data(tmp_path, val_fraction=0.3)
    assert set(dataset.splits) == {"train", "val"}
    for name, split in dataset.splits.items():
        masks = masks_of(dataset, name)
        assert len(masks) == len(split)
        for i in range(len(split)):
            assert Path(split.images.where(i)).stem == Path(masks.images.where(i)).stem
    joined = open_data(f"arranged:train=train:{tmp_path}", val_fraction=0)
    assert len(masks_of(joined)) == 40


def test_black_and_white_masks_have_two_classes(tmp_path: Path) -> None:
    both(tmp_path / "images", tmp_path / "masks", "a", "b", values=(0, 255))
    masks = masks_of(open_data(tmp_path, val_fraction=0))
    assert masks.classes == ("0", "255")
    assert read_mask(masks, 0, SIZE)[0, :2].tolist() == [0, 1]


def test_fingerprints_follow_masks(tmp_path: Path) -> None:
    both(tmp_path / "images", tmp_path / "masks", "a", "b")
    first = open_data(tmp_path, val_fraction=0).fingerprint
    assert open_data(tmp_path, val_fraction=0).fingerprint == first
    write(tmp_path / "masks" / "b.png", np.arange(48).reshape(SIZE) % 3)
    assert open_data(tmp_path, val_fraction=0).fingerprint != first


def camvid(root: Path, **splits: int) -> Path:
    for split, count in splits.items():
        for i in range(count):
            write(root / split / f"{split}_{i}.png")
            write(root / f"{split}annot" / f"{split}_{i}.png", np.resize(np.arange(12), SIZE))
    return root


def test_camvid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = camvid(tmp_path / "data" / "CamVid", train=3, val=2, test=1)
    monkeypatch.setenv("VITLAB_DATA", str(tmp_path / "data"))
    for name in (root, "camvid"):
        dataset = open_data(name)
        assert dataset.name == "camvid"
        assert {split: len(part) for split, part in dataset.splits.items()} == {"train": 3, "val": 2, "test": 1}
        masks = masks_of(dataset)
        assert (len(masks.classes), masks.classes[0], masks.classes[10]) == (11, "Sky", "Bicyclist")
        assert read_mask(masks, 0, SIZE).ravel()[:12].tolist() == [*range(11), IGNORED]


def pets(root: Path, *, trimaps: bool = True) -> Path:
    (root / "annotations").mkdir(parents=True)
    for split, names in (("trainval", ("Abyssinian_1", "pug_1", "pug_2")), ("test", ("Abyssinian_2", "pug_3"))):
        lines = [f"{name} {1 if name.startswith('A') else 2} 1 1" for name in names]
        (root / "annotations" / f"{split}.txt").write_text("\n".join(lines))
        for name in names:
            write(root / "images" / f"{name}.jpg")
            if trimaps:
                write(root / "annotations" / "trimaps" / f"{name}.png", np.resize(np.array([1, 2, 3]), SIZE))
    return root


def test_pets_have_labels_and_masks(tmp_path: Path) -> None:
    plain = open_data(pets(tmp_path / "plain", trimaps=False), val_fraction=0)
    assert set(plain.splits["train"].targets) == {"label"}
    dataset = open_data(pets(tmp_path / "pets"), val_fraction=0)
    assert dataset.classes == ("Abyssinian", "pug")
    assert dataset.splits["train"].labels.tolist() == [0, 1, 1]
    masks = masks_of(dataset, "test")
    assert masks.classes == ("pet", "background")
    assert read_mask(masks, 1, SIZE)[0, :3].tolist() == [0, 1, IGNORED]
    assert dataset.fingerprint == plain.fingerprint  # runs on labels of before resume
    assert "masks: 2 classes of pixels (pet, background)" in describe(dataset).lines()
    (tmp_path / "pets" / "annotations" / "trimaps" / "pug_3.png").unlink()
    without = open_data(tmp_path / "pets", val_fraction=0)
    assert set(without.splits["train"].targets) == {"label"}
    assert any(
        "1 trimaps are missing, so there are no masks: annotations/trimaps/pug_3.png" in n for n in without.notes
    )


def test_class_folders_that_look_alike_are_classes(tmp_path: Path) -> None:
    """Folders of pictures called images and labels, but without a name in common."""
    for name in ("images/1", "images/2", "labels/3", "labels/4"):
        write(tmp_path / f"{name}.png")
    assert open_data(tmp_path, val_fraction=0).classes == ("images", "labels")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda root: [write(root / "masks" / f"{n}.png", np.ones(SIZE)) for n in "ab"], "have one value only"),
        (lambda root: write(root / "masks" / "a.bmp", np.zeros(SIZE)), "holds a in two formats"),
    ],
)
def test_bad_masks(tmp_path: Path, spoil: Any, message: str) -> None:
    both(tmp_path / "images", tmp_path / "masks", "a", "b")
    spoil(tmp_path)
    with pytest.raises(DataError, match=message) as raised:
        open_data(tmp_path)
    assert "\n" not in str(raised.value)

"""Arrays in .npy and .npz files."""

import os
import pickle
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from damaging import write_bomb
from vitlab.core.errors import DataError, ImageError
from vitlab.data.contract import Array
from vitlab.data.open import open_data
from vitlab.data.sources.arrays import role
from vitlab.data.sources.pixels import MappedPixels, Pixels

RANDOM = np.random.default_rng(0)


def pixels(*shape: int) -> Array:
    return RANDOM.integers(0, 256, shape, np.uint8)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_keras_names(tmp_path: Path, save: object) -> None:
    x, y = pixels(8, 4, 5, 3), np.arange(8) % 3
    save(tmp_path / "set.npz", x_train=x[:6], y_train=y[:6], x_test=x[6:], y_test=y[6:])  # pyright: ignore[reportCallIssue]
    dataset = open_data(tmp_path / "set.npz")
    assert list(dataset.splits) == ["train", "test"]
    assert dataset.classes == ("0", "1", "2")
    train = dataset.splits["train"]
    assert isinstance(train.images, MappedPixels if save is np.savez else Pixels)
    assert all((train.images.read(i) == x[i]).all() for i in range(6))
    assert (dataset.splits["test"].images.read(1) == x[7]).all()
    assert train.labels.tolist() == y[:6].tolist()


def test_a_folder_of_npy(tmp_path: Path) -> None:
    x = pixels(6, 4, 4)
    np.save(tmp_path / "images.npy", x)
    np.save(tmp_path / "labels.npy", np.array(["b", "a", "b", "a10", "a2", "b"]))
    for path in (tmp_path, tmp_path / "images.npy"):
        dataset = open_data(path, val_fraction=0)
        assert dataset.classes == ("a", "a2", "a10", "b")
        assert dataset.splits["train"].labels.tolist() == [3, 0, 3, 2, 1, 3]
        assert (dataset.splits["train"].images.read(5) == x[5]).all()


def test_medmnist_names(tmp_path: Path) -> None:
    arrays = {}
    for split, num in (("train", 6), ("val", 3), ("test", 3)):
        arrays |= {f"{split}_images": pixels(num, 4, 4), f"{split}_labels": np.arange(num)[:, None] % 3}
    np.savez(tmp_path / "med.npz", **arrays)
    dataset = open_data(tmp_path / "med.npz")
    assert {split: part.labels.tolist() for split, part in dataset.splits.items()} == {
        "train": [0, 1, 2, 0, 1, 2],
        "val": [0, 1, 2],
        "test": [0, 1, 2],
    }


def test_mapped_pixels_are_not_pickled(tmp_path: Path) -> None:
    x = pixels(64, 32, 32, 3)
    np.savez(tmp_path / "set.npz", images=x, labels=np.arange(64) % 2)
    images = open_data(tmp_path / "set.npz", val_fraction=0).splits["train"].images
    images.read(0)
    packed = pickle.dumps(images)
    assert len(packed) < 2000
    assert (pickle.loads(packed).read(63) == x[63]).all()
    assert images.read(5).flags.writeable  # pyright: ignore[reportAttributeAccessIssue]  a copy, not the file


def test_channels_first_and_fortran_order(tmp_path: Path) -> None:
    x = pixels(5, 3, 6, 7)
    np.save(tmp_path / "images.npy", np.asfortranarray(x))
    np.save(tmp_path / "labels.npy", np.arange(5) % 2)
    images = open_data(tmp_path, val_fraction=0).splits["train"].images
    assert all((images.read(i) == np.moveaxis(x[i], 0, -1)).all() for i in range(5))


def test_other_kinds_of_values(tmp_path: Path) -> None:
    x = pixels(4, 3, 3)
    for kind, stored in {
        "floats": (x / 255).astype(np.float32),
        "ints": x.astype(np.int64),
        "sixteen": (x.astype(np.uint16) * 257).astype(">u2"),
        "grey": x[..., None],
    }.items():
        np.savez(tmp_path / f"{kind}.npz", images=stored, labels=[0, 1, 0, 1])
        images = open_data(tmp_path / f"{kind}.npz", val_fraction=0).splits["train"].images
        for i in range(4):
            got = images.read(i)
            assert isinstance(got, np.ndarray)
            assert got.dtype == np.uint8
            assert (got.reshape(3, 3, -1) == x[i][..., None]).all(), kind


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_sixteen_bits_are_told_by_the_whole_array(tmp_path: Path, save: object) -> None:
    bytes_ = pixels(5, 3, 3)
    wide = np.zeros((5, 3, 3), np.uint16)
    wide[1], wide[4] = 255, 65535  # a dark picture beside a bright one is 16 bits too
    for values, expected in (
        (bytes_.astype(np.uint16), bytes_),
        (wide, (wide / 257).round()),
        (bytes_ * 0, bytes_ * 0),
    ):
        for order in "<>":
            save(tmp_path / "a.npz", images=values.astype(f"{order}u2"), labels=[0, 1, 0, 1, 0])  # pyright: ignore[reportCallIssue]
            images = pickle.loads(pickle.dumps(open_data(tmp_path / "a.npz", val_fraction=0).splits["train"].images))
            for i in range(5):
                assert (np.asarray(images.read(i)).reshape(3, 3, -1) == expected[i][..., None]).all()


def test_a_sample_tells_sixteen_bits(tmp_path: Path) -> None:
    values = np.zeros((200, 2, 2), np.uint16)
    values[1] = 300  # not among the 64 that are looked at
    np.savez(tmp_path / "a.npz", images=values, labels=np.arange(200) % 2)
    images = open_data(tmp_path / "a.npz", val_fraction=0).splits["train"].images
    with pytest.raises(ImageError, match=r"image 1 of .* from 300 to 300: save it as uint8"):
        images.read(1)


def test_transparency_is_laid_on_white(tmp_path: Path) -> None:
    x = pixels(2, 3, 3, 4)
    np.savez(tmp_path / "a.npz", images=x, labels=[0, 1])
    white = Image.new("RGBA", (3, 3), "white")
    white.alpha_composite(Image.fromarray(x[1]))
    got = open_data(tmp_path / "a.npz", val_fraction=0).splits["train"].images.read(1)
    assert (np.asarray(white.convert("RGB")) == got).all()


def test_several_labels(tmp_path: Path) -> None:
    columns = np.array([[1, 0, 1], [0, 0, 0], [0, 1, 0]])
    np.savez(tmp_path / "a.npz", images=pixels(3, 2, 2), labels=columns, classes=np.array(["x", "y", "z"]))
    dataset = open_data(tmp_path / "a.npz", val_fraction=0)
    assert dataset.multi_label
    assert dataset.classes == ("x", "y", "z")
    assert (dataset.splits["train"].labels == columns).all()
    np.savez(tmp_path / "b.npz", images=pixels(3, 2, 2), labels=np.eye(3, dtype=np.float32)[[2, 0, 1]])
    dataset = open_data(tmp_path / "b.npz", val_fraction=0)
    assert not dataset.multi_label
    assert dataset.splits["train"].labels.tolist() == [2, 0, 1]


def test_class_names_beside(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=pixels(3, 2, 2), labels=[0, 2, 2])
    (tmp_path / "classes.txt").write_text("no\nperhaps\nyes\n")
    dataset = open_data(tmp_path / "a.npz", val_fraction=0)
    assert dataset.classes == ("no", "perhaps", "yes")
    assert dataset.splits["train"].labels.tolist() == [0, 2, 2]


def test_labels_that_count_from_one(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=pixels(4, 2, 2), labels=np.array([1.0, 3, 10, 1]))
    dataset = open_data(tmp_path / "a.npz", val_fraction=0)
    assert dataset.classes == ("1", "3", "10")
    assert dataset.splits["train"].labels.tolist() == [0, 1, 2, 0]


class Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch /tmp/vitlab-evil-array",)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"a": np.zeros(3)}, "holds a; expected were images and labels"),
        ({"images": pixels(3, 2, 2)}, "holds images; expected"),
        ({"images": pixels(3, 2, 2), "labels": [0, 1]}, "holds 3 pictures, but 'labels' 2 labels"),
        ({"images": pixels(3, 12), "labels": [0, 1, 0]}, r"not \[3, 12\]"),
        ({"images": pixels(3, 5, 5, 5), "labels": [0, 1, 0]}, r"not \[3, 5, 5, 5\]"),
        ({"images": np.full((3, 2, 2), 200.0), "labels": [0, 1, 0]}, r"must be in \[0, 1\].* save them as uint8"),
        ({"images": np.full((3, 2, 2), np.nan), "labels": [0, 1, 0]}, r"must be in \[0, 1\]"),
        ({"images": np.full((3, 2, 2), "x"), "labels": [0, 1, 0]}, "must be numbers"),
        ({"images": pixels(3, 2, 2), "labels": [0, -1, 0]}, "negative"),
        ({"images": pixels(3, 2, 2), "labels": [0, 0.5, 0]}, "whole numbers or texts"),
        ({"images": pixels(3, 2, 2), "labels": [0, np.nan, 0]}, "whole numbers or texts"),
        ({"images": pixels(3, 2, 2), "labels": np.array([0, 2**63, 1], np.uint64)}, "9223372036854775808 is too large"),
        ({"images": pixels(3, 2, 2), "labels": [0, 1e30, 1]}, "too large for a class number"),
        (
            {"images": pixels(3, 2, 2), "labels": [0, 1, 2], "classes": ["a", "a", "c"]},
            "'classes' names a twice: give each class a name of its own",
        ),
        (
            {"images": pixels(3, 2, 2), "labels": [[0, 1], [1, 1], [1, 0]], "class_names": ["a", "a"]},
            "'class_names' names a twice",
        ),
        ({"images": pixels(3, 2, 2), "labels": [[0, 2], [0, 1], [1, 1]]}, "columns of 0 and 1"),
        ({"images": pixels(3, 2, 2), "labels": [4, 4, 4]}, "one class only, '4'"),
        (
            {"images": pixels(3, 2, 2), "labels": [0, 1, 2], "classes": ["a", "b"]},
            "labels 2 are not among the 2 classes",
        ),
        ({"images": pixels(3, 2, 2), "x": pixels(3, 2, 2), "labels": [0, 1, 2]}, "several arrays of the same meaning"),
        ({"images": pixels(3, 2, 2), "labels": np.array([Evil()] * 3, object)}, "could run code"),
    ],
)
def test_bad_arrays(tmp_path: Path, arrays: dict[str, Array], message: str) -> None:
    np.savez(tmp_path / "a.npz", **arrays)  # pyright: ignore[reportArgumentType]
    with pytest.raises(DataError, match=message):
        open_data(tmp_path / "a.npz")
    assert not Path("/tmp/vitlab-evil-array").exists()


def test_damaged_files(tmp_path: Path) -> None:
    (tmp_path / "a.npz").write_bytes(b"not a zip")
    with pytest.raises(DataError, match="damaged"):
        open_data(tmp_path / "a.npz")
    with zipfile.ZipFile(tmp_path / "b.npz", "w") as archive:
        archive.writestr("images.npy", b"no array")
    with pytest.raises(DataError, match="damaged"):
        open_data(tmp_path / "b.npz")
    (tmp_path / "c").mkdir()
    np.save(tmp_path / "c" / "images.npy", pixels(10, 8, 8))
    np.save(tmp_path / "c" / "labels.npy", np.arange(10) % 2)
    whole = (tmp_path / "c" / "images.npy").read_bytes()
    (tmp_path / "c" / "images.npy").write_bytes(whole[:-100])
    with pytest.raises(DataError, match="cut off: 100 bytes are missing"):
        open_data(tmp_path / "c")


def test_values_out_of_range_are_told_when_read(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=np.array([[[0]], [[300]]]), labels=[0, 1])
    images = open_data(tmp_path / "a.npz", val_fraction=0).splits["train"].images
    with pytest.raises(ImageError, match=r"image 1 of .* from 300 to 300"):
        images.read(1)


def test_fingerprints(tmp_path: Path) -> None:
    x, y = pixels(200, 4, 4), np.arange(200) % 2
    found = set()
    changed = x.copy()
    changed[77, 0, 0] ^= 1
    for pictures, labels in ((x, y), (changed, y), (x, 1 - y), (x[:9], y[:9])):
        np.savez(tmp_path / "a.npz", images=pictures, labels=labels)
        found.add(open_data(tmp_path / "a.npz").fingerprint)
    assert len(found) == 4
    np.savez_compressed(tmp_path / "b.npz", images=x, labels=y)
    assert open_data(tmp_path / "b.npz").fingerprint in found


@pytest.mark.parametrize(
    ("name", "meaning"),
    [
        ("x_train", ("images", "train")),
        ("X", ("images", "train")),
        ("test-labels", ("labels", "test")),
        ("valid_images", ("images", "val")),
        ("train", None),
        ("x_ray", None),
        ("train_test_x", None),
    ],
)
def test_roles(name: str, meaning: tuple[str, str] | None) -> None:
    assert role(name) == meaning


def test_arrays_that_inflate_beyond_reason(tmp_path: Path) -> None:
    write_bomb(tmp_path / "bomb.npz", "images", 2 * 10**9)
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match=r"bomb\.npz is damaged: its arrays claim 2e\+09 bytes, and the file has"):
            open_data(tmp_path / "bomb.npz")
        assert tracemalloc.get_traced_memory()[1] < 10**7
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("header", [b"{'descr': '|u1', }}", b"{'descr': ('", b"\xff", b"[" * 200])
def test_headers_that_are_no_description(tmp_path: Path, header: bytes) -> None:
    np.save(tmp_path / "labels.npy", np.zeros(3, np.uint8))
    magic = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little")
    (tmp_path / "images.npy").write_bytes(magic + header + bytes(48))
    with pytest.raises(DataError, match=r"images\.npy is damaged, or not an array of NumPy's: .+\.$"):
        open_data(tmp_path)

"""MNIST and Fashion-MNIST in IDX files."""

import gzip
import pickle
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from peers import torchvision
from vitlab.core.errors import DataError
from vitlab.data.contract import Array
from vitlab.data.open import open_data
from vitlab.data.sources.pixels import MappedPixels

RANDOM = np.random.default_rng(0)


def idx(values: Array) -> bytes:
    header = struct.pack(f">HBB{values.ndim}I", 0, 8, values.ndim, *values.shape)
    return header + values.astype(np.uint8).tobytes()


def write(
    root: Path, end: str = "", first: tuple[int, ...] = (5, 0, 4, 1, 9, 2, 1, 3), joint: str = "-"
) -> dict[str, Any]:
    root.mkdir(parents=True, exist_ok=True)
    written = {}
    for prefix, num in (("train", 30), ("t10k", 10)):
        images = RANDOM.integers(0, 256, (num, 28, 28), np.uint8)
        labels = np.concatenate([first, np.arange(num) % 10])[:num].astype(np.uint8)
        if prefix == "t10k":
            labels = np.arange(10, dtype=np.uint8)
        for name, data in ((f"images{joint}idx3", idx(images)), (f"labels{joint}idx1", idx(labels))):
            (root / f"{prefix}-{name}-ubyte{end}").write_bytes(gzip.compress(data) if end else data)
        written[prefix] = images, labels
    return written


@pytest.mark.parametrize(("name", "folder"), [("mnist", "MNIST"), ("fashion-mnist", "FashionMNIST")])
def test_plain_files_are_read_as_torchvision_reads_them(tmp_path: Path, name: str, folder: str) -> None:
    write(tmp_path / folder / "raw")
    reference = getattr(torchvision.datasets, folder)
    dataset = open_data(tmp_path)
    assert dataset.name == name
    for split, part in dataset.splits.items():
        theirs = reference(str(tmp_path), train=split == "train")
        assert part.labels.tolist() == theirs.targets.tolist()
        assert all((part.images.read(i) == theirs.data[i].numpy()).all() for i in range(len(part)))
        if name == "fashion-mnist":
            assert list(dataset.classes) == theirs.classes
    images = dataset.splits["train"].images
    assert isinstance(images, MappedPixels)
    assert len(pickle.dumps(images)) < 2000


@pytest.mark.parametrize("joint", ["-", "."])
def test_gzipped(tmp_path: Path, joint: str) -> None:
    written = write(tmp_path / "m", ".gz", joint=joint)
    dataset = open_data(tmp_path / "m")
    assert dataset.name == "mnist"
    assert dataset.classes == tuple("0123456789")
    for split, prefix in (("train", "train"), ("test", "t10k")):
        images, labels = written[prefix]
        assert dataset.splits[split].labels.tolist() == labels.tolist()
        assert (dataset.splits[split].images.read(4) == images[4]).all()


def test_fashion_is_known_by_its_labels(tmp_path: Path) -> None:
    write(tmp_path / "m", first=(9, 0, 0, 3, 0, 2, 7, 2))
    dataset = open_data(tmp_path / "m")
    assert dataset.name == "fashion-mnist"
    assert dataset.classes[9] == "Ankle boot"


def test_the_nearest_folder_tells(tmp_path: Path) -> None:
    write(tmp_path / "fashion-project" / "MNIST" / "raw")
    assert open_data(tmp_path / "fashion-project" / "MNIST" / "raw").name == "mnist"


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("train-images-idx3-ubyte", lambda data: data[:-1], "23,535 bytes where its header tells 23,536"),
        ("train-images-idx3-ubyte", lambda data: data + b"x", "23,537 bytes where its header tells 23,536"),
        ("train-images-idx3-ubyte", lambda data: data[:9], "cut off in its header"),
        ("train-images-idx3-ubyte", lambda data: b"\x00\x00\x0d\x03" + data[4:], "begins with 00 00 0d 03"),
        ("train-images-idx3-ubyte", lambda _: b"", "begins with nothing"),
        ("train-labels-idx1-ubyte", lambda data: data[:4] + struct.pack(">I", 29) + data[8:-1], "30 pictures, but"),
        ("train-labels-idx1-ubyte", lambda data: data[:-1] + b"\x0a", "the label 10 is none of 0 to 9"),
        ("t10k-labels-idx1-ubyte", None, "of t10k there are no labels"),
        ("t10k-images-idx3-ubyte", None, "of t10k there are no images"),
    ],
)
def test_damaged_files(tmp_path: Path, file: str, change: Any, message: str) -> None:
    write(tmp_path / "m")
    path = tmp_path / "m" / file
    if change is None:
        path.unlink()
    else:
        path.write_bytes(change(path.read_bytes()))
    with pytest.raises(DataError, match=message):
        open_data(tmp_path / "m")


def test_damaged_gzip(tmp_path: Path) -> None:
    write(tmp_path / "m", ".gz")
    path = tmp_path / "m" / "train-images-idx3-ubyte.gz"
    for change in (path.read_bytes()[:-10], b"not gzip", path.read_bytes()[:60] + b"xxxx" + path.read_bytes()[64:]):
        path.write_bytes(change)
        with pytest.raises(DataError, match="train-images-idx3-ubyte.gz is damaged"):
            open_data(tmp_path / "m")


def test_train_alone(tmp_path: Path) -> None:
    write(tmp_path / "m")
    for file in (tmp_path / "m").glob("t10k*"):
        file.unlink()
    dataset = open_data(tmp_path / "m", val_fraction=0.2)
    assert list(dataset.splits) == ["train", "val"]
    assert any("no test part" in note for note in dataset.notes)


@pytest.mark.parametrize("claimed", [10, 2**32 - 1])
def test_a_gzip_that_inflates_beyond_what_it_says_or_reason(tmp_path: Path, claimed: int) -> None:
    """64 MiB of zeros in 64 kB, of which no more is inflated than the header tells."""
    write(tmp_path / "m", ".gz")
    path = tmp_path / "m" / "train-labels-idx1-ubyte.gz"
    path.write_bytes(gzip.compress(struct.pack(">HBBI", 0, 8, 1, claimed) + bytes(1 << 26), 9))
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match=r"train-labels-idx1-ubyte\.gz is damaged: .*its header tells"):
            open_data(tmp_path / "m")
        assert tracemalloc.get_traced_memory()[1] < 10**7
    finally:
        tracemalloc.stop()

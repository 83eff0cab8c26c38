"""CIFAR-10 and CIFAR-100 in their authors' files, written here byte by byte as Python 2 wrote them."""

import os
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest

from peers import torchvision
from vitlab.core.errors import DataError
from vitlab.data.contract import Array
from vitlab.data.open import open_data
from vitlab.data.sources.published.pickles import read_pickle

RANDOM = np.random.default_rng(0)
COARSE, FINE = [f"coarse{i}" for i in range(20)], [f"fine{i}" for i in range(100)]
TEN = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


def python2(value: object) -> bytes:
    """Protocol 2 as Python 2's cPickle writes it: texts are SHORT_BINSTRING or BINSTRING."""
    return b"\x80\x02" + _python2(value) + b"."


def _python2(value: object) -> bytes:
    match value:
        case str() | bytes():
            data = value.encode() if isinstance(value, str) else value
            return b"U" + bytes([len(data)]) + data if len(data) < 256 else b"T" + struct.pack("<i", len(data)) + data
        case bool():
            return b"\x88" if value else b"\x89"
        case None:
            return b"N"
        case int():
            return b"J" + struct.pack("<i", value)
        case list():
            return b"](" + b"".join(map(_python2, value)) + b"e"
        case tuple():
            return b"(" + b"".join(map(_python2, value)) + b"t"
        case dict():
            return b"}(" + b"".join(_python2(key) + _python2(item) for key, item in value.items()) + b"u"
        case np.ndarray():
            dtype = b"cnumpy\ndtype\n" + _python2((value.dtype.str[1:], 0, 1)) + b"R"
            dtype += _python2((3, "|", None, None, None, -1, -1, 0)) + b"b"
            made = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n" + _python2((0,)) + _python2("b") + b"tR"
            return (
                made + b"(" + _python2(1) + _python2(value.shape) + dtype + b"\x89" + _python2(value.tobytes()) + b"tb"
            )
        case _:
            raise AssertionError(value)


def rows(num: int) -> tuple[Array, list[int]]:
    return RANDOM.integers(0, 256, (num, 3072), np.uint8), RANDOM.permutation(num).tolist()


def write_cifar10(root: Path, meta: bool = True) -> dict[str, tuple[Array, list[int]]]:
    root.mkdir(parents=True)
    content = {f"data_batch_{i}": rows(10) for i in range(1, 6)} | {"test_batch": rows(10)}
    for name, (data, labels) in content.items():
        batch = {"batch_label": "training batch 1 of 5", "labels": labels, "data": data, "filenames": ["a.png"] * 10}
        (root / name).write_bytes(python2(batch))
    if meta:
        (root / "batches.meta").write_bytes(python2({"num_cases_per_batch": 10, "label_names": TEN, "num_vis": 3072}))
    return content


def unchecked(monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.setattr(torchvision.datasets.cifar, "check_integrity", lambda *_: True)
    return torchvision.datasets


def test_cifar10_is_read_as_torchvision_reads_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_cifar10(tmp_path / "cifar-10-batches-py")
    reference = unchecked(monkeypatch)
    for path in (tmp_path / "cifar-10-batches-py", tmp_path):
        dataset = open_data(path)
        assert dataset.name == "cifar10"
        assert list(dataset.classes) == TEN
        assert list(dataset.splits) == ["train", "test"]
        for split, part in dataset.splits.items():
            theirs = reference.CIFAR10(str(tmp_path), train=split == "train")  # pyright: ignore[reportAttributeAccessIssue]
            assert part.labels.tolist() == theirs.targets
            assert all((part.images.read(i) == theirs.data[i]).all() for i in range(len(part)))
            assert dataset.classes == tuple(theirs.classes)


def test_cifar100_is_read_as_torchvision_reads_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "cifar-100-python"
    root.mkdir()
    for name, num in (("train", 100), ("test", 100)):
        data, labels = rows(num)
        content = {"filenames": ["x"] * num, "fine_labels": labels, "coarse_labels": [0] * num, "data": data}
        (root / name).write_bytes(python2(content))
    (root / "meta").write_bytes(python2({"fine_label_names": FINE, "coarse_label_names": COARSE}))
    reference = unchecked(monkeypatch)
    dataset = open_data(root)
    assert dataset.name == "cifar100"
    for split, part in dataset.splits.items():
        theirs = reference.CIFAR100(str(tmp_path), train=split == "train")  # pyright: ignore[reportAttributeAccessIssue]
        assert part.labels.tolist() == theirs.targets
        assert all((part.images.read(i) == theirs.data[i]).all() for i in range(len(part)))
        assert list(dataset.classes) == theirs.classes


def test_binary_versions(tmp_path: Path) -> None:
    python = write_cifar10(tmp_path / "cifar-10-batches-py")
    binary = tmp_path / "cifar-10-batches-bin"
    binary.mkdir()
    for name, (data, labels) in python.items():
        (binary / f"{name}.bin").write_bytes(np.column_stack([np.array(labels, np.uint8), data]).tobytes())
    (binary / "batches.meta.txt").write_text("\n".join(TEN) + "\n\n")
    ours, theirs = open_data(binary), open_data(tmp_path / "cifar-10-batches-py")
    assert ours.fingerprint == theirs.fingerprint  # the same classes, labels and pixels

    hundred = tmp_path / "cifar-100-binary"
    hundred.mkdir()
    data, labels = rows(100)
    for name in ("train", "test"):
        columns = [np.full(100, 7, np.uint8), np.array(labels, np.uint8), data]
        (hundred / f"{name}.bin").write_bytes(np.column_stack(columns).tobytes())
    (hundred / "fine_label_names.txt").write_text("\n".join(FINE))
    dataset = open_data(hundred)
    assert dataset.classes == tuple(FINE)
    assert dataset.splits["train"].labels.tolist() == labels
    assert (dataset.splits["test"].images.read(3) == data[3].reshape(3, 32, 32).transpose(1, 2, 0)).all()


def test_beside_their_archives(tmp_path: Path) -> None:
    python = write_cifar10(tmp_path / "ten" / "cifar-10-batches-py")
    binary = tmp_path / "binary" / "cifar-10-batches-bin"
    binary.mkdir(parents=True)
    for name, (data, labels) in python.items():
        (binary / f"{name}.bin").write_bytes(np.column_stack([np.array(labels, np.uint8), data]).tobytes())
    (binary / "batches.meta.txt").write_text("\n".join(TEN))
    data, labels = rows(100)
    hundred, bits = tmp_path / "hundred" / "cifar-100-python", tmp_path / "bits" / "cifar-100-binary"
    for root in (hundred, bits):
        root.mkdir(parents=True)
    for name in ("train", "test"):
        (hundred / name).write_bytes(python2({"fine_labels": labels, "coarse_labels": [0] * 100, "data": data}))
        columns = [np.full(100, 7, np.uint8), np.array(labels, np.uint8), data]
        (bits / f"{name}.bin").write_bytes(np.column_stack(columns).tobytes())
    (hundred / "meta").write_bytes(python2({"fine_label_names": FINE, "coarse_label_names": COARSE}))
    (bits / "fine_label_names.txt").write_text("\n".join(FINE))
    for folder, archive in (
        ("ten", "cifar-10-python.tar.gz"),
        ("binary", "cifar-10-binary.tar.gz"),
        ("hundred", "cifar-100-python.tar.gz"),
        ("bits", "cifar-100-binary.tar.gz"),
    ):
        (tmp_path / folder / archive).touch()
        dataset = open_data(tmp_path / folder)
        ten = folder in ("ten", "binary")
        assert dataset.classes == tuple(TEN if ten else FINE)
        expected = python["test_batch"][1] if ten else labels
        assert dataset.splits["test"].labels.tolist() == expected
        picture = (python["test_batch"][0] if ten else data)[3].reshape(3, 32, 32).transpose(1, 2, 0)
        assert (dataset.splits["test"].images.read(3) == picture).all()


class Evil:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {self.path}",)


def test_a_malicious_pickle_does_not_run(tmp_path: Path) -> None:
    root, trace = tmp_path / "cifar-10-batches-py", tmp_path / "it-ran"
    write_cifar10(root)
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        (root / "data_batch_2").write_bytes(pickle.dumps({b"data": Evil(trace), b"labels": [1]}, protocol))
        with pytest.raises(
            DataError, match=r"data_batch_2 is not a CIFAR file: it asks for \w+\.system; it was not run"
        ):
            open_data(root)
    write_meta = root / "batches.meta"
    (root / "data_batch_2").unlink()
    (root / "data_batch_2").write_bytes((root / "data_batch_1").read_bytes())
    write_meta.write_bytes(pickle.dumps({"label_names": Evil(trace)}, 2))
    with pytest.raises(DataError, match="it was not run"):
        open_data(root)
    assert not trace.exists()


@pytest.mark.parametrize(
    "code",
    [
        b"cbuiltins\neval\n(U\x01" + b"1" + b"tR.",  # a builtin
        b"cnumpy.core.multiarray\nscalar\n.",
        b"(inumpy\nload\n.",  # INST
        b"\x82\x01.",  # an extension code
        b"Pid\n.",  # a persistent object
        b"(lp0\n0.",  # nothing on the stack
        b"}.x"[:1],  # cut off
        b"",
        b"\x80\xff.",
        python2([1, 2]),  # no dictionary
        python2({"data": np.zeros((2, 3), np.uint8)})[:-20],
        python2({"data": np.zeros(3, np.float32)}),
        python2({"data": np.zeros(3, np.uint8)}).replace(_python2((3,)), _python2((4,))),  # a shape that lies
        python2({1: 2}),
    ],
)
def test_refused_pickles(tmp_path: Path, code: bytes) -> None:
    (tmp_path / "x").write_bytes(code)
    with pytest.raises(DataError, match=r"x is (damaged, or )?not a CIFAR file") as raised:
        read_pickle(tmp_path / "x")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("name", [b"numpy\nndarray", b"numpy.core.multiarray\n_reconstruct", b"_codecs\nencode"])
@pytest.mark.parametrize("state", [b"}U\x05_callU\x01bs", b"(N}U\x05_callU\x01bst"])
def test_stand_ins_cannot_be_changed(tmp_path: Path, name: bytes, state: bytes) -> None:
    (tmp_path / "x").write_bytes(b"}U\x01kc" + name + b"\n" + state + b"bs.")
    with pytest.raises(DataError, match="it changes what it names; it was not run"):
        read_pickle(tmp_path / "x")


def test_what_pickles_may_hold(tmp_path: Path) -> None:
    array = RANDOM.integers(-5, 5, (2, 3)).astype(np.int32)
    (tmp_path / "x").write_bytes(python2({"a": array, "b": [array, "text"], "c": {"d": 1}}))
    read = read_pickle(tmp_path / "x")
    assert (read["a"] == array).all()
    assert (read["b"][0] == array).all()
    assert read["b"][1] == b"text"
    for protocol in (2, 4):  # as Python 3 writes it
        (tmp_path / "y").write_bytes(pickle.dumps({b"data": np.asfortranarray(array), "l": [1]}, protocol))
        assert (read_pickle(tmp_path / "y")["data"] == array).all()


def test_missing_and_damaged_files(tmp_path: Path) -> None:
    root = tmp_path / "cifar-10-batches-py"
    write_cifar10(root, meta=False)
    dataset = open_data(root)
    assert dataset.classes == tuple("0123456789")
    assert any("class names" in note for note in dataset.notes)
    (root / "data_batch_3").rename(tmp_path / "kept")
    with pytest.raises(DataError, match="not complete: data_batch_3 is missing"):
        open_data(root)
    (root / "data_batch_3").write_bytes(python2({"data": rows(3)[0], "labels": [1, 2]}))
    with pytest.raises(DataError, match=r"\[3, 3072\] pixels for 2 labels"):
        open_data(root)
    (root / "data_batch_3").write_bytes(python2({"data": rows(3)[0]}))
    with pytest.raises(DataError, match="holds data; expected were data and labels"):
        open_data(root)
    (root / "data_batch_3").write_bytes(python2({"data": rows(3)[0], "labels": [1, -1, 2]}))
    with pytest.raises(DataError, match="not a list of whole numbers from 0 to 255"):
        open_data(root)

    binary = tmp_path / "cifar-10-batches-bin"
    binary.mkdir()
    (binary / "test_batch.bin").write_bytes(bytes(3073 * 2 - 1))
    with pytest.raises(DataError, match="6,145 bytes are not a multiple of 3,073"):
        open_data(binary)


def test_only_the_test_part(tmp_path: Path) -> None:
    root = tmp_path / "cifar-10-batches-py"
    write_cifar10(root)
    for i in range(1, 6):
        (root / f"data_batch_{i}").unlink()
    assert list(open_data(root).splits) == ["test"]


@pytest.mark.parametrize(
    "labels", [["cat"] * 4, 5, [[0], [1], [2], [3]], [0, 1, 2, None], [0, 1, 2, 2**30], [0, 1, 2, -1], [0, 1, 2, 1.7]]
)
def test_labels_that_are_no_list_of_class_numbers(tmp_path: Path, labels: object) -> None:
    root = tmp_path / "cifar-10-batches-py"
    write_cifar10(root)
    values = {"data": RANDOM.integers(0, 256, (4, 3072), np.uint8), "labels": labels}
    (root / "test_batch").write_bytes(pickle.dumps(values, protocol=2))
    with pytest.raises(DataError, match="test_batch is damaged: its labels are not"):
        open_data(root)


@pytest.mark.parametrize("names", [5, [1, 2], "abc"])
def test_names_that_are_no_list_of_names(tmp_path: Path, names: object) -> None:
    root = tmp_path / "cifar-10-batches-py"
    write_cifar10(root)
    (root / "batches.meta").write_bytes(pickle.dumps({"label_names": names}, protocol=2))
    with pytest.raises(DataError, match=r"batches\.meta is damaged"):
        open_data(root)

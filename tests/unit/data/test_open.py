"""Paths and names, and what is said of a data set."""

import ast
import gzip
import importlib.metadata
import io
import os
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitlab.core.errors import ConfigError, DataError, Error, UnknownNameError
from vitlab.core.registry import permit
from vitlab.data import open as opening
from vitlab.data.open import describe, names, open_data
from vitlab.data.sources.folder import read

ASKED_FOR = {"caltech101", "cifar10", "cifar100", "digits", "dtd", "eurosat", "fashion-mnist", "flowers102", "food101"}
ASKED_FOR |= {"imagenet", "imagenet21k", "mnist", "pets", "stl10", "svhn"}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home and a working folder without data."""
    folder = tmp_path / "home"
    (folder / "work").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.chdir(folder / "work")
    monkeypatch.delenv("VITLAB_DATA", raising=False)
    monkeypatch.setattr(opening, "PLACES", tuple(place for place in opening.PLACES if not place.startswith("/")))
    return folder


def photos(root: Path, **classes: int) -> Path:
    for name, count in classes.items():
        (root / name).mkdir(parents=True, exist_ok=True)
        for i in range(count):
            Image.new("RGB", (4, 4), (i, 0, 0)).save(root / name / f"{i}.png")
    return root


def mnist(root: Path, end: str = "") -> None:
    root.mkdir(parents=True)
    for prefix in ("train", "t10k"):
        for kind, code, data in (("images-idx3", b"\3", bytes(20 * 4)), ("labels-idx1", b"\1", bytes(range(10)) * 2)):
            shape = (20, 2, 2) if code == b"\3" else (20,)
            content = b"\0\0\x08" + code + b"".join(n.to_bytes(4, "big") for n in shape) + data
            (root / f"{prefix}-{kind}-ubyte{end}").write_bytes(gzip.compress(content) if end else content)


def test_all_names_are_known() -> None:
    assert set(names()) >= ASKED_FOR
    for name in ASKED_FOR - {"digits"}:
        with pytest.raises(DataError, match=r"was not found: looked for .* in .*; get it from http.* set VITLAB_DATA"):
            open_data(name)


@pytest.mark.parametrize("inside", ["MNIST/raw", "mnist", "Mnist", "mnist/MNIST/raw", ""])
@pytest.mark.parametrize("place", ["variable", "work/data", "data", "datasets", ".keras/datasets"])
def test_names_are_found(home: Path, monkeypatch: pytest.MonkeyPatch, place: str, inside: str) -> None:
    if place == "variable":
        monkeypatch.setenv("VITLAB_DATA", os.pathsep.join([str(home / "none"), str(home / place)]))
    mnist(home / place / inside if inside else home / place / "mnist")
    dataset = open_data("mnist")
    assert dataset.name == "mnist"
    assert {split: len(part) for split, part in dataset.splits.items()} == {"train": 20, "test": 20}
    assert any("Read as MNIST: " in note for note in dataset.notes)


def test_the_variable_goes_first(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mnist(home / "data" / "mnist")
    mnist(home / "mine" / "mnist", ".gz")
    monkeypatch.setenv("VITLAB_DATA", str(home / "mine"))
    assert str(home / "mine") in open_data("mnist").notes[0]


def test_mnist_and_fashion_side_by_side(home: Path) -> None:
    mnist(home / "data" / "MNIST" / "raw")
    mnist(home / "data" / "FashionMNIST" / "raw")
    assert open_data("mnist").classes[0] == "0"
    assert open_data("fashion_mnist").classes[0] == "T-shirt/top"
    with pytest.raises(DataError, match="several data sets, fashion-mnist, mnist"):
        open_data(home / "data")


@pytest.mark.parametrize(
    ("name", "archive"),
    [
        ("cifar10", "cifar-10-python.tar.gz"),
        ("flowers102", "102flowers.tgz"),
        ("imagenet", "ILSVRC2012_img_val.tar"),
    ],
)
def test_what_is_still_packed_is_to_be_unpacked(home: Path, name: str, archive: str) -> None:
    (home / "data" / name).mkdir(parents=True)
    with tarfile.open(home / "data" / name / archive, "w:gz" if archive.endswith("gz") else "w") as tar:
        tar.addfile(tarfile.TarInfo("some.jpg"))
    with pytest.raises(DataError, match=f"holds {archive}, which is still packed: unpack it there"):
        open_data(name)


def test_where_keras_unpacks(home: Path) -> None:
    inside = home / ".keras/datasets/cifar-10-batches-py-target/cifar-10-batches-py"
    inside.mkdir(parents=True)
    (inside / "test_batch.bin").write_bytes(b"".join(bytes([i % 2]) + bytes(3072) for i in range(4)))
    assert len(open_data("cifar10").splits["test"]) == 4


def test_a_name_in_another_form(home: Path) -> None:
    photos(home / "data" / "CIFAR-10" / "train", **dict.fromkeys("abcdefghij", 2))
    dataset = open_data("cifar10")
    assert dataset.name == "cifar10"
    assert dataset.classes == tuple("abcdefghij")
    assert any("Read as an image folder" in note for note in dataset.notes)
    (home / ".keras" / "datasets").mkdir(parents=True)
    arrays = {f"{kind}_{split}": np.zeros((10, 2, 2), np.uint8) if kind == "x" else np.arange(10)
              for kind in "xy" for split in ("train", "test")}  # fmt: skip
    np.savez(home / ".keras" / "datasets" / "mnist.npz", **arrays)  # pyright: ignore[reportArgumentType]
    assert {split: len(part) for split, part in open_data("mnist").splits.items()} == {"train": 10, "test": 10}


def test_another_set_in_a_folder_of_that_name(home: Path) -> None:
    root = photos(home / "data" / "cifar10", cat=2, dog=2)
    with pytest.raises(
        DataError, match=r"data/cifar10 has 2 classes \(cat, dog\) where cifar10 has 10: .* give its path"
    ):
        open_data("cifar10")
    assert open_data(root).classes == ("cat", "dog")


def test_fashion_mnist_in_its_authors_repository(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = home / "data" / "fashion-mnist"
    mnist(root / "data" / "fashion", ".gz")
    photos(root, **{"doc/img": 2, "static/img": 2})
    for data in ("fashion-mnist", root):
        dataset = open_data(data)
        assert dataset.classes[0] == "T-shirt/top"
        assert "Read as Fashion-MNIST" in dataset.notes[0]
    monkeypatch.chdir(home / "data")
    assert open_data("fashion-mnist").name == "fashion-mnist"


def test_a_folder_here_goes_before_a_name(home: Path) -> None:
    mnist(home / "data" / "mnist")
    photos(home / "work" / "mnist", a=2, b=2)
    assert open_data("mnist").classes == ("a", "b")
    assert open_data("~/data/mnist").classes == tuple("0123456789")


def test_another_sets_folders_are_not_taken_for_imagenet(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    photos(home / "data" / "train", n01440764=2, n01443537=2)
    with pytest.raises(DataError, match="imagenet was not found"):
        open_data("imagenet")
    (home / "data").rename(home / "tiny-imagenet-200")
    monkeypatch.setenv("VITLAB_DATA", str(home))
    assert open_data("tiny-imagenet").name == "tiny-imagenet"
    monkeypatch.setenv("VITLAB_DATA", str(home / "tiny-imagenet-200"))
    assert open_data("tiny-imagenet").name == "tiny-imagenet"
    with pytest.raises(DataError, match="imagenet was not found"):
        open_data("imagenet")


def test_nothing_is_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr("socket.socket.connect", refuse)
    for name in names():
        if name != "digits":
            with pytest.raises(DataError, match="not found"):
                open_data(name)
    for place in ("https://example.org/a.tar", "s3://bucket/{0..3}.tar", "pipe:touch ran"):
        with pytest.raises(DataError, match="is not on this machine"):
            open_data(place)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("cifr10", r"no data set named 'cifr10'.*Did you mean cifar10"),
        ("FLOWER102", "Did you mean flowers102"),
        ("camvid/", "There is no folder camvid here; write camvid alone for the data set of that name"),
        ("xyzzy", "Known names: caltech101, camvid, cifar10"),
        ("photoes/", r"no data set named 'photoes', and no such folder here\. Did you mean photos\?"),
        ("./phots", r"no data set named 'phots', and no such folder here\. Did you mean photos"),
        ("digts", r"Did you mean digits, edit\?"),  # the nearest first, be it a name or a folder
        ("photos/trane", r"There is no file or folder photos/trane\. Did you mean photos/train"),
        ("a.csv", "There is no file or folder a.csv"),
        ("", "has no name"),
        ("x" * 5000, "There is no"),
        ("a/\0b", "There is no"),
        ("~nobody-of-that-name/x", "There is no"),
    ],
)
def test_unknown_names(home: Path, data: str, message: str) -> None:
    photos(home / "work" / "photos" / "train", a=1, b=1)
    (home / "work" / "edit").mkdir()
    with pytest.raises(UnknownNameError, match=message):
        open_data(data)


def test_a_file_that_is_no_data_set(home: Path) -> None:
    path = photos(home / "x", a=1) / "a" / "0.png"
    with pytest.raises(DataError, match=r"0.png is no data set: give a folder, or a file that ends in .csv"):
        open_data(path)


def test_photos_that_are_packed(home: Path) -> None:
    folder = home / "download"
    folder.mkdir()
    (folder / "Photos.ZIP").write_bytes(b"PK")
    with pytest.raises(DataError, match=r"Photos.ZIP is an archive: unpack it, and give the folder\.$"):
        open_data(folder / "Photos.ZIP")
    with pytest.raises(DataError, match=r"download holds no images: unpack Photos.ZIP\.$"):
        open_data(folder)


def test_digits() -> None:
    from sklearn.datasets import load_digits

    values, labels = load_digits(return_X_y=True)
    dataset = open_data("digits", seed=5)
    assert list(dataset.splits) == ["train", "test"]
    assert sum(len(part) for part in dataset.splits.values()) == 1797
    assert 300 < len(dataset.splits["test"]) < 420
    assert dataset.fingerprint == open_data("digits", seed=6).fingerprint  # always the same test part
    for part in dataset.splits.values():
        for i in (0, len(part) - 1):
            number = int(part.images.where(i).split()[1])
            expected = np.asarray(values)[number].reshape(8, 8)
            got = part.images.read(i)
            assert isinstance(got, np.ndarray)
            assert got.dtype == np.uint8
            assert (np.rint(got / 255 * 16) == expected).all()
            assert part.labels[i] == np.asarray(labels)[number]
    assert max(int(np.max(dataset.splits["test"].images.read(i))) for i in range(20)) == 255


def test_a_folder_called_digits(home: Path) -> None:
    photos(home / "work" / "digits", a=2, b=2)
    dataset = open_data("digits")
    assert dataset.classes == tuple("0123456789")
    assert any(str(home / "work" / "digits") in note for note in dataset.notes)
    assert open_data("./digits").classes == ("a", "b")


def samples(path: Path) -> None:
    """A tar of two images in two classes."""
    with tarfile.open(path, "w") as archive:
        for name in ("0.png", "0.cls", "1.png", "1.cls"):
            stream = io.BytesIO()
            Image.new("RGB", (4, 4)).save(stream, "PNG")
            data = stream.getvalue() if name.endswith("png") else name[:1].encode()
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))


@pytest.mark.parametrize("split", ["", "train"])
@pytest.mark.parametrize(
    ("stray", "text"),
    [
        ("backup.tar", ""),
        ("photos.tar.gz", ""),
        ("data.npy", ""),
        ("meta.parquet", ""),
        ("train.csv", ""),
        ("train.csv", "path,label\n"),
        ("train.csv", "path,label\nnowhere/1.png,a\n"),
    ],
)
def test_class_folders_go_before_stray_files(home: Path, split: str, stray: str, text: str) -> None:
    photos(home / "photos" / split, cat=3, dog=2)
    (home / "photos" / stray).write_text(text)
    dataset = open_data(home / "photos", val_fraction=0)
    assert dataset.classes == ("cat", "dog")
    assert dataset.splits["train"].labels.tolist() == [0, 0, 0, 1, 1]
    assert f"1 file that is not an image was left out: {stray}." in dataset.notes


def test_what_a_folder_holds_beside_images(home: Path) -> None:
    root = photos(home / "set", images=2)  # one folder of images is no class folder
    samples(root / "0.tar")
    assert "Read as WebDataset tars" in open_data(root, val_fraction=0).notes[0]
    (root / "0.tar").unlink()
    np.save(root / "images.npy", np.zeros((2, 4, 4), np.uint8))
    np.save(root / "labels.npy", [0, 1])
    assert "Read as arrays" in open_data(root, val_fraction=0).notes[0]
    (root / "train.csv").write_text("path,label\nimages/0.png,a\nimages/1.png,b\n")
    for name in ("backup.tar", "0.npy"):
        (root / name).touch()
    photos(root, more=2)
    dataset = open_data(root, val_fraction=0)  # a table that names what is there goes before all
    assert dataset.classes == ("a", "b")
    assert [Path(dataset.splits["train"].images.where(i)).name for i in range(2)] == ["0.png", "1.png"]


def test_a_table_of_other_names_is_not_forgotten(home: Path) -> None:
    root = photos(home / "set", train_images=2, test_images=2)  # no classes, whatever the table says
    (root / "train.csv").write_text("image_id,label\n0,a\n1,b\n")
    with pytest.raises(DataError, match=r"train.csv has the columns 'image_id', 'label'; expected"):
        open_data(root)


def test_a_damaged_table_is_not_forgotten(home: Path) -> None:
    root = photos(home / "set", cat=2, dog=2)
    (root / "train.csv").write_text("path,label\ncat/0.png,cat\ndog/0.png\n")
    with pytest.raises(DataError, match=r"line 3: 1 cells where the header has 2"):
        open_data(root)


@pytest.mark.parametrize("archive", ["mnist.tar.gz", "mnist.tar", "x_train.npy", "train.csv", "meta.parquet"])
def test_a_published_set_beside_its_archive(home: Path, archive: str) -> None:
    mnist(home / "all" / "MNIST" / "raw")
    for folder in (home / "all", home / "all" / "MNIST"):
        (folder / archive).write_bytes(b"")
        dataset = open_data(folder)
        assert dataset.name == "mnist"
        assert dataset.splits["test"].labels.tolist() == [*range(10), *range(10)]
    mnist(home / "all" / "FashionMNIST" / "raw")
    assert open_data(home / "all" / "FashionMNIST").name == "fashion-mnist"
    with pytest.raises(DataError, match="several data sets, fashion-mnist, mnist"):
        open_data(home / "all")


def test_what_is_said(home: Path) -> None:
    photos(home / "photos" / "train", cat=6, dog=2, cow=3)
    photos(home / "photos" / "val", cat=2, dog=2)
    description = describe(open_data(home / "photos"))
    assert description.imbalance == 3
    assert description.counts == {"train": (6, 3, 2), "val": (2, 0, 2)}
    lines = description.lines()
    assert lines[0] == "photos: 3 classes, one label per image (cat, cow, dog)"
    assert lines[1] == "train: 11 images, 2 to 6 per class"
    assert lines[2] == "val: 4 images, 0 to 2 per class"
    assert lines[3] == "imbalance: the largest class of train has 3.0 times the images of the smallest"
    assert "val has no images of 1 of the classes: cow." in lines
    assert "unreadable" not in str(description)


def test_heavy_packages_are_imported_when_needed() -> None:
    for file in Path(opening.__file__).parent.rglob("*.py"):
        for statement in ast.parse(file.read_text()).body:
            names = [alias.name for alias in statement.names] if isinstance(statement, ast.Import) else []
            names += [statement.module or ""] if isinstance(statement, ast.ImportFrom) else []
            assert not {name.partition(".")[0] for name in names} & {"scipy", "sklearn", "datasets", "webdataset"}, file


def test_names_whose_bytes_are_no_text(home: Path) -> None:
    data = photos(home / "photos", a=2, b=2)
    os.rename(data / "b", os.fsencode(data) + b"/\xff\xfe")  # noqa: PTH104
    with pytest.raises(DataError, match=r"The class b'\\xff\\xfe' is not UTF-8: rename it"):
        open_data(data)
    with pytest.raises(DataError, match="The path b'.*' is not UTF-8"):
        open_data(os.fsdecode(os.fsencode(home) + b"/\xff"))


def test_blank_labels_and_names_that_are_there_twice(home: Path) -> None:
    np.savez(home / "a.npz", images=np.zeros((3, 4, 4), np.uint8), labels=["a", " ", "b"])
    with pytest.raises(DataError, match="blank label"):
        open_data(home / "a.npz")
    np.savez(home / "b.npz", images=np.zeros((3, 4, 4), np.uint8), labels=[0, 1, 2])
    (home / "classes.txt").write_text("cat\ndog\ncat\n")
    with pytest.raises(DataError, match="has a class twice: cat"):
        open_data(home / "b.npz")


MINE = """
from pathlib import Path
import numpy as np
from vitlab.data.sources.pixels import Pixels
from vitlab.data.sources.source import Source, make, never

def made(count):
    pictures = Pixels(np.zeros((count, 4, 4), np.uint8), "mine")
    return make("mine", ("a", "b"), {"train": (pictures, np.arange(count) % 2)})

SET = Source("mine", "my pictures", never, lambda: made(40))
BESIDE = Source("beside", "my pictures", never, lambda folder: made(int((folder / "count.txt").read_text())))
WRONG = Source("wrong", "nothing", never, lambda: 3)
OTHER = 3
"""


def test_a_source_in_a_file_of_ones_own(home: Path) -> None:
    (home / "my_own_source.py").write_text(MINE)
    (home / "count.txt").write_text("30")
    given = f"{home}/my_own_source.py"
    with pytest.raises(ConfigError, match="is code in a file, which is not run because a saved file names it"):
        open_data(f"{given}:SET")
    permit(*(f"{given}:{name}" for name in ("SET", "BESIDE", "WRONG", "OTHER", "NONE")))
    dataset = open_data(f"{given}:SET")
    assert sum(map(len, dataset.splits.values())) == 40
    assert set(dataset.splits) == {"train", "val"}
    assert f"Read by {given}:SET." in dataset.notes
    assert len(open_data(f"{given}:BESIDE", val_fraction=0).splits["train"]) == 30
    assert set(open_data(f"arranged:test=train:{given}:SET").splits) == {"test"}
    for name, message in (
        ("WRONG", "gave int, not a DataSet"),
        ("OTHER", "must be a Source, not int"),
        ("NONE", "has no NONE"),
    ):
        with pytest.raises(Error, match=message):
            open_data(f"{given}:{name}")


def test_sources_of_other_packages(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that takes a path goes before the image folder, one with a name is found by it."""
    monkeypatch.chdir(home)
    (home / "other_package.py").write_text(
        MINE
        + """
from vitlab.data.sources.source import Published
FORM = Source("form", "a form of theirs", lambda path: (path / "theirs").exists(), lambda path: made(20))
NAMED = Published("their-set", "their set", never, lambda path: made(10), (), "https://example.org", embedded=True)
"""
    )
    monkeypatch.syspath_prepend(str(home))
    found = [
        importlib.metadata.EntryPoint(name, f"other_package:{item}", "vitlab.sources")
        for name, item in (("form", "FORM"), ("their-set", "NAMED"))
    ]
    monkeypatch.setattr("vitlab.core.registry.entry_points", lambda group: found if group == "vitlab.sources" else [])
    monkeypatch.setattr(opening.SOURCES, "_own", None)
    assert "their-set" in names()
    assert len(open_data("their-set", val_fraction=0).splits["train"]) == 10
    (home / "flat").mkdir()
    Image.new("RGB", (4, 4)).save(home / "flat" / "1.png")
    assert open_data(home / "flat").notes[0].startswith("Read as an image folder")
    (home / "flat" / "theirs").touch()
    assert open_data(home / "flat").notes[0].startswith("Read as a form of theirs")


def test_wordnet_ids_get_their_words_and_fingerprints_stay(home: Path) -> None:
    folders = {"n01443537": 2, "n02012849": 2, "n03126707": 2, "n99999999": 2}
    photos(home / "mine", **folders)
    dataset = open_data(home / "mine", val_fraction=0)
    words = ("goldfish (n01443537)", "crane (n02012849)", "crane (n03126707)", "n99999999")  # a bird and a machine
    assert dataset.classes == words
    assert dataset.fingerprint == read(home / "mine").fingerprint
    photos(home / "other", goldfish=2, tench=2)
    assert open_data(home / "other").classes == ("goldfish", "tench")


@pytest.mark.parametrize("name", ["jft", "JFT-300M", "jft_3b"])
def test_a_private_set_is_said_to_be_private(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnknownNameError, match=r"is private to Google: train on images of your own with --data.source"):
        open_data(name)

"""CSV files."""

import csv
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitlab.core.errors import DataError
from vitlab.data.open import open_data


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "images").mkdir()
    for i in range(6):
        Image.new("RGB", (4, 4), (i * 10, 0, 0)).save(tmp_path / "images" / f"{i}.png")
    return tmp_path


def write(path: Path, *rows: list[str]) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    return path


def test_one_label(folder: Path) -> None:
    labels = ["10", "9", "9", "a", "a, b", "10"]
    rows = [[f"images/{i}.png", label] for i, label in enumerate(labels)]
    dataset = open_data(write(folder / "set.csv", ["path", "label"], *rows), val_fraction=0)
    assert dataset.name == "set"
    assert dataset.classes == ("9", "10", "a", "a, b")
    assert not dataset.multi_label
    train = dataset.splits["train"]
    assert [dataset.classes[i] for i in train.labels] == labels
    assert train.labels.dtype == np.int64
    assert train.images.read(3) == (folder / "images" / "3.png").read_bytes()


def test_splits_by_a_column(folder: Path) -> None:
    words = ["train", "Training", "val", "validation", "test", "train"]
    rows = [[f"images/{i}.png", word, "ab"[i % 2]] for i, word in enumerate(words)]
    dataset = open_data(write(folder / "set.csv", ["File_Name", "split", "breed"], *rows))
    assert {split: len(part) for split, part in dataset.splits.items()} == {"train": 3, "val": 2, "test": 1}
    assert dataset.splits["val"].images.where(0).endswith("2.png")


@pytest.mark.parametrize("separator", [";", "|"])
def test_several_labels_in_a_cell(folder: Path, separator: str) -> None:
    labels = [["cat"], ["dog", "cat"], [], ["cow"], ["cow", "dog"], ["cat"]]
    rows = [[f"images/{i}.png", f" {separator} ".join(found)] for i, found in enumerate(labels)]
    dataset = open_data(write(folder / "set.csv", ["path", "labels"], *rows), val_fraction=0)
    assert dataset.multi_label
    assert dataset.classes == ("cat", "cow", "dog")
    expected = [[int(name in found) for name in ("cat", "cow", "dog")] for found in labels]
    assert dataset.splits["train"].labels.tolist() == expected
    assert any("1 image has no label, which stands for no class" in note for note in dataset.notes)


def test_a_column_for_each_class(folder: Path) -> None:
    rows = [[f"images/{i}.png", str(i % 2), "1.0", "0"] for i in range(6)]
    dataset = open_data(write(folder / "set.csv", ["image", "z", "a", "never"], *rows), val_fraction=0)
    assert dataset.multi_label
    assert dataset.classes == ("z", "a", "never")
    assert dataset.splits["train"].labels.tolist() == [[i % 2, 1, 0] for i in range(6)]
    assert any("1 of 3 classes have no images: never" in note for note in dataset.notes)


def test_columns_with_one_1_each_are_one_label(folder: Path) -> None:
    rows = [[f"images/{i}.png", str(i % 2), str(1 - i % 2)] for i in range(6)]
    dataset = open_data(write(folder / "set.csv", ["path", "odd", "even"], *rows), val_fraction=0)
    assert not dataset.multi_label
    assert dataset.splits["train"].labels.tolist() == [1, 0, 1, 0, 1, 0]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.tsv", "path\tlabel\nimages/0.png\ta\nimages/1.png\tb\n"),
        ("a.csv", "\ufeffpath;label\r\nimages/0.png;a\r\n\r\nimages/1.png;b\r\n"),
        ("a.csv", '"path","label"\n"images/0.png","a"\n"images/1.png","b"\n'),
        ("a.CSV", "label,path\na,./images/0.png\nb,images/1.png"),
    ],
)
def test_ways_to_write_it(folder: Path, name: str, text: str) -> None:
    (folder / name).write_bytes(text.encode())
    dataset = open_data(folder / name, val_fraction=0)
    assert dataset.classes == ("a", "b")
    assert dataset.splits["train"].images.read(1) == (folder / "images" / "1.png").read_bytes()


def test_absolute_paths_and_repeats(folder: Path) -> None:
    rows = [[str(folder / "images" / "0.png"), "a"], ["images/1.png", "b"], ["images/1.png", "b"]]
    dataset = open_data(write(folder / "set.csv", ["path", "label"], *rows), val_fraction=0)
    assert dataset.splits["train"].images.read(0) == (folder / "images" / "0.png").read_bytes()
    assert any("1 row names an image named before" in note for note in dataset.notes)


def test_images_in_several_splits_are_told(folder: Path) -> None:
    splits = [(0, "train"), (0, "val"), (0, "test"), (1, "train"), (1, "test"), (2, "train"), (2, "train"), (3, "val")]
    rows = [[f"images/{i}.png", "ab"[i % 2], split] for i, split in splits]
    notes = open_data(write(folder / "set.csv", ["path", "label", "split"], *rows)).notes
    assert "2 images are in several splits, so that scores on them flatter: images/0.png, images/1.png." in notes
    assert "1 row names an image named before in its split." in notes


def test_a_table_for_each_split(folder: Path) -> None:
    write(folder / "train.csv", ["path", "label"], ["images/0.png", "a"], ["images/1.png", "b"])
    write(folder / "val.csv", ["path", "label"], ["images/2.png", "b"])
    dataset = open_data(folder)
    assert {split: part.labels.tolist() for split, part in dataset.splits.items()} == {"train": [0, 1], "val": [1]}


def test_a_column_without_a_name(folder: Path) -> None:
    rows = [[str(i), f"images/{i}.png", "ab"[i % 2]] for i in range(6)]  # as pandas writes its index
    dataset = open_data(write(folder / "set.csv", ["", "path", "label"], *rows), val_fraction=0)
    assert dataset.classes == ("a", "b")
    assert "Columns left out: one without a name." in dataset.notes


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("path,label\n", "a header only"),
        ("name,kind,x\nimages/0.png,a,b\n", r"has the columns 'name', 'kind', 'x'; expected were 'path' and 'label'"),
        ("path,length,width\nimages/0.png,3,4\n", "has the columns 'path', 'length', 'width'; expected"),
        ("images/0.png,a\nimages/1.png,b\n", "has the columns 'images/0.png', 'a'; expected"),
        ("path\nimages/0.png\n", "has the columns 'path'; expected"),
        ("path,label\nimages/0.png,a\nimages/1.png\n", "line 3: 1 cells where the header has 2"),
        ("path,label\nimages/0.png,a\nimages/1.png,\n", "line 3: there is no label"),
        ("path,label\n,a\nimages/1.png,b\n", "line 2: there is no path"),
        ("path,label,split\nimages/0.png,a,\n", "line 2: there is no split"),
        ("path,label,split\nimages/0.png,a,later\n", "line 2: the split 'later' is none of train, val and test"),
        ("path,label\nimages/0.png,a\nimages/1.png,a\n", "one class only, 'a'"),
        ("path,label\nimages/0.png,a\nimages/8.png,b\nimages,c\n", r"2 of the 3 images .* images/8.png, images\."),
        ("path,label\nimages\\0.png,a\nimages\\1.png,b\n", r"1\.png\. Write paths with /, not with \\\.$"),
        ("path,label\nimages/0.png,;\nimages/1.png,;\n", "has no classes: none of its images has a label"),
        ("path,path,label\nimages/0.png,a,b\n", "same name"),
        ('path,label\n"images/0.png,a\n', "not a CSV that can be read"),
        ("path,label,split\nimages/0.png,a,train\nimages/1.png,b,train\nimages/2.png,c,val\n", "images of the class c"),
    ],
)
def test_bad_tables(folder: Path, text: str, message: str) -> None:
    (folder / "set.csv").write_text(text)
    with pytest.raises(DataError, match=message) as raised:
        open_data(folder / "set.csv")
    assert "\n" not in str(raised.value)


def test_not_utf8(folder: Path) -> None:
    (folder / "set.csv").write_bytes("path,label\nimages/0.png,café\n".encode("latin1"))
    with pytest.raises(DataError, match="UTF-8"):
        open_data(folder / "set.csv")


def test_only_empty_files(folder: Path) -> None:
    for i in range(2):
        (folder / "images" / f"{i}.png").write_bytes(b"")
    with pytest.raises(DataError, match="All 2 images .* are empty files"):
        open_data(write(folder / "set.csv", ["path", "label"], ["images/0.png", "a"], ["images/1.png", "b"]))


def test_different_columns_for_splits(folder: Path) -> None:
    write(folder / "train.csv", ["path", "label"], ["images/0.png", "a"], ["images/1.png", "b"])
    write(folder / "val.csv", ["path", "kind"], ["images/2.png", "b"])
    with pytest.raises(DataError, match="different columns"):
        open_data(folder)

"""Hugging Face datasets on disk."""

import io
import json
import pickle
import socket
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from huggingface_hub import constants
from PIL import Image

from vitlab.core import hub
from vitlab.core.errors import DataError, ImageError, MissingDependencyError
from vitlab.data.open import open_data

RANDOM = np.random.default_rng(0)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    datasets.disable_progress_bars()
    return datasets


def png(seed: int) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (4, 4, 3), np.uint8)).save(stream, "PNG")
    return stream.getvalue()


def table(package: Any, num: int, **columns: Any) -> Any:
    """Rows of images and labels 0, 1, 2, 0, ... named c, a, b."""
    images = [{"bytes": png(i), "path": None} for i in range(num)]
    kinds = {"image": package.Image(), "label": package.ClassLabel(names=["c", "a", "b"])}
    values = {"image": images, "label": [i % 3 for i in range(num)]}
    for name, (kind, value) in columns.items():
        kinds[name], values[name] = kind, value
    return package.Dataset.from_dict(values, features=package.Features(kinds))


def test_saved_to_disk(tmp_path: Path, package: Any) -> None:
    sets = {"train": table(package, 6), "validation": table(package, 3), "extra": table(package, 3)}
    package.DatasetDict(sets).save_to_disk(str(tmp_path / "saved"))
    dataset = open_data(tmp_path / "saved")
    assert dataset.classes == ("c", "a", "b")
    assert {split: part.labels.tolist() for split, part in dataset.splits.items()} == {
        "train": [0, 1, 2, 0, 1, 2],
        "val": [0, 1, 2],
    }
    images = pickle.loads(pickle.dumps(dataset.splits["train"].images))
    assert [images.read(i) for i in range(6)] == [png(i) for i in range(6)]
    assert any("The split 'extra' is left out" in note for note in dataset.notes)
    assert open_data(tmp_path / "saved").fingerprint == dataset.fingerprint


def test_a_row_without_an_image_and_a_part_without_labels(tmp_path: Path, package: Any) -> None:
    train = table(package, 6)
    values = {"image": [None, *train.with_format(None)["image"][1:]], "label": train["label"][:]}
    holed = package.Dataset.from_dict(values, features=train.features)
    sets = {"train": holed, "test": table(package, 3).remove_columns("label")}
    package.DatasetDict(sets).save_to_disk(str(tmp_path / "saved"))
    dataset = open_data(tmp_path / "saved", val_fraction=0)
    assert set(dataset.splits) == {"train"}
    assert any("test has no column 'label': it is left out" in note for note in dataset.notes)
    with pytest.raises(ImageError):
        dataset.splits["train"].images.read(0)


def test_one_table(tmp_path: Path, package: Any) -> None:
    table(package, 30).save_to_disk(str(tmp_path / "saved"))
    dataset = open_data(tmp_path / "saved", val_fraction=0.3)
    assert list(dataset.splits) == ["train", "val"]
    assert sum(len(part) for part in dataset.splits.values()) == 30


def test_parquet(tmp_path: Path, package: Any) -> None:
    (tmp_path / "set" / "data").mkdir(parents=True)
    table(package, 6).to_parquet(str(tmp_path / "set" / "data" / "train-00000-of-00001.parquet"))
    table(package, 3).to_parquet(str(tmp_path / "set" / "data" / "test-00000-of-00001.parquet"))
    dataset = open_data(tmp_path / "set")
    assert dataset.classes == ("c", "a", "b")
    assert dataset.splits["train"].images.read(5) == png(5)
    assert dataset.splits["test"].labels.tolist() == [0, 1, 2]


def test_several_labels(tmp_path: Path, package: Any) -> None:
    kinds = package.Features(
        {"image": package.Image(), "labels": package.Sequence(package.ClassLabel(names=["x", "y", "z"]))}
    )
    rows = {"image": [{"bytes": png(i), "path": None} for i in range(3)], "labels": [[0, 2], [], [1]]}
    package.Dataset.from_dict(rows, features=kinds).save_to_disk(str(tmp_path / "saved"))
    dataset = open_data(tmp_path / "saved", val_fraction=0)
    assert dataset.multi_label
    assert dataset.splits["train"].labels.tolist() == [[1, 0, 1], [0, 0, 0], [0, 1, 0]]


def saved(package: Any, folder: Path, kind: Any, labels: list[Any]) -> Path:
    kinds = package.Features({"image": package.Image(), "labels": kind})
    rows = {"image": [{"bytes": png(i), "path": None} for i in range(len(labels))], "labels": labels}
    package.Dataset.from_dict(rows, features=kinds).save_to_disk(str(folder))
    return folder


@pytest.mark.parametrize("kind", ["int64", "float32", "bool"])
def test_a_0_or_1_for_each_class(tmp_path: Path, package: Any, kind: str) -> None:
    several = [[1, 0, 1], [0, 0, 0], [0, 1, 0]]
    dataset = open_data(saved(package, tmp_path / "a", package.Sequence(package.Value(kind)), several), val_fraction=0)
    assert dataset.multi_label
    assert dataset.classes == ("0", "1", "2")
    assert dataset.splits["train"].labels.tolist() == several
    one = [[0, 1], [1, 0], [0, 1]]
    dataset = open_data(saved(package, tmp_path / "b", package.Sequence(package.Value(kind)), one), val_fraction=0)
    assert not dataset.multi_label
    assert dataset.splits["train"].labels.tolist() == [1, 0, 1]


def test_lists_of_class_numbers(tmp_path: Path, package: Any) -> None:
    numbers, named = package.Sequence(package.Value("int64")), package.Sequence(package.ClassLabel(names=["x", "y"]))
    for i, (kind, labels, columns) in enumerate(
        (
            (numbers, [[0, 1], [1], []], [[1, 1], [0, 1], [0, 0]]),
            (numbers, [[7, 0], [0, 3], [3, 7]], [[1, 0, 1], [1, 1, 0], [0, 1, 1]]),
            (named, [[0, 1], [1, 1], [0, 0]], [[1, 1], [0, 1], [1, 0]]),
        )
    ):
        dataset = open_data(saved(package, tmp_path / str(i), kind, labels), val_fraction=0)
        assert dataset.splits["train"].labels.tolist() == columns
    one = open_data(saved(package, tmp_path / "one", numbers, [[0], [1], [1]]), val_fraction=0)
    assert one.splits["train"].labels.tolist() == [0, 1, 1]
    soft = package.Sequence(package.Value("float32"))
    for i, (kind, labels) in enumerate(((numbers, [[0, -1], [1, -1]]), (soft, [[0.25, 0.75], [1, 0]]))):
        with pytest.raises(DataError, match="lists of labels must hold class numbers from 0 on"):
            open_data(saved(package, tmp_path / f"bad{i}", kind, labels))


def test_floats_are_class_numbers_where_they_are_whole(tmp_path: Path, package: Any) -> None:
    dataset = open_data(saved(package, tmp_path / "a", package.Value("float64"), [0.0, 3.0, 0.0]), val_fraction=0)
    assert dataset.classes == ("0", "3")
    assert dataset.splits["train"].labels.tolist() == [0, 1, 0]
    with pytest.raises(DataError, match="labels must be whole numbers or texts, not float64"):
        open_data(saved(package, tmp_path / "b", package.Value("float64"), [0.0, 0.5, 1.0]))
    with pytest.raises(DataError, match="some labels are negative; leave images without a label out"):
        open_data(saved(package, tmp_path / "c", package.Value("int64"), [0, -1, 1]))


def test_texts_and_files(tmp_path: Path, package: Any) -> None:
    for i in range(3):
        (tmp_path / f"{i}.png").write_bytes(png(i))
    rows = {"img": [str(tmp_path / f"{i}.png") for i in range(3)], "label": ["dog", "cat", "dog"]}
    kinds = package.Features({"img": package.Image(), "label": package.Value("string")})
    package.Dataset.from_dict(rows, features=kinds).to_parquet(str(tmp_path / "set.parquet"))
    dataset = open_data(tmp_path / "set.parquet", val_fraction=0)
    assert dataset.classes == ("cat", "dog")
    assert dataset.splits["train"].images.read(2) == png(2)


def test_a_part_without_labels(tmp_path: Path, package: Any) -> None:
    hidden = table(package, 3).map(lambda _: {"label": -1})
    package.DatasetDict({"train": table(package, 6), "test": hidden}).save_to_disk(str(tmp_path / "saved"))
    dataset = open_data(tmp_path / "saved", val_fraction=0)
    assert list(dataset.splits) == ["train"]
    assert any("test has no labels" in note for note in dataset.notes)


def test_bad_sets(tmp_path: Path, package: Any) -> None:
    package.Dataset.from_dict({"a": [1, 2]}).save_to_disk(str(tmp_path / "a"))
    with pytest.raises(DataError, match="has the columns a, none of which holds images"):
        open_data(tmp_path / "a")
    table(package, 3).remove_columns("label").save_to_disk(str(tmp_path / "b"))
    with pytest.raises(DataError, match="has the columns image; expected was one called label"):
        open_data(tmp_path / "b")
    (tmp_path / "c.parquet").write_bytes(b"PAR1 not really")
    with pytest.raises(DataError, match=r"c.parquet cannot be read as a Hugging Face dataset"):
        open_data(tmp_path / "c.parquet")


def test_without_a_network_what_is_cached_is_read_and_the_rest_refused_at_once(
    tmp_path: Path, package: Any, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The client by itself would try again for half a minute, with a line each time."""
    cache = tmp_path / "cache"
    monkeypatch.setenv("HF_DATASETS_CACHE", str(cache))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(package.config, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(hub, "PATIENCE", 0.5)
    with socket.socket() as closed:  # a port at which nobody answers
        closed.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{closed.getsockname()[1]}"
        monkeypatch.setattr(constants, "ENDPOINT", address)
        with pytest.raises(DataError) as caught:
            open_data("hf-datasets:owner/name")
        table(package, 6).to_parquet(str(tmp_path / "train.parquet"))
        package.load_dataset("parquet", data_files=str(tmp_path / "train.parquet"))
        _as_of_the_hub(cache, "owner", "name")
        assert open_data("hf-datasets:owner/name", val_fraction=0).classes == ("c", "a", "b")
        with pytest.raises(DataError, match="Here there are digits and hf-datasets:owner/name, and any folder"):
            open_data("hf-datasets:owner/other")
    assert str(caught.value) == (
        f"hf-datasets:owner/name is not in the local cache, and the hub cannot be reached ({address} does not answer)."
        " Here there are digits, and any folder of images."
    )
    assert "Retrying" not in capfd.readouterr().err
    assert (constants.HF_HUB_OFFLINE, package.config.HF_HUB_OFFLINE) == (False, False)


def _as_of_the_hub(cache: Path, owner: str, name: str) -> None:
    """What was made of a local parquet file, under the names that a set of the hub has in the cache."""
    made = (cache / "parquet").rename(cache / f"{owner}___{name}")
    (chosen,) = made.iterdir()
    chosen = chosen.rename(made / "default")
    (info,) = chosen.glob("*/*/dataset_info.json")
    info.write_text(json.dumps(json.loads(info.read_text()) | {"config_name": "default", "dataset_name": name}))
    (info.parent / "parquet-train.arrow").rename(info.parent / f"{name}-train.arrow")


def test_without_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    (tmp_path / "train").mkdir()
    for name in ("dataset_dict.json", "train/state.json"):
        (tmp_path / name).write_text("{}")
    for data in (tmp_path, "hf-datasets:owner/name"):
        with pytest.raises(MissingDependencyError, match=r"pip install 'vitlab\[hub\]'"):
            open_data(data)


def test_splits_that_number_their_classes_differently(tmp_path: Path, package: Any) -> None:
    def encoded(labels: list[str]) -> Any:
        values = {"image": [{"bytes": png(i), "path": None} for i in range(len(labels))], "label": labels}
        return package.Dataset.from_dict(values).class_encode_column("label")

    sets = {"train": encoded(["ant", "bee", "cat"] * 2), "test": encoded(["bee", "cat", "bee"])}
    package.DatasetDict(sets).save_to_disk(str(tmp_path / "saved"))
    dataset = open_data(tmp_path / "saved", val_fraction=0)
    assert dataset.classes == ("ant", "bee", "cat")
    assert dataset.splits["test"].labels.tolist() == [1, 2, 1]
    assert any("matched by name" in note for note in dataset.notes)


def test_a_part_of_a_split_is_the_data(tmp_path: Path, package: Any) -> None:
    table(package, 12).to_parquet(str(tmp_path / "all.parquet"))
    for name in ("train[:50%]", "train"):
        rows = package.load_dataset("parquet", data_files=str(tmp_path / "all.parquet"), split=name)
        rows.save_to_disk(str(tmp_path / "saved" / str(len(rows))))
        assert len(open_data(tmp_path / "saved" / str(len(rows)), val_fraction=0).splits["train"]) == len(rows)


def test_parquet_files_say_their_split_anywhere_in_their_names(tmp_path: Path, package: Any) -> None:
    for name, num in (("pets_train_0", 6), ("pets_train_1", 3), ("pets-TEST", 3), ("2024_validation", 4)):
        table(package, num).to_parquet(str(tmp_path / f"{name}.parquet"))
    found = {split: len(part) for split, part in open_data(tmp_path).splits.items()}
    assert found == {"train": 9, "val": 4, "test": 3}


def test_a_file_of_such_a_name_beside_images(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "0.png").write_bytes(png(0))
    for name in ("state.json", "dataset_dict.json"):
        (tmp_path / name).write_text("{}")
    assert open_data(tmp_path, val_fraction=0).classes == ("a", "b")


def test_lists_of_lists_are_no_labels(tmp_path: Path, package: Any) -> None:
    with pytest.raises(DataError, match="must hold numbers or texts"):
        open_data(saved(package, tmp_path, [[package.Value("int64")]], [[[0], [1]], [[1]]]))


def test_a_damaged_arrow_file(tmp_path: Path, package: Any) -> None:
    package.DatasetDict({"train": table(package, 60)}).save_to_disk(str(tmp_path / "saved"))
    file = tmp_path / "saved" / "train" / "data-00000-of-00001.arrow"
    images = open_data(tmp_path / "saved", val_fraction=0).splits["train"].images
    content = bytearray(file.read_bytes())
    offsets = np.cumsum([0, *(len(png(i)) for i in range(60))]).astype("<i4").tobytes()
    start = content.index(offsets) + 4 * 30
    content[start : start + 4] = bytes(4)  # the 31st image begins at 0, so that the 30th has a negative length
    file.write_bytes(content)
    with pytest.raises(DataError, match=r"saved cannot be read as a Hugging Face dataset: Negative size"):
        open_data(tmp_path / "saved")
    with pytest.raises(ImageError, match=r"image 29 of .*saved \(train\) cannot be read: Negative size"):
        pickle.loads(pickle.dumps(images)).read(29)


def test_parquet_in_the_folder_of_a_configuration(tmp_path: Path, package: Any) -> None:
    for configuration in ("plain_text", "other"):
        (tmp_path / "set" / configuration).mkdir(parents=True)
        for split, num in (("train", 6), ("test", 3)):
            table(package, num).to_parquet(str(tmp_path / "set" / configuration / f"{split}-00000-of-00001.parquet"))
        if configuration == "plain_text":
            dataset = open_data(tmp_path / "set")
            assert dataset.name == "set"
            assert {split: len(part) for split, part in dataset.splits.items()} == {"train": 6, "test": 3}
    with pytest.raises(DataError, match=r"set holds several configurations, other, plain_text: give the folder of one"):
        open_data(tmp_path / "set")
    assert open_data(tmp_path / "set" / "other").classes == ("c", "a", "b")


@pytest.mark.parametrize("rest", ["", " ", "@main", "#plain_text"])
def test_the_hub_without_a_name(rest: str) -> None:
    with pytest.raises(DataError, match=rf"'hf-datasets:{rest}' names no data set: write it as hf-datasets:owner/name"):
        open_data(f"hf-datasets:{rest}")

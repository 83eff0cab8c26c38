"""What every source keeps to, on a small stand-in of what it reads."""

import io
import pickle
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pytest
from PIL import Image

from vitlab.core.errors import DataError, Error
from vitlab.data.contract import DataSet, Masks, Split, Values
from vitlab.data.decoding import decode, read_mask
from vitlab.data.open import SOURCES
from vitlab.data.sources.holdout import fraction_of_train, labelled_part_of_train
from vitlab.data.sources.published.eurosat import CLASSES as EUROSAT
from vitlab.data.sources.source import Published

NUM = 8  # images of each part
# Writes a set below a folder whose images have these classes, of which there are two: what to open, and one file of it.
Maker: TypeAlias = Callable[[Path, list[int]], tuple[Path, Path]]


def picture(path: Path, seed: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (9, 7, 3), dtype=np.uint8)).save(path)
    return path


def text(path: Path, *lines: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")
    return path


def blob(path: Path, data: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def class_folders(root: Path, labels: list[int], first: str = "cat", second: str = "dog", end: str = "png") -> Path:
    """The first image, whose class may change, keeps its name and its bytes."""
    for i, label in enumerate(labels):
        picture(root / (first, second)[label] / f"{i}.{end}", i)
    return root / (first, second)[labels[1]] / f"1.{end}"


def cifar10(root: Path, labels: list[int]) -> tuple[Path, Path]:
    rows = b"".join(bytes([label]) + bytes([i] * 3072) for i, label in enumerate(labels))
    for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
        blob(root / f"{name}.bin", rows)
    text(root / "batches.meta.txt", "cat", "dog")
    return root, root / "data_batch_2.bin"


def cifar100(root: Path, labels: list[int]) -> tuple[Path, Path]:
    root = root / "cifar-100-binary"
    for name in ("train", "test"):
        blob(root / f"{name}.bin", b"".join(bytes([0, label]) + bytes([i] * 3072) for i, label in enumerate(labels)))
    return root, root / "train.bin"


def idx(root: Path, labels: list[int]) -> tuple[Path, Path]:
    for prefix in ("train", "t10k"):
        shape = b"".join(n.to_bytes(4, "big") for n in (NUM, 3, 3))
        blob(root / f"{prefix}-images-idx3-ubyte", b"\0\0\x08\3" + shape + bytes(range(9 * NUM)))
        blob(root / f"{prefix}-labels-idx1-ubyte", b"\0\0\x08\1" + shape[:4] + bytes(labels))
    return root, root / "train-images-idx3-ubyte"


def fashion(root: Path, labels: list[int]) -> tuple[Path, Path]:
    return idx(root / "FashionMNIST" / "raw", labels)


def svhn(root: Path, labels: list[int]) -> tuple[Path, Path]:
    from scipy.io import savemat

    root.mkdir(parents=True)
    for split in ("train", "test"):
        pixels = np.arange(32 * 32 * 3 * NUM, dtype=np.uint8).reshape(32, 32, 3, NUM)
        savemat(root / f"{split}_32x32.mat", {"X": pixels, "y": np.array(labels)[:, None] + 1})
    return root, root / "train_32x32.mat"


def stl10(root: Path, labels: list[int]) -> tuple[Path, Path]:
    for split in ("train", "test"):
        blob(root / f"{split}_X.bin", np.arange(NUM * 3 * 96 * 96, dtype=np.uint8).tobytes())
        blob(root / f"{split}_y.bin", bytes(label + 1 for label in labels))
    return root, root / "train_X.bin"


def flowers(root: Path, labels: list[int]) -> tuple[Path, Path]:
    from scipy.io import savemat

    files = [picture(root / "jpg" / f"image_{i + 1:05d}.jpg", i) for i in range(3 * NUM)]
    savemat(root / "imagelabels.mat", {"labels": np.array(3 * labels)[None] + 1})
    parts = np.arange(1, 3 * NUM + 1).reshape(3, 1, NUM)
    savemat(root / "setid.mat", dict(zip(("trnid", "valid", "tstid"), parts, strict=True)))
    return root, files[1]


def pets(root: Path, labels: list[int]) -> tuple[Path, Path]:
    """An image is called as its class is, so another label is another name."""
    for file in ("trainval", "test"):
        names = [f"{('cat', 'dog')[label]}_{file}{i}" for i, label in enumerate(labels)]
        rows = [f"{name} {label + 1} 1 1" for name, label in zip(names, labels, strict=True)]
        text(root / "annotations" / f"{file}.txt", *rows)
        for i, name in enumerate(names):
            picture(root / "images" / f"{name}.jpg", i)
            trimap = root / "annotations" / "trimaps" / f"{name}.png"
            trimap.parent.mkdir(exist_ok=True)
            Image.fromarray(np.resize(np.array([1, 2, 3], np.uint8), (9, 7))).save(trimap)
    return root, root / "annotations" / "trimaps" / "dog_trainval1.png"


def dtd(root: Path, labels: list[int]) -> tuple[Path, Path]:
    for split in ("train", "val", "test"):
        names = [f"{('cat', 'dog')[label]}/{split}{i}.jpg" for i, label in enumerate(labels)]
        text(root / "labels" / f"{split}1.txt", *names)
        files = [picture(root / "images" / name, i) for i, name in enumerate(names)]
    return root, files[1]


def food(root: Path, labels: list[int]) -> tuple[Path, Path]:
    text(root / "meta" / "classes.txt", "cat", "dog")
    for split in ("train", "test"):
        names = [f"{('cat', 'dog')[label]}/{split}{i}" for i, label in enumerate(labels)]
        text(root / "meta" / f"{split}.txt", *names)
        files = [picture(root / "images" / f"{name}.jpg", i) for i, name in enumerate(names)]
    return root, files[1]


def eurosat(root: Path, labels: list[int]) -> tuple[Path, Path]:
    return root, class_folders(root, labels, EUROSAT[0], EUROSAT[-1])


def caltech(root: Path, labels: list[int]) -> tuple[Path, Path]:
    return root, class_folders(root, labels, "accordion", "yin_yang", "jpg")


def imagenet(root: Path, labels: list[int]) -> tuple[Path, Path]:
    class_folders(root / "val", labels, "n01440764", "n01443537")
    return root, class_folders(root / "train", labels, "n01440764", "n01443537")


def tiny(root: Path, labels: list[int]) -> tuple[Path, Path]:
    return imagenet(root / "tiny-imagenet-200", labels)


def imagenet21k(root: Path, labels: list[int]) -> tuple[Path, Path]:
    return root, class_folders(root / "imagenet21k_train", labels, "n01440764", "n01443537")


def numbered(root: Path, labels: list[int]) -> tuple[Path, Path]:
    return root, class_folders(root, labels, "2", "10", "jpeg")


def v2(root: Path, labels: list[int]) -> tuple[Path, Path]:
    return numbered(root / "imagenetv2-matched-frequency-format-val", labels)


def v2_threshold(root: Path, labels: list[int]) -> tuple[Path, Path]:
    return numbered(root / "imagenetv2-threshold0.7-format-val", labels)


def v2_top(root: Path, labels: list[int]) -> tuple[Path, Path]:
    return numbered(root / "imagenetv2-top-images-format-val", labels)


def wnids(root: Path, labels: list[int]) -> tuple[Path, Path]:
    return root, class_folders(root, labels, "n01440764", "n01443537", "jpg")


def imagenet_a(root: Path, labels: list[int]) -> tuple[Path, Path]:
    return wnids(root / "imagenet-a", labels)


def imagenet_r(root: Path, labels: list[int]) -> tuple[Path, Path]:
    return wnids(root / "imagenet-r", labels)


def sketch(root: Path, labels: list[int]) -> tuple[Path, Path]:
    return wnids(root / "sketch", labels)


def imagenet_c(root: Path, labels: list[int]) -> tuple[Path, Path]:
    files = [
        class_folders(root / "weather" / "fog" / str(severity), labels, "n01440764", "n01443537")
        for severity in range(1, 6)
    ]
    return root, files[0]


def tiny_c(root: Path, labels: list[int]) -> tuple[Path, Path]:
    return imagenet_c(root / "Tiny-ImageNet-C", labels)


def objectnet(root: Path, labels: list[int]) -> tuple[Path, Path]:
    text(root / "mappings" / "folder_to_objectnet_label.json", '{"banana": "Banana", "clock": "Alarm clock"}')
    text(root / "mappings" / "objectnet_to_imagenet_1k.json", '{"Banana": "banana", "Alarm clock": "digital clock"}')
    return root, class_folders(root / "images", labels, "banana", "clock")


def digits(root: Path, labels: list[int]) -> tuple[Path, Path]:
    del labels
    return root, root


def camvid(root: Path, labels: list[int]) -> tuple[Path, Path]:
    return pairs(root, "train", "trainannot", labels)


def masks(root: Path, labels: list[int]) -> tuple[Path, Path]:
    return pairs(root, "images", "masks", labels)


def pairs(root: Path, images: str, of: str, labels: list[int]) -> tuple[Path, Path]:
    for i, label in enumerate(labels):
        picture(root / images / f"{i}.png", i)
        (root / of).mkdir(exist_ok=True)
        values = np.full((9, 7), label, np.uint8)
        values[4:, : label + 2] = 1
        Image.fromarray(values).save(root / of / f"{i}.png")
    return root, root / of / "1.png"


def hub(root: Path, labels: list[int]) -> tuple[Path, Path]:
    package = pytest.importorskip("datasets")
    package.disable_progress_bars()
    images = [{"bytes": picture(root / "made" / f"{i}.png", i).read_bytes(), "path": None} for i in range(NUM)]
    kinds = package.Features({"image": package.Image(), "label": package.ClassLabel(names=["cat", "dog"])})
    rows = package.Dataset.from_dict({"image": images, "label": labels}, features=kinds)
    package.DatasetDict({"train": rows}).save_to_disk(str(root / "saved"))
    return root / "saved", next((root / "saved").glob("*/*.arrow"))


def shards(root: Path, labels: list[int]) -> tuple[Path, Path]:
    root.mkdir(parents=True)
    with tarfile.open(root / "0.tar", "w") as archive:
        for i, label in enumerate(labels):
            image = picture(root / "made" / f"{i}.png", i).read_bytes()
            for name, data in ((f"{i}.png", image), (f"{i}.cls", b"%d" % label)):
                info = tarfile.TarInfo(name)
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
    return root / "0.tar", root / "0.tar"


def arrays(root: Path, labels: list[int]) -> tuple[Path, Path]:
    root.mkdir(parents=True)
    pixels = np.arange(NUM * 27, dtype=np.uint8).reshape(NUM, 3, 3, 3)
    np.savez(root / "set.npz", images=pixels, labels=np.array(labels))
    return root / "set.npz", root / "set.npz"


def table(root: Path, labels: list[int]) -> tuple[Path, Path]:
    files = [picture(root / f"{i}.png", i) for i in range(NUM)]
    rows = [f"{file.name},{('cat', 'dog')[label]}" for file, label in zip(files, labels, strict=True)]
    text(root / "set.csv", "path,label", *rows)
    return root / "set.csv", files[1]


def vtab(root: Path, labels: list[int]) -> tuple[Path, Path]:
    for file in ("train800", "val200", "test"):
        files = [picture(root / file / f"{i}.png", i) for i in range(NUM)]
        text(root / f"{file}.txt", *(f"{file}/{i}.png {label}" for i, label in enumerate(labels)))
    return root, files[1]


def folder(root: Path, labels: list[int]) -> tuple[Path, Path]:
    return root, class_folders(root, labels)


MAKERS: dict[str, Maker] = {
    "cifar10": cifar10,
    "cifar100": cifar100,
    "mnist": idx,
    "fashion-mnist": fashion,
    "svhn": svhn,
    "stl10": stl10,
    "flowers102": flowers,
    "pets": pets,
    "dtd": dtd,
    "food101": food,
    "eurosat": eurosat,
    "caltech101": caltech,
    "imagenet": imagenet,
    "tiny-imagenet": tiny,
    "imagenet21k": imagenet21k,
    "imagenet-v2": v2,
    "imagenet-v2-threshold": v2_threshold,
    "imagenet-v2-top": v2_top,
    "imagenet-a": imagenet_a,
    "imagenet-r": imagenet_r,
    "imagenet-sketch": sketch,
    "imagenet-c": imagenet_c,
    "tiny-imagenet-c": tiny_c,
    "objectnet": objectnet,
    "digits": digits,
    "camvid": camvid,
    "masks": masks,
    "hub": hub,
    "shards": shards,
    "arrays": arrays,
    "table": table,
    "vtab": vtab,
    "folder": folder,
}
LABELS = [0, 1] * (NUM // 2)
EMBEDDED = {"digits"}  # nothing that could be changed or damaged
every = pytest.mark.parametrize("name", MAKERS)
written = pytest.mark.parametrize("name", [name for name in MAKERS if name not in EMBEDDED])


def test_every_source_is_here() -> None:
    assert set(MAKERS) == set(SOURCES.names())
    assert {source.name for source in SOURCES if isinstance(source, Published) and source.embedded} == EMBEDDED


def read(name: str, path: Path) -> DataSet:
    return SOURCES.find(name).read(path)


def look(dataset: DataSet) -> None:
    """Decode everything."""
    for split in dataset.splits.values():
        for i in range(min(len(split), 20)):
            pixels = decode(split.images.read(i), split.images.where(i))
            assert pixels.dtype == np.uint8
            assert pixels.shape[2:] == (3,)
            for target in split.targets.values():
                if isinstance(target, Masks):
                    values = read_mask(target, i, pixels.shape[:2])
                    assert set(np.unique(values).tolist()) <= {*range(len(target.classes)), 255}


@every
def test_it_reads_what_it_recognises(name: str, tmp_path: Path) -> None:
    path, _ = MAKERS[name](tmp_path / "one", LABELS)
    source = SOURCES.find(name)
    assert name in EMBEDDED or source.recognizes(path)
    assert not source.recognizes(tmp_path / "nothing")
    dataset = read(name, path)
    assert dataset.splits
    assert set(dataset.splits) <= {"train", "val", "test"}
    for split in dataset.splits.values():
        assert len(split) == len(split.images) > 0
        assert split.targets
        for of, target in split.targets.items():
            assert len(target) == len(split)
            if isinstance(target, Values) and of == "label":
                assert 0 <= target.values.min() <= target.values.max() < dataset.num_classes
    look(dataset)


@every
def test_its_images_travel_to_workers(name: str, tmp_path: Path) -> None:
    path, _ = MAKERS[name](tmp_path / "one", LABELS)
    for split in read(name, path).splits.values():
        copy = pickle.loads(pickle.dumps(split))
        for images, again in [
            (split.images, copy.images),
            *((t.images, copy.targets[n].images) for n, t in split.targets.items() if isinstance(t, Masks)),
        ]:
            assert len(again) == len(images)
            for i in (0, len(images) - 1):
                assert again.where(i) == images.where(i)
                np.testing.assert_array_equal(again.read(i), images.read(i))


@every
def test_few_of_its_labels_and_all_of_its_images(name: str, tmp_path: Path) -> None:
    dataset = read(name, MAKERS[name](tmp_path / "one", LABELS)[0])
    if "train" not in dataset.splits:
        for taking in (labelled_part_of_train, fraction_of_train):
            with pytest.raises(DataError, match="has no train part"):
                taking(dataset, 0.5)
        return
    few, part = labelled_part_of_train(dataset, 0.5), fraction_of_train(dataset, 0.5)

    def places(split: Split) -> list[str]:
        return [split.images.where(i) for i in range(len(split))]

    train, unlabelled = few.splits["train"], few.splits["unlabelled"]
    assert 0 < len(train) < len(unlabelled)
    assert places(train) == places(part.splits["train"])
    assert train.targets.keys() == dataset.splits["train"].targets.keys()
    assert places(unlabelled) == places(dataset.splits["train"])
    assert unlabelled.targets == {}
    assert len({few.fingerprint, part.fingerprint, dataset.fingerprint}) == 3
    again = pickle.loads(pickle.dumps(unlabelled))
    np.testing.assert_array_equal(again.images.read(1), unlabelled.images.read(1))


@written
def test_its_fingerprint_changes_with_a_label(name: str, tmp_path: Path) -> None:
    first = read(name, MAKERS[name](tmp_path / "one", LABELS)[0])
    assert read(name, MAKERS[name](tmp_path / "same", LABELS)[0]).fingerprint == first.fingerprint
    other = read(name, MAKERS[name](tmp_path / "other", [1, *LABELS[1:]])[0])
    assert other.fingerprint != first.fingerprint


@written
def test_a_damaged_file_is_a_sentence(name: str, tmp_path: Path) -> None:
    path, file = MAKERS[name](tmp_path / "one", LABELS)
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2 - 1])  # not a whole number of records
    with pytest.raises(Error) as raised:
        look(read(name, path))
    said = str(raised.value)
    assert "\n" not in said
    assert said.endswith(".")
    assert str(tmp_path) in said

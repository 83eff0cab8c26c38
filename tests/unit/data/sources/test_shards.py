"""WebDataset tars, compared with the webdataset package where it is installed."""

import io
import json
import pickle
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from vitlab.core.errors import DataError, ImageError
from vitlab.data.open import open_data
from vitlab.data.sources.shards import expand

RANDOM = np.random.default_rng(0)


def png() -> bytes:
    stream = io.BytesIO()
    Image.fromarray(RANDOM.integers(0, 256, (4, 4, 3), np.uint8)).save(stream, "PNG")
    return stream.getvalue()


def write(path: Path, members: list[tuple[str, bytes]], **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", **options) as archive:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


def samples(start: int, num: int, kind: str = "cls") -> list[tuple[str, bytes]]:
    found: list[tuple[str, bytes]] = []
    for i in range(start, start + num):
        found += [(f"some/{i:06d}.{kind}", str(i % 3).encode()), (f"some/{i:06d}.png", png())]
    return found


def test_tars_are_read_as_the_package_reads_them(tmp_path: Path) -> None:
    webdataset = pytest.importorskip("webdataset")
    for shard in range(3):
        with webdataset.TarWriter(str(tmp_path / f"set-{shard:03d}.tar")) as writer:
            for i in range(4):
                key = f"{shard}/sample{i}"
                writer.write({"__key__": key, "png": png(), "cls": (shard + i) % 3, "json": {"label": 9, "a": [1]}})
    theirs: list[dict[str, Any]] = []
    for shard in range(3):
        with (tmp_path / f"set-{shard:03d}.tar").open("rb") as stream:  # WebDataset itself would leave it open
            members = [item | {"__url__": ""} for item in webdataset.tariterators.tar_file_iterator(stream)]
        theirs += webdataset.tariterators.group_by_keys(members)
    for path in (tmp_path, tmp_path / "set-{000..002}.tar"):
        dataset = open_data(path, val_fraction=0)
        train = dataset.splits["train"]
        assert len(train) == len(theirs) == 12
        assert dataset.classes == ("0", "1", "2")
        assert train.labels.tolist() == [int(sample["cls"]) for sample in theirs]
        order = RANDOM.permutation(12).tolist()  # by number, in any order
        assert [train.images.read(i) for i in order] == [theirs[i]["png"] for i in order]


@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_formats_and_long_names(tmp_path: Path, format: int) -> None:
    long = "x" * 90 + "/" + "y" * 60 if format != tarfile.USTAR_FORMAT else "x" * 90 + "/" + "y" * 40
    first, second = png(), png()
    members = [(f"{long}1.png", first), (f"{long}1.cls", b"0"), ("2.seg.png", second), ("2.cls", b" 1\n")]
    write(tmp_path / "a.tar", members, format=format)
    images = open_data(tmp_path / "a.tar", val_fraction=0).splits["train"].images
    assert [images.read(0), images.read(1)] == [first, second]
    again = pickle.loads(pickle.dumps(images))
    assert again.where(0) == f"{tmp_path / 'a.tar'}:a.tar/{long}1.png"
    assert again.read(1) == second


def test_splits_by_name_and_by_folder(tmp_path: Path) -> None:
    for split in ("train", "val"):
        write(tmp_path / "a" / f"imagenet-{split}-0000.tar", samples(0, 3))
        write(tmp_path / "b" / split / "0.tar", samples(0, 3))
    for folder in ("a", "b"):
        dataset = open_data(tmp_path / folder)
        assert {split: len(part) for split, part in dataset.splits.items()} == {"train": 3, "val": 3}


def test_other_labels(tmp_path: Path) -> None:
    members = []
    for i, label in enumerate(("dog", "cat", "dog")):
        members += [(f"{i}.png", png()), (f"{i}.json", json.dumps({"label_name": label}).encode())]
    dataset = open_data(write(tmp_path / "j.tar", members), val_fraction=0)
    assert dataset.classes == ("cat", "dog")
    assert dataset.splits["train"].labels.tolist() == [1, 0, 1]
    members = [
        (name.replace(".json", ".txt"), data if "png" in name else b"fish" + name[:1].encode())
        for name, data in members
    ]
    assert open_data(write(tmp_path / "t.tar", members), val_fraction=0).classes == ("fish0", "fish1", "fish2")


def test_class_names_beside(tmp_path: Path) -> None:
    write(tmp_path / "a.tar", samples(0, 3))
    (tmp_path / "classnames.txt").write_text("x\ny\nz\nnever\n")
    assert open_data(tmp_path, val_fraction=0).classes == ("x", "y", "z", "never")


def test_samples_without_an_image(tmp_path: Path) -> None:
    write(tmp_path / "a.tar", [*samples(0, 3), ("9.cls", b"1"), (".hidden.png", b"x"), ("README", b"x")])
    dataset = open_data(tmp_path, val_fraction=0)
    assert len(dataset.splits["train"]) == 3
    assert any("1 samples without an image" in note for note in dataset.notes)


def test_bad_tars(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(b"no tar at all" * 100)
    with pytest.raises(DataError, match=r"a.tar is damaged, or not a tar"):
        open_data(tmp_path / "a.tar")
    whole = write(tmp_path / "b.tar", samples(0, 4)).read_bytes()
    (tmp_path / "b.tar").write_bytes(whole[: 512 * 11])
    with pytest.raises(DataError, match=r"b.tar is (damaged|cut off)"):
        open_data(tmp_path / "b.tar")
    write(tmp_path / "c.tar", [("1.png", png())])
    with pytest.raises(DataError, match=r"sample 1 has no label; expected was 1.cls"):
        open_data(tmp_path / "c.tar")
    write(tmp_path / "d.tar", [("1.cls", b"1")])
    with pytest.raises(DataError, match="holds no images"):
        open_data(tmp_path / "d.tar")
    (tmp_path / "e.tar.gz").touch()
    with pytest.raises(DataError, match="compressed"):
        open_data(tmp_path / "e.tar.gz")
    with pytest.raises(DataError, match=r"There is no file .*x-1.tar"):
        open_data(tmp_path / "x-{1..2}.tar")
    write(tmp_path / "f" / "n01440764.tar", samples(0, 3))
    with pytest.raises(DataError, match="class archives"):
        open_data(tmp_path / "f")


def test_cut_tars(tmp_path: Path) -> None:
    """Wherever a tar is cut, nothing of it is read: at the end of a member, in its padding, in the closing blocks."""
    members = [
        (f"{i}.{kind}", png() if kind == "png" else b"%d" % (i % 2)) for i in range(4) for kind in ("png", "cls")
    ]
    path = write(tmp_path / "a.tar", members)
    whole = path.read_bytes()
    with tarfile.open(path) as archive:
        last = archive.getmembers()[-1]
    end = last.offset_data + 512  # its one byte, filled up to a block
    assert not any(whole[end:])
    for size in (*range(0, end + 1024, 128), last.offset, last.offset_data + 1, end + 512, end + 1023):
        path.write_bytes(whole[:size])
        with pytest.raises(DataError, match=r"a.tar is (cut off|damaged)") as raised:
            open_data(path)
        assert "no label" not in str(raised.value)
    for size in (end + 1024, len(whole)):
        path.write_bytes(whole[:size])
        assert len(open_data(path, val_fraction=0).splits["train"]) == 4


def test_a_damaged_member_is_not_the_end(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tar", samples(0, 4))
    with tarfile.open(path) as archive:
        start = archive.getmembers()[4].offset
    content = bytearray(path.read_bytes())
    content[start + 3] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(DataError, match=f"a.tar is cut off or damaged after {start:,} bytes: copy it again"):
        open_data(path)


def test_ends_of_tars(tmp_path: Path) -> None:
    for name in ("0.png", "1.png"):
        (tmp_path / name).write_bytes(png())
        (tmp_path / name).with_suffix(".cls").write_text(name[0])
    names = ["0.png", "0.cls", "1.png", "1.cls"]
    for option in ("-b1", "-b40", "--format=v7", "--format=pax"):
        subprocess.run(["tar", option, "-cf", "a.tar", *names], cwd=tmp_path, check=True)
        assert len(open_data(tmp_path / "a.tar", val_fraction=0).splits["train"]) == 2
    (tmp_path / "b.tar").write_bytes((tmp_path / "a.tar").read_bytes() * 2)
    with pytest.raises(DataError, match=r"b.tar is several tars in one file"):
        open_data(tmp_path / "b.tar")
    (tmp_path / "c.tar").touch()
    with pytest.raises(DataError, match=r"c.tar is damaged, or not a tar: empty file"):
        open_data(tmp_path / "c.tar")
    (tmp_path / "d.tar").write_bytes(bytes(10240))
    with pytest.raises(DataError, match=r"d.tar holds no images"):
        open_data(tmp_path / "d.tar")


def test_several_images_a_sample(tmp_path: Path) -> None:
    """Image, mask and label in the orders that sorting, or a writer, gives them."""
    pictures = {name: png() for name in ("0.jpg", "1.png", "2.b.png", "3.png")}
    members = [("0.a.png", png()), ("0.jpg", pictures["0.jpg"]), ("0.cls", b"0"), ("1.cls", b"1")]
    members += [
        ("1.png", pictures["1.png"]),
        ("1.seg.png", png()),
        ("2.c.png", png()),
        ("2.b.png", pictures["2.b.png"]),
    ]
    members += [("2.cls", b"0"), ("3.png", pictures["3.png"]), ("3.cls", b"1")]
    dataset = open_data(write(tmp_path / "a.tar", members), val_fraction=0)
    images = dataset.splits["train"].images
    assert [images.read(i) for i in range(4)] == list(pictures.values())
    assert "3 samples hold several images: .b.png or .jpg or .png was taken." in dataset.notes


@pytest.mark.parametrize(
    ("kind", "content", "message"),
    [
        ("cls", b"-1", "the label of the sample 1 is -1; leave images without a label out"),
        ("json", b'{"label": -1}', "is -1; leave"),
        (
            "json",
            b'{"label": [0, 1]}',
            r"the label of the sample 1 is \[0, 1\]; expected was one whole number or one text",
        ),
        ("json", b'{"label": 0.5}', r"is 0.5; expected was one whole number"),
        ("json", b'{"label": true}', r"is True; expected was one whole number"),
        ("json", b'{"label": null}', "has no label"),
        ("json", b'{"other": 1}', "has no label"),
        ("json", b"{", "has no label"),
        ("cls", b"", "has no label"),
    ],
)
def test_bad_labels(tmp_path: Path, kind: str, content: bytes, message: str) -> None:
    write(tmp_path / "a.tar", [("0.png", png()), ("0.cls", b"0"), ("1.png", png()), (f"1.{kind}", content)])
    with pytest.raises(DataError, match=message):
        open_data(tmp_path / "a.tar")


def test_whole_floats_are_class_numbers(tmp_path: Path) -> None:
    members = []
    for i, label in enumerate((2.0, 0, 2)):
        members += [(f"{i}.png", png()), (f"{i}.json", json.dumps({"label": label}).encode())]
    dataset = open_data(write(tmp_path / "a.tar", members), val_fraction=0)
    assert dataset.classes == ("0", "2")
    assert dataset.splits["train"].labels.tolist() == [1, 0, 1]


def test_a_link_in_a_tar_leads_nowhere(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        link = tarfile.TarInfo("1.png")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
        label = tarfile.TarInfo("1.cls")
        label.size = 1
        archive.addfile(label, io.BytesIO(b"1"))
    with pytest.raises(DataError, match="holds no images"):
        open_data(tmp_path / "a.tar")


def test_a_tar_that_changed(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tar", samples(0, 3))
    images = open_data(path, val_fraction=0).splits["train"].images
    path.write_bytes(path.read_bytes()[:600])
    with pytest.raises(ImageError, match=r"a.tar:a.tar/some/000002.png is cut off"):
        images.read(2)


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("a", ["a"]),
        ("a{1..3}", ["a1", "a2", "a3"]),
        ("{08..10}.tar", ["08.tar", "09.tar", "10.tar"]),
        ("{x,y}{0..1}", ["x0", "x1", "y0", "y1"]),
        ("{9..10}", ["9", "10"]),
    ],
)
def test_braces(pattern: str, names: list[str]) -> None:
    assert expand(pattern) == names


def test_two_folders_for_one_split_and_braces_without_files(tmp_path: Path) -> None:
    for name in ("train", "training"):
        (tmp_path / name).mkdir()
        write(tmp_path / name / "0.tar", samples(0, 3))
    with pytest.raises(DataError, match="both train and training"):
        open_data(tmp_path)
    for pattern, number in (("{5..2}", "0"), ("{0..99999999}", "100,000,000")):
        with pytest.raises(DataError, match=f"stands for {number} files"):
            open_data(f"{tmp_path}/{pattern}.tar")


def test_deep_json_is_no_label(tmp_path: Path) -> None:
    write(tmp_path / "a.tar", [("0.png", png()), ("0.json", b"[" * 100_000)])
    with pytest.raises(DataError, match="has no label"):
        open_data(tmp_path / "a.tar")


@pytest.mark.parametrize("size", [2**33 - 1, 2**60])
@pytest.mark.parametrize("kind", [tarfile.REGTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.XHDTYPE])
def test_members_that_claim_more_than_the_tar(tmp_path: Path, size: int, kind: bytes) -> None:
    """A label, a long name or an extended header of so many bytes."""
    info = tarfile.TarInfo("0.cls")
    info.type, info.size = kind, size
    path = write(tmp_path / "a.tar", [("0.png", png())])
    path.write_bytes(path.read_bytes()[:1024] + info.tobuf(tarfile.GNU_FORMAT) + bytes(10240))
    with pytest.raises(
        DataError, match=r"a\.tar(: the label of the sample 0 has| is damaged, or not a tar: | is cut off)"
    ):
        open_data(path)

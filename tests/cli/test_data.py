import csv
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitlab.api import create, examine_data, save
from vitlab.cli import main
from vitlab.core.errors import Error


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    for split, num in (("train", 4), ("test", 2)):
        for name in ("cats", "dogs"):
            (tmp_path / "photos" / split / name).mkdir(parents=True)
            for i in range(num):
                pixels = rng.integers(0, 256, (20, 20, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(tmp_path / "photos" / split / name / f"{i}.png")
    leaked = (tmp_path / "photos" / "train" / "cats" / "0.png").read_bytes()
    (tmp_path / "photos" / "test" / "dogs" / "again\x1b.png").write_bytes(leaked)
    return tmp_path / "photos"


def test_classes_copies_and_leaks_are_told(photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", str(photos), "--no-features", "--csv", str(tmp_path / "copies.csv")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "photos: 2 classes, one label per image (cats, dogs)"
    assert "test: 5 images, 2 to 3 per class" in lines
    assert "copies: 1 image is a copy of another, 1 exactly and 0 nearly" in lines
    place = lines.index("in another part too (a leak): 1 of them")
    assert lines[place + 1].endswith(
        "(test, dogs) is a copy of " + str(photos / "train" / "cats" / "0.png") + " (train, cats)"
    )
    assert r"again\x1b.png" in lines[place + 1]
    assert "under another label too: 1 of them" in lines
    with (tmp_path / "copies.csv").open(newline="", encoding="utf-8") as file:
        [row] = csv.DictReader(file)
    assert (row["problem"], row["detail"], row["split"], row["label"]) == ("copy", "exact", "test", "dogs")
    assert (row["copy of"], row["its split"]) == (str(photos / "train" / "cats" / "0.png"), "train")


def test_as_json_and_without_looking(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", str(photos), "--no-features", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["sizes"] == {"train": 6, "val": 2, "test": 5}
    assert [(pair["kind"], pair["second"]["label"]) for pair in found["copies"]] == [("exact", "dogs")]
    assert main(["data", str(photos), "--no-look"]) == 0
    printed = capsys.readouterr().out
    assert "copies" not in printed
    assert "unreadable" not in printed


def test_no_table_is_written_over_the_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for i, level in enumerate((0, 60, 120, 180)):
        Image.new("RGB", (8, 8), (level, 0, 0)).save(tmp_path / f"{i}.png")
    table = tmp_path / "labels.csv"
    table.write_text("path,label\n" + "".join(f"{i}.png,{'ab'[i % 2]}\n" for i in range(4)))
    before = table.read_text()
    for option in ("--csv", "--page"):
        assert main(["data", str(table), "--no-features", option, str(tmp_path / "." / "labels.csv")]) == 2
        assert "labels.csv is read here and would be written over: give another" in capsys.readouterr().err
        assert table.read_text() == before
    with pytest.raises(Error, match="is read here and would be written over"):
        examine_data(table, None, page=table)
    assert table.read_text() == before
    both = ["--page", str(tmp_path / "x"), "--csv", str(tmp_path / "x")]
    assert main(["data", str(table), "--no-features", *both]) == 2
    assert "--page and --csv are both" in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


def test_what_cannot_be_written_or_is_not_used_is_said_first(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for given in (["--csv", str(photos)], ["--page", str(photos / "train" / "cats" / "0.png" / "x.html")]):
        assert main(["data", str(photos), *given]) == 2
        assert capsys.readouterr().out == ""
    for less in ("--no-features", "--no-look"):
        assert main(["data", str(photos), less, "--model", "runs/mine"]) == 2
        assert f"{less} computes none" in capsys.readouterr().err


def test_what_cannot_be_read_is_named(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (photos / "train" / "cats" / "bad.jpg").write_text("no image")
    assert main(["data", str(photos), "--no-features"]) == 1
    assert "bad.jpg is not an image that can be read." in capsys.readouterr().out


def test_labels_and_outliers_by_a_models_features(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    for place, name in enumerate(("cats", "dogs")):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for i in range(30):
            pixels = rng.integers(0, 100, (16, 16, 3), dtype=np.uint8)
            pixels[..., 2 * place] += 150  # red or blue
            Image.fromarray(pixels).save(tmp_path / "photos" / name / f"{name} {i}.png")
    for name, other in (("cats", "dogs"), ("dogs", "cats")):
        (tmp_path / "photos" / name / f"{name} 3.png").rename(tmp_path / "photos" / other / f"{name} 3.png")
    model = create("vit-s16-224", num_classes=2, image_size=16, patch_size=4, width=16, depth=1, mlp_dim=16, heads=2)
    save(model, tmp_path / "model")
    command = ["data", str(tmp_path / "photos"), "--model", str(tmp_path / "model"), "--csv", str(tmp_path / "all.csv")]
    assert main([*command, "--page", str(tmp_path / "data.html")]) == 0
    lines = capsys.readouterr().out.splitlines()
    written = [f"as a page with thumbnails: {tmp_path / 'data.html'}", f"as a table: {tmp_path / 'all.csv'}"]
    assert lines[-2:] == written
    [said] = [line for line in lines if line.startswith("labels: ")]
    assert f"by the features of {tmp_path / 'model'}" in said
    with (tmp_path / "all.csv").open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["problem"] == "label"]
    assert {(Path(row["image"]).name, row["predicted"]) for row in rows[:2]} == {
        ("cats 3.png", "cats"),
        ("dogs 3.png", "dogs"),
    }
    assert all(-1 <= float(row["score"]) < 0 for row in rows)
    assert "cats 3.png" in (tmp_path / "data.html").read_text(encoding="utf-8")
    assert main([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["num_features"] == 60
    assert [each["place"]["where"] for each in found["labels"]["suspects"]] == [row["image"] for row in rows]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--near", "0"], "--near must be above 0"),
        (["--most", "0"], "--most must be above 0"),
        (["--no-look", "--csv", "a.csv"], "--csv is for what is found by looking"),
        (["--no-look", "--page", "a.html"], "--page is for what is found by looking"),
        (["--model", "nowhere"], "nowhere"),
    ],
)
def test_mistakes_are_one_sentence(
    options: list[str], sentence: str, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["data", str(photos), *options]) == 2
    assert sentence in capsys.readouterr().err

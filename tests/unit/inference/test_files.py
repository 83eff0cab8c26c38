"""Predictions as files, read back by others: the csv module, Pillow, the folders of the disk."""

import csv
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitlab.core.errors import Error
from vitlab.core.preprocess import Preprocess
from vitlab.inference.files import write_csv, write_drawn, write_masks, write_sorted
from vitlab.inference.predict import Prediction
from vitlab.tasks.contract import Answer, Scored


def classified(source: Path | str, *scored: tuple[str, int, float]) -> Prediction:
    return Prediction(str(source), Answer(classes=tuple(Scored(*each) for each in scored)))


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_a_line_per_picture(tmp_path: Path) -> None:
    answers = [
        classified("a, b.jpg", ('the "cat"', 0, 0.75), ("dog", 1, 0.25)),
        Prediction("gone.jpg", error="There is no\nfile gone.jpg."),
    ]
    write_csv(tmp_path / "all.csv", answers)
    first, second = rows_of(tmp_path / "all.csv")
    assert list(first) == ["image", "predicted", "probability", "predicted 2", "probability 2", "error"]
    assert list(first.values()) == ["a, b.jpg", 'the "cat"', "0.75", "dog", "0.25", ""]
    assert (second["image"], second["predicted"]) == ("gone.jpg", "")
    assert "\n" not in second["error"]


def test_numbers_and_masks_have_a_column_each(tmp_path: Path) -> None:
    write_csv(tmp_path / "numbers.csv", [Prediction("a", Answer(numbers={"area": 1.5, "age": 2.0}))])
    assert rows_of(tmp_path / "numbers.csv") == [{"image": "a", "area": "1.5", "age": "2.0"}]
    masks = [np.array([[0, 0, 1, 0]], np.uint8), np.array([[2, 2, 2, 2]], np.uint8)]
    answers = [Prediction(f"{i}", Answer(mask=mask, labels=("sky", "tree", "road"))) for i, mask in enumerate(masks)]
    write_csv(tmp_path / "masks.csv", answers)
    assert rows_of(tmp_path / "masks.csv") == [
        {"image": "0", "sky": "0.75", "tree": "0.25", "road": ""},
        {"image": "1", "sky": "", "tree": "", "road": "1.0"},
    ]


def test_pictures_are_sorted_into_folders_that_cannot_lead_elsewhere(tmp_path: Path) -> None:
    for name in ("1.png", "2.png", "more/1.png", "3.png", "4.png"):
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4), (len(name), 0, 0)).save(tmp_path / "in" / name)
    given = {
        "1.png": ("cat", 0),
        "more/1.png": ("cat", 0),
        "2.png": ("../up\n", 1),
        "3.png": ("", 2),
        "4.png": ("Cat", 3),
    }
    write_sorted(tmp_path / "out", [classified(tmp_path / "in" / name, (*label, 1.0)) for name, label in given.items()])
    found = sorted(str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*.png"))
    assert found == ["Cat (3)/4.png", "_up_/2.png", "cat (0)/1.png", "cat (0)/more/1.png", "class 2/3.png"]
    assert (tmp_path / "out/cat (0)/more/1.png").read_bytes() == (tmp_path / "in/more/1.png").read_bytes()
    with pytest.raises(Error, match="this model names none"):
        write_sorted(tmp_path / "out", [Prediction("1.png", Answer(numbers={"area": 1.0}))])


def test_pictures_are_not_synced_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred thousand of them would take the better part of an hour."""
    asked: list[int] = []
    monkeypatch.setattr("os.fsync", asked.append)
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    answers = [classified(tmp_path / "a.png", ("cat", 0, 1.0))]
    write_sorted(tmp_path / "sorted", answers)
    write_drawn(tmp_path / "drawn", answers, Preprocess())
    assert not asked
    write_csv(tmp_path / "all.csv", answers)
    assert asked


def test_sorting_replaces_no_picture(tmp_path: Path) -> None:
    """New photos are sorted into the folder of the old ones, and cameras count from 1 again."""
    for name, level in (("new/1.png", 0), ("new/2.png", 9), ("all/cat/1.png", 99)):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4), (level, 0, 0)).save(tmp_path / name)
    before = (tmp_path / "all/cat/1.png").read_bytes()
    given = [classified(tmp_path / "new" / name, ("cat", 0, 1.0)) for name in ("2.png", "1.png")]
    with pytest.raises(Error, match=r"all/cat/1\.png is there already and is not .*new/1\.png: choose another folder"):
        write_sorted(tmp_path / "all", given)
    assert (tmp_path / "all/cat/1.png").read_bytes() == before
    assert not (tmp_path / "all/cat/2.png").exists()
    (tmp_path / "all/cat/1.png").unlink()
    for _ in range(2):  # a second time finds the same copies there
        write_sorted(tmp_path / "all", given)
        assert (tmp_path / "all/cat/1.png").read_bytes() == (tmp_path / "new/1.png").read_bytes()


def test_the_pictures_themselves_are_not_written_over(tmp_path: Path) -> None:
    path = tmp_path / "street.png"
    Image.new("RGB", (8, 6), (200, 10, 10)).save(path)
    before, spec = path.read_bytes(), Preprocess(size=(6, 8), resize="squash")
    drawn = [classified(path, ("red", 0, 1.0))]
    masked = [Prediction(str(path), Answer(mask=np.zeros((6, 8), np.uint8), labels=("sky",)), size=(6, 8))]
    for _ in range(2):  # in a folder of their own anew, too
        write_drawn(tmp_path / "drawn", drawn, spec)
        write_masks(tmp_path / "masks", masked, spec)
    for write in (lambda: write_drawn(tmp_path, drawn, spec), lambda: write_masks(tmp_path, masked, spec)):
        with pytest.raises(Error, match=r"street\.png is one of the pictures and would be written over"):
            write()
        assert path.read_bytes() == before


def test_the_answer_is_drawn_below_the_picture(tmp_path: Path) -> None:
    Image.new("RGB", (200, 100), (0, 0, 255)).save(tmp_path / "blue.jpg", quality=100)
    write_drawn(tmp_path / "out", [classified(tmp_path / "blue.jpg", ("blue", 0, 0.9))], Preprocess(size=(8, 8)))
    drawn = np.asarray(Image.open(tmp_path / "out" / "blue.png"))
    assert drawn.shape[1] == 200
    assert drawn.shape[0] > 110
    assert np.abs(drawn[:100].astype(int) - [0, 0, 255]).max() < 4
    assert (drawn[100:] > 200).any()  # words
    assert (drawn[100:] < 60).mean() > 0.5  # on a dark band


def test_a_mask_is_laid_over_the_picture(tmp_path: Path) -> None:
    Image.new("RGB", (4, 2), (100, 100, 100)).save(tmp_path / "gray.png")
    mask = np.array([[0, 0, 1, 1], [0, 0, 1, 1]], np.uint8)
    answer = Answer(mask=mask, labels=("none", "road"))
    write_drawn(
        tmp_path / "out", [Prediction(str(tmp_path / "gray.png"), answer)], Preprocess(size=(2, 4), resize="squash")
    )
    drawn = np.asarray(Image.open(tmp_path / "out" / "gray.png"))
    assert drawn[0, :4].tolist() == [[40, 40, 40]] * 2 + [[117, 40, 40]] * 2  # .4 of the picture, .6 of VOC's colours

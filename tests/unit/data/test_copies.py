"""Copies that were planted among real photos are found, and nothing else is."""

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_sample_images

from vitlab.data.contract import DataSet, Split
from vitlab.data.copies import find_copies, levels_of
from vitlab.data.open import open_data
from vitlab.data.sources.pixels import Pixels


@pytest.fixture(scope="module")
def photos() -> list[Image.Image]:
    """Twelve pieces of two photos: none is another's copy."""
    pieces: list[Image.Image] = []
    for pixels in load_sample_images().images:
        photo = Image.fromarray(pixels)
        pieces += [photo.crop((x, y, x + 200, y + 200)) for x in (0, 210, 420) for y in (0, 210)]
    return pieces


@pytest.fixture
def folder(photos: list[Image.Image], tmp_path: Path) -> Path:
    for split in ("train", "test"):
        for name in ("a", "b"):
            (tmp_path / split / name).mkdir(parents=True)
    for i, photo in enumerate(photos):
        photo.save(tmp_path / ("test" if i % 4 == 3 else "train") / "ab"[i % 2] / f"{i:02}.jpg", quality=90)
    return tmp_path


def found_in(folder: Path, near: float = 0.95) -> set[tuple[str, str, str]]:
    pairs = find_copies(open_data(folder, val_fraction=0), near=near)
    return {(pair.kind, Path(pair.first.where).name, Path(pair.second.where).name) for pair in pairs}


def test_other_pictures_are_no_copies(folder: Path) -> None:
    assert found_in(folder) == set()


def test_planted_copies_are_found(folder: Path, photos: list[Image.Image]) -> None:
    data = (folder / "train" / "a" / "00.jpg").read_bytes()
    (folder / "train" / "b" / "same.jpg").write_bytes(data)
    photos[0].resize((90, 90)).save(folder / "test" / "a" / "small.png")
    photos[1].save(folder / "test" / "b" / "worse.jpg", quality=20)
    photos[2].crop((2, 2, 198, 198)).save(folder / "train" / "a" / "trimmed.jpg")
    pairs = find_copies(open_data(folder, val_fraction=0))
    found = {Path(pair.second.where).name: pair for pair in pairs}
    assert {name: (pair.kind, Path(pair.first.where).name) for name, pair in found.items()} == {
        "same.jpg": ("exact", "00.jpg"),
        "small.png": ("near", "00.jpg"),
        "worse.jpg": ("near", "01.jpg"),
        "trimmed.jpg": ("near", "02.jpg"),
    }
    assert {name for name, pair in found.items() if pair.leaks} == {"small.png", "worse.jpg"}
    assert {name for name, pair in found.items() if pair.disagrees} == {"same.jpg"}
    assert found_in(folder, near=1.1) == {("exact", "00.jpg", "same.jpg")}


def test_pictures_without_structure_are_copies_by_their_bytes_only(folder: Path) -> None:
    for i, level in enumerate((10, 10, 11)):
        Image.new("RGB", (40, 40), (level, level, level)).save(folder / "train" / "a" / f"blank{i}.png")
    (folder / "train" / "a" / "broken.jpg").write_text("nothing")
    assert found_in(folder) == {("exact", "blank0.png", "blank1.png")}


def test_likeness_is_numpys_correlation(photos: list[Image.Image]) -> None:
    one, other = (np.asarray(photo) for photo in photos[:2])
    gray = [
        np.asarray(Image.fromarray(x).convert("L").resize((16, 16), Image.Resampling.BOX), float) for x in (one, other)
    ]
    expected = np.corrcoef(gray[0].ravel(), gray[1].ravel())[0, 1]
    assert float(levels_of(one) @ levels_of(other)) == pytest.approx(expected, abs=1e-5)


def test_images_in_an_array_and_without_labels(tmp_path: Path, photos: list[Image.Image]) -> None:
    pixels = np.stack([np.asarray(photo) for photo in [*photos[:3], photos[1]]])
    np.savez(tmp_path / "set.npz", images=pixels, labels=np.array([0, 1, 0, 0]))
    [pair] = find_copies(open_data(tmp_path / "set.npz", val_fraction=0))
    assert (pair.kind, pair.first.index, pair.second.index, pair.disagrees) == ("exact", 1, 3, True)


def test_many_pictures_are_compared_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first copy is found also far behind, in memory that is little more than what pictures are known by."""
    num, draw = 4000, np.random.default_rng(0)
    levels = draw.standard_normal((num, 256)).astype(np.float32)
    levels[3000] = levels[3999] = levels[7]
    levels /= np.linalg.norm(levels, axis=1, keepdims=True)
    pixels = np.arange(num, dtype=np.uint16).view(np.uint8).reshape(num, 1, 2)
    known = {pixels[i].tobytes(): levels[i] for i in range(num)}
    monkeypatch.setattr("vitlab.data.copies.levels_of", lambda pixels: known[pixels[..., 0].tobytes()])
    dataset = DataSet("them", (), {"train": Split(Pixels(pixels, "them"))}, "")
    tracemalloc.start()
    try:
        pairs = find_copies(dataset)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert {(pair.kind, pair.first.index, pair.second.index) for pair in pairs} == {
        ("near", 7, i) for i in (3000, 3999)
    }
    assert [pair.similarity for pair in pairs] == pytest.approx([1, 1])
    assert peak < 4 * levels.nbytes
